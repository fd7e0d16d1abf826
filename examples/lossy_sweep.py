"""What every lossy rule does to the law of the next token, over its parameter, at the positions of real texts.

    python examples/lossy_sweep.py TARGET DRAFT PROMPTS [--quantization none+layers:28] [--num-prompts 16] [--json FILE]

The target samples an answer to every prompt, target and draft read it, and at each position the law of each rule is
computed from p and q: nothing is generated with the rule, so all settings see the same positions. (`specverify
diagnose` generates with a rule, and measures its texts too.)

  accepted  Σ q·a, the chance that a draft token is accepted
  TV        between the law and p; also the overshoot Σ(law - p)_+
  KL        KL(p‖law) and KL(law‖p), nats
  ratio     the largest law/p of a position, median and 95th percentile over positions
  surprise  E_law[-log p] - H(p), nats: how much less likely its tokens are for the target than the target's own
  matched   of the truncated target that `typical` and `min_p` mean: its surprise, and the law's TV to it
"""

import argparse
import json
from pathlib import Path

import torch
from rich.progress import track
from transformers import AutoTokenizer

from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.prompts import chat_encoder, encode_chunk, read_prompts, select_evenly
from hf_specverify.benchmark.runs import pad_token_id
from hf_specverify.diagnostics.along import logits_along
from hf_specverify.diagnostics.law_metrics import entropy, position_metrics
from hf_specverify.diagnostics.matched import lossy_rule
from hf_specverify.diagnostics.position_reading import matched_law
from hf_specverify.verification.lossy import TruncationRule

SWEEPS = {
    "typical": [{"epsilon": epsilon} for epsilon in (0.9, 0.3, 0.1, 0.03)]
    + [{"epsilon": epsilon, "residual": "draft"} for epsilon in (0.3, 0.03)],
    "min_p": [{"p_base": base} for base in (0.5, 0.2, 0.1, 0.02)]
    + [{"p_base": base, "residual": "draft"} for base in (0.1, 0.02)],
    "lenience": [{"leniency": leniency} for leniency in (0.8, 0.5, 0.3, 0.1)],
    "collaborative": [{"weight": weight} for weight in (0.9, 0.7, 0.5, 0.2)],
    "contrastive": [{"mu": mu} for mu in (0.05, 0.1, 0.3)],
    "mentored": [{"divergence": divergence} for divergence in (0.01, 0.05, 0.1, 0.5)],
    "cactus": [{"delta": delta} for delta in (0.01, 0.1, 0.5)],
    "cascade": [{"threshold": threshold} for threshold in (0.5, 0.1, 0.02)],
    "fuzzy": [{"threshold": threshold} for threshold in (0.02, 0.1, 0.3)],
}
CAPPED = {
    "typical": {"epsilon": 0.1},
    "min_p": {"p_base": 0.1},
    "lenience": {"leniency": 0.1},
    "collaborative": {"weight": 0.2},
    "mentored": {"divergence": 0.5},
    "cactus": {"delta": 0.5},
    "cascade": {"threshold": 0.1},
    "fuzzy": {"threshold": 0.3},
}
CAPS = (1.25, 2.0, 5.0)
CHUNK = 8  # positions whose laws exist at a time


def settings():
    """(name, options) of all that is tried: the sweep of each parameter, and caps on the overshoot."""
    for name, sweep in SWEEPS.items():
        yield from ((name, options) for options in sweep)
    for name, options in CAPPED.items():
        yield from ((name, options | {"max_overshoot": cap}) for cap in CAPS)


