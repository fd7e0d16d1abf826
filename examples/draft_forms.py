"""Compare drafters on the same prompts: forms of one draft, prompt lookup, the target's first layers, feature heads.

    python examples/draft_forms.py TARGET DRAFT PROMPTS --forms none int8-copy int8-copy+trim:32768 --trim-text TEXT
    python examples/draft_forms.py TARGET DRAFT PROMPTS --forms none+layers:20 lookup early-exit:8 head:FOLDER --stock

TARGET and DRAFT are names on the Hub or folders. A form is none or int8-copy, with +layers:N and +trim:N behind it; the
others are named as commands name them. float32, and for a CPU: weights are packed, but for those in int8. Every way
answers a batch in turn, in an order that changes; ratios are to plain decoding of the same batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

import hf_specverify as sv
from hf_specverify.benchmark.drafts import LOOKUP, exit_layers, head_name, load_draft
from hf_specverify.benchmark.environment import INT8_COPY, load_model, parse_form, tokens_to_keep
from hf_specverify.benchmark.prompts import chat_encoder, chunk_indices, encode_chunk, read_prompts
from hf_specverify.benchmark.runs import fixed_draft_length, neutral_generation, pad_token_id

DTYPE = "float32+packed"
STOCK = "stock"


def drafter(target: Any, draft: Any, form: str, arguments: argparse.Namespace) -> Any:
    """What a form names: another drafter, or the draft in that form."""
    if form == LOOKUP or exit_layers(form) is not None or head_name(form) is not None:
        return load_draft(form, target, DTYPE, target_name=arguments.target, lookup_ngram=arguments.lookup_ngram)
    return formed(draft, form, tokens_to_keep(arguments.trim_text, arguments.draft))


def formed(draft: Any, form: str, keep: dict[str, Any]) -> Any:
    """The draft in one of its forms, over the same weights."""
    quantization, cuts = parse_form(form)
    if quantization not in ("none", INT8_COPY):
        raise SystemExit(f"{form}: allowed are none and {INT8_COPY}, then +layers:N and +trim:N")
    if "layers" in cuts:
        draft = sv.cut_layers(draft, cuts["layers"])
    if "trim" in cuts:
        draft = sv.trim_vocabulary(draft, cuts["trim"], **keep)
    if quantization == INT8_COPY:
        return sv.int8_copy(draft)
    sv.pack_weights(draft)
    return draft


class Tally:
    """What a way took and brought, by batch."""

    def __init__(self) -> None:
        self.speeds: list[float] = []
        self.reports: list[Any] = []

    def add(self, seconds: float, output: Any, prompt: int, pad: int) -> None:
        self.speeds.append(int((output.sequences[:, prompt:] != pad).sum()) / seconds)
        report = getattr(output, "speculation", None)
        if report is not None:
            self.reports.append(report)

    def total(self, figure: str) -> float:
        return float(sum(getattr(report, figure) for report in self.reports))

    def row(self, plain: Tally) -> str:
        ratios = [own / before for own, before in zip(self.speeds, plain.speeds, strict=True)]
        drafted, verified = self.total("drafted"), self.total("verified")
        milliseconds = 1000 * sum(report.seconds["draft"] for report in self.reports)
        passes = sum(report.committed / report.tokens_per_target_pass for report in self.reports)
        figures = (
            f"{milliseconds / drafted:.1f}" if drafted else "–",
            f"{self.total('accepted') / verified:.3f}" if verified else "–",
            f"{self.total('committed') / passes:.2f}" if passes else "–",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        )
        return " | ".join(figures)


def ways_to_decode(target: Any, draft: Any, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Options of `generate` by "drafter | drafts"; "plain" is without any."""
    length: list[int] = arguments.num_draft_tokens
    ways: dict[str, dict[str, Any]] = {"plain": {}}
    for form in arguments.forms:
        made = drafter(target, draft, form, arguments)
        for fixed in length:
            ways[f"{form} | {fixed}"] = {"assistant_model": made, "num_draft_tokens": fixed}
        if arguments.auto:
            ways[f"{form} | auto"] = {
                "assistant_model": made, "num_draft_tokens": 2 * max(length), "verify_length": "auto",
            }  # fmt: skip
    if arguments.stock:
        for fixed in length:
            ways[f"{STOCK}, none | {fixed}"] = {"assistant_model": draft}
            ways[f"{STOCK}, lookup | {fixed}"] = {
                "prompt_lookup_num_tokens": fixed, "max_matching_ngram_size": arguments.lookup_ngram,
            }  # fmt: skip
    return ways


