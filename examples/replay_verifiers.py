"""Compare verifiers on the same drafts: what each would have accepted, many times over, while one of them generates.

    python examples/replay_verifiers.py TARGET DRAFT PROMPTS [--temperature 1] [--quantization nf4] [--json out.json]

Runs of their own differ by what was drawn. Here one run generates with four independent paths of eight tokens, and
every verifier is asked, at every step and for every smaller number of paths and length, how many of those tokens it
accepts: a mean over REPEATS of its own draws. Differences between verifiers are then differences between rules. Laws
are reduced to the tokens that are likely or drafted somewhere in the tree, and one token that stands for all others.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoTokenizer

import hf_specverify as sv
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.prompts import chat_encoder, encode_chunk, read_prompts
from hf_specverify.benchmark.runs import pad_token_id
from hf_specverify.drafting import DraftTree
from hf_specverify.verification import GeneratorDraws, Verifier, VerifierInfo

PATHS, LENGTHS, REPEATS, LIKELY = (1, 2, 3, 4), (3, 5, 8), 8, 100


class Replay(Verifier):
    """Decides by traversal, and asks all other verifiers on the way."""

    info = VerifierInfo("replay", True, "paths", "none", "Traversal, with other rules asked.", ("independent",))

    def __init__(self):
        self.traversal, self.draws = sv.get_verifier("traversal"), GeneratorDraws(torch.Generator().manual_seed(0))
        self.accepted = defaultdict(list)

    def verify(self, tree, p, draws):
        walks = [[node for node in walk if node >= 0] for walk in tree.paths.tolist()]
        if all(len(walk) == max(LENGTHS) for walk in walks):
            self.ask(tree, p, walks)
        return self.traversal.verify(tree, p, draws)

    def ask(self, tree, p, walks):
        laws = tree.q.float()
        kept = torch.cat([tree.tokens, p.topk(LIKELY).indices.flatten(), laws.topk(LIKELY).indices.flatten()]).unique()
        place = {token: index for index, token in enumerate(kept.tolist())}
        p, q = reduced(p.float(), kept), reduced(laws, kept)
        for paths in PATHS:
            for length in LENGTHS:
                chosen = [walk[:length] for walk in walks[:paths]]
                tokens = torch.tensor([[place[int(tree.tokens[node])] for node in walk] for walk in chosen])
                rows = torch.stack([q[[0, *(node + 1 for node in walk)]] for walk in chosen])
                rows[:, -1] = 0  # the block simply ends there
                part = DraftTree.from_paths(tokens, rows)
                nodes = [-1] * part.num_nodes
                for mine, theirs in zip(part.paths.tolist(), chosen, strict=True):
                    for new, old in zip(mine, theirs, strict=True):
                        nodes[new] = old
                here = p[[0, *(node + 1 for node in nodes)]]
                for name, info in sv.verifiers().items():
                    fits = (paths == 1) if info.structure == "chain" else (paths > 1 and "independent" in info.drafts)
                    if fits and info.lossless and name not in ("hierarchical", "replay"):
                        rule = sv.get_verifier(name)
                        counts = [len(rule.verify(part, here, self.draws).path) for _ in range(REPEATS)]
                        self.accepted[name, paths, length].append(statistics.mean(counts))


def reduced(laws, kept):
    """(n, V) laws on the kept tokens, and one more for all others."""
    part = laws[:, kept]
    return torch.cat([part, (laws.sum(-1, keepdim=True) - part.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("prompts")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target, draft = load_model(options.target, "bfloat16"), load_model(options.draft, "bfloat16", options.quantization)
    tokenizer, texts = AutoTokenizer.from_pretrained(options.target), read_prompts(options.prompts)
    replay = Replay()
    sv.register_verifier(replay)
    with sv.enabled(target):
        for start in range(0, len(texts), options.batch_size):
            chunk = texts[start : start + options.batch_size]
            inputs = encode_chunk(chat_encoder(tokenizer), chunk, pad_token_id(target, tokenizer), target.device)
            torch.manual_seed(start)
            target.generate(**inputs, assistant_model=draft, verification="replay", num_draft_paths=max(PATHS),
                            num_draft_tokens=max(LENGTHS), do_sample=True, temperature=options.temperature, top_k=0,
                            top_p=1.0, max_new_tokens=options.max_new_tokens)  # fmt: skip
    figures = []
    for (name, paths, length), accepted in replay.accepted.items():
        base = replay.accepted["token", 1, length]
        differences = [mine - theirs for mine, theirs in zip(accepted, base, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        figures.append({"verifier": name, "paths": paths, "length": length, "blocks": len(accepted),
                        "tokens_per_pass": 1 + statistics.mean(accepted),
                        "more_than_token": statistics.mean(differences), "standard_error": error})  # fmt: skip
    for figure in sorted(figures, key=lambda figure: (figure["length"], figure["paths"])):
        print("{verifier:<32} K={paths} L={length}  {tokens_per_pass:.3f} tokens per pass, {more_than_token:+.3f} "
              "against token (± {standard_error:.3f}, {blocks} blocks)".format(**figure))  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps({"temperature": options.temperature, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