def read_laws(options):
    """(n, V) p and q before every token of the target's own answers."""
    target, draft = (
        load_model(options.target, options.dtype),
        load_model(options.draft, options.dtype, options.quantization),
    )
    tokenizer, texts = AutoTokenizer.from_pretrained(options.target), read_prompts(options.prompts)
    pad = pad_token_id(target, tokenizer)
    laws = {"p": [], "q": []}
    torch.manual_seed(options.seed)
    chosen = [texts[index] for index in select_evenly(options.num_prompts, len(texts))]
    for start in track(range(0, len(chosen), options.batch_size), "reading"):
        inputs = encode_chunk(chat_encoder(tokenizer), chosen[start : start + options.batch_size], pad, target.device)
        out = target.generate(
            **inputs, do_sample=True, top_k=0, top_p=1.0, temperature=1.0, pad_token_id=pad,
            max_new_tokens=options.max_new_tokens,
        )  # fmt: skip
        for row, mask, new in zip(
            inputs["input_ids"], inputs["attention_mask"], out[:, inputs["input_ids"].shape[1] :], strict=True
        ):
            new = new[: int((new != pad).long().cumprod(0).sum())]
            for name, model in (("p", target), ("q", draft)):
                pieces = logits_along(model, row[mask.bool()], new, target.config.vocab_size)
                laws[name].append(torch.cat([logits.float().softmax(-1) for _, logits in pieces]))
    return torch.cat(laws["p"]), torch.cat(laws["q"])


def measure(rule, p, q):
    """{name: (n,)} of one rule."""
    law, acceptance = rule.law(p, q), rule.acceptance(p, q)
    matched = matched_law(rule, p, law) if isinstance(rule, TruncationRule) else None
    found = position_metrics(p, law, matched)
    found["accepted"] = (q * acceptance).sum(-1).double()
    log_p = p.double().clamp(min=1e-30).log()
    found["surprise"] = -(law.double() * log_p).sum(-1) - entropy(p.double())
    if matched is not None:
        found["matched_surprise"] = -(matched.double() * log_p).sum(-1) - entropy(p.double())
    return found


def summary(columns, entropies):
    """Means over positions, quantiles of the ratio, and TV by thirds of the target's entropy."""
    found = {name: float(values.mean()) for name, values in columns.items() if name != "max_ratio"}
    found["ratio_median"] = float(columns["max_ratio"].median())
    found["ratio_95"] = float(columns["max_ratio"].quantile(0.95))
    thirds = entropies.argsort().tensor_split(3)
    found["tv_by_entropy"] = [float(columns["tv"][third].mean()) for third in thirds]
    return found


def table(results):
    print("| rule | accepted | TV | KL(p‖law) | KL(law‖p) | ratio, median, 95 % | surprise | matched: surprise, TV |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for result in results:
        name = ", ".join(f"{key}={value}" for key, value in result["options"].items())
        matched = "–"
        if "matched_surprise" in result:
            matched = f"{result['matched_surprise']:+.2f}, {result['tv_matched']:.3f}"
        print(
            f"| `{result['rule']}`{' ' + name if name else ''} | {result['accepted']:.3f} | {result['tv']:.3f} "
            f"| {result['kl_target_law']:.3f} | {result['kl_law_target']:.3f} "
            f"| {result['ratio_median']:.2f}, {result['ratio_95']:.3g} | {result['surprise']:+.2f} | {matched} |"
        )


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "draft"):
        parser.add_argument(name)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", default="none", help="of the draft, and what is cut: nf4, none+layers:28, …")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    p, q = read_laws(options)
    entropies = torch.cat([entropy(part.double()) for part in p.split(CHUNK)])
    accepted = torch.minimum(p, q).sum(-1)
    print(
        f"{len(p)} positions, H(p) {float(entropies.mean()):.2f} nats; lossless: {float(accepted.mean()):.3f} accepted"
    )
    results = []
    for name, given in track(list(settings()), "rules"):
        rule = lossy_rule(name, **given)
        parts = [measure(rule, *part) for part in zip(p.split(CHUNK), q.split(CHUNK), strict=True)]
        columns = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        results.append({"rule": name, "options": given, **summary(columns, entropies)})
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1))
    table(results)


if __name__ == "__main__":
    main()