def answer(target: Any, name: str, way: dict[str, Any], inputs: dict[str, Any], options: dict[str, Any]) -> Any:
    """One call: ours, or Transformers' own where the name says stock or plain."""
    if not name.startswith((STOCK, "plain")):
        with sv.enabled(target):
            return target.generate(**inputs, **way, **options)
    if "assistant_model" not in way:
        return target.generate(**inputs, **way, **options)
    with fixed_draft_length(way["assistant_model"], int(name.split(" | ")[1]), 0.0):
        return target.generate(**inputs, **way, **options)


def compare(target: Any, ways: dict[str, dict[str, Any]], rows: int, texts: list[str], arguments: Any) -> None:
    """Print the table of a batch size."""
    if rows > 1:  # Transformers' own assisted decoding takes one row
        ways = {name: way for name, way in ways.items() if not name.startswith(STOCK)}
    tokenizer = AutoTokenizer.from_pretrained(arguments.target, padding_side="left")
    pad, encode = pad_token_id(target, tokenizer), chat_encoder(tokenizer)
    chunks = chunk_indices(len(texts), rows)  # all of one size, so that costs are measured in the warm-up alone
    batches = [encode_chunk(encode, [texts[at] for at in chunk], pad, target.device) for chunk in chunks]
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": pad, "return_dict_in_generate": True}
    if arguments.temperature:
        options |= {"do_sample": True, "temperature": arguments.temperature, "top_k": 0, "top_p": 1.0}
    tallies, names = {name: Tally() for name in ways}, list(ways)
    with neutral_generation([target], pad):
        for name in names:  # warms up
            answer(target, name, ways[name], batches[0], options | {"max_new_tokens": 8})
        for number, inputs in enumerate(batches):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                torch.manual_seed(number)
                begin = time.perf_counter()
                output = answer(
                    target, name, ways[name], inputs, options | {"max_new_tokens": arguments.max_new_tokens}
                )
                tallies[name].add(time.perf_counter() - begin, output, inputs["input_ids"].shape[1], pad)
    plain = tallies.pop("plain")
    print(f"batch {rows}, plain: {statistics.median(plain.speeds):.1f} tokens/s")
    print(
        "| drafter | drafts | ms a drafted token | accepted of verified | tokens per pass | times plain (least–most) |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for name, tally in tallies.items():
        print(f"| {name} | {tally.row(plain)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--forms", nargs="+", default=["none", "int8-copy"])
    parser.add_argument("--trim-text", type=Path, help="text that says which tokens +trim keeps")
    parser.add_argument("--lookup-ngram", type=int, default=2, help="longest that lookup matches")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1])
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--num-draft-tokens", type=int, nargs="+", default=[3])
    parser.add_argument("--auto", action="store_true", help="also with verify_length='auto' and twice the draft tokens")
    parser.add_argument("--stock", action="store_true", help="also Transformers' own assisted decoding, at batch 1")
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    target, draft = (load_model(name, DTYPE) for name in (arguments.target, arguments.draft))
    texts = read_prompts(arguments.prompts)[: arguments.num_prompts]
    ways = ways_to_decode(target, draft, arguments)
    for rows in arguments.batch_size:
        compare(target, ways, rows, texts, arguments)


if __name__ == "__main__":
    main()
