"""Compare forms of one draft on the same prompts: dense, int8, with fewer layers, with a head of fewer tokens.

    python examples/draft_forms.py TARGET DRAFT PROMPTS --forms none int8-copy int8-copy+trim:32768 --trim-text TEXT

TARGET and DRAFT are names on the Hub or folders. float32, and for a CPU: weights are packed, but for those in int8.
Every way answers a batch in turn, in an order that changes; ratios are to plain decoding of the same batch.
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
from hf_specverify.benchmark.environment import INT8_COPY, load_model, parse_form, tokens_to_keep
from hf_specverify.benchmark.prompts import chat_encoder, encode_chunk, read_prompts
from hf_specverify.benchmark.runs import pad_token_id


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
        return sum(getattr(report, figure) for report in self.reports)

    def row(self, plain: Tally) -> str:
        ratios = [own / before for own, before in zip(self.speeds, plain.speeds, strict=True)]
        drafted, verified = self.total("drafted"), self.total("verified")
        milliseconds = 1000 * sum(report.seconds["draft"] for report in self.reports)
        passes = sum(report.committed / report.tokens_per_target_pass for report in self.reports)
        figures = (
            f"{milliseconds / drafted:.0f}" if drafted else "–",
            f"{self.total('accepted') / verified:.3f}" if verified else "–",
            f"{self.total('committed') / passes:.2f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        )
        return " | ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--forms", nargs="+", default=["none", "int8-copy"])
    parser.add_argument("--trim-text", type=Path, help="text that says which tokens +trim keeps")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--num-draft-tokens", type=int, default=3)
    parser.add_argument("--auto", action="store_true", help="also with verify_length='auto' and twice the draft tokens")
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target, padding_side="left")
    target, draft = (load_model(name, "float32+packed") for name in (arguments.target, arguments.draft))
    keep = tokens_to_keep(arguments.trim_text, arguments.draft)
    ways: dict[str, dict[str, Any]] = {"plain": {}}
    for form in arguments.forms:
        model, length = formed(draft, form, keep), arguments.num_draft_tokens
        ways[f"{form} | {length}"] = {"assistant_model": model, "num_draft_tokens": length}
        if arguments.auto:
            ways[f"{form} | auto"] = {
                "assistant_model": model, "num_draft_tokens": 2 * length, "verify_length": "auto",
            }  # fmt: skip
    pad, encode, rows = pad_token_id(target, tokenizer), chat_encoder(tokenizer), arguments.batch_size
    texts = read_prompts(arguments.prompts)[: arguments.num_prompts]
    batches = [encode_chunk(encode, texts[at : at + rows], pad, target.device) for at in range(0, len(texts), rows)]
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": pad, "return_dict_in_generate": True}
    if arguments.temperature:
        options |= {"do_sample": True, "temperature": arguments.temperature, "top_k": 0, "top_p": 1.0}
    tallies, names = {name: Tally() for name in ways}, list(ways)
    with sv.enabled(target):
        for name in names:  # warms up
            target.generate(**batches[0], **ways[name], **options, max_new_tokens=8)
        for number, inputs in enumerate(batches):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                torch.manual_seed(number)
                begin = time.perf_counter()
                output = target.generate(**inputs, **ways[name], **options, max_new_tokens=arguments.max_new_tokens)
                tallies[name].add(time.perf_counter() - begin, output, inputs["input_ids"].shape[1], pad)
    plain = tallies.pop("plain")
    print(f"plain: {statistics.median(plain.speeds):.1f} tokens/s")
    print("| draft | drafts | ms a drafted token | accepted of verified | tokens per pass | times plain (least–most) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, tally in tallies.items():
        print(f"| {name} | {tally.row(plain)} |")


if __name__ == "__main__":
    main()
