"""Compare what a feature head can draft: chains, dynamic trees, and what schedules leave of them.

    python examples/head_drafts.py TARGET HEAD PROMPTS --batch-size 8 --num-prompts 16 --repeats 3

TARGET and HEAD are names on the Hub or folders; HEAD also the name of a head that comes with the library. float32,
greedy unless a temperature is given. Every way answers a batch in turn; ratios are to plain decoding of the same turn,
over all batches of it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specverify as sv
from hf_specverify.benchmark.prompts import chat_encoder, encode_chunk, read_prompts
from hf_specverify.benchmark.runs import pad_token_id
from hf_specverify.scheduling import CostModel


def load_head(name: str, target: Any, packed: bool, **options: Any) -> sv.FeatureHead:
    head = sv.FeatureHead.from_pretrained(name, target, **options)
    if packed:
        sv.pack_weights(head)
    return head


def ways(target: Any, name: str, packed: bool, costs: CostModel) -> dict[str, dict[str, Any]]:
    """Arguments of `generate` by what they are called; plain decoding has none."""
    chain = load_head(name, target, packed)
    found: dict[str, dict[str, Any]] = {"plain": {}}
    for length in (1, 2, 3):
        found[f"chain of {length}"] = {"assistant_model": chain, "num_draft_tokens": length}
    found["chain, auto"] = {
        "assistant_model": chain, "num_draft_tokens": 4, "verify_length": "auto", "costs": costs,
    }  # fmt: skip
    for width, nodes in ((2, 4), (3, 7), (4, 12)):
        tree = load_head(name, target, packed, tree=sv.DynamicTree(width, nodes))
        options = {"assistant_model": tree, "num_draft_tokens": 3, "verification": "traversal"}
        found[f"tree of {nodes}"] = options
        found[f"tree of {nodes}, cut"] = {**options, "verify_length": "goodput", "costs": costs}
    return found


class Tally:
    """What a way took and brought, over all batches of a turn."""

    def __init__(self) -> None:
        self.seconds: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.passes = self.scored = self.kept = self.committed = 0

    def add(self, turn: int, seconds: float, output: Any, prompt: int, pad: int) -> None:
        self.seconds[turn] += seconds
        self.tokens[turn] += int((output.sequences[:, prompt:] != pad).sum())
        report = getattr(output, "speculation", None)
        if report is not None:
            self.passes += report.committed / report.tokens_per_target_pass
            self.scored, self.kept = self.scored + report.verified, self.kept + report.acceptance_rate * report.verified
            self.committed += report.committed

    def speeds(self) -> list[float]:
        """Tokens per second, by turn: sampled answers are of different length."""
        return [self.tokens[turn] / self.seconds[turn] for turn in sorted(self.seconds)]

    def figures(self) -> str:
        accepted = f"{self.kept / self.scored:.2f}" if self.scored else "–"
        return f"{self.committed / self.passes:.2f} | {self.scored / self.committed:.2f} | {accepted}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("head")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--packed", action="store_true", help="all ways with weights ordered for the processor")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    if arguments.packed:
        sv.pack_weights(target)
    pad = pad_token_id(target, tokenizer)
    texts = read_prompts(arguments.prompts)[: arguments.num_prompts]
    encode, rows = chat_encoder(tokenizer), arguments.batch_size
    batches = [encode_chunk(encode, texts[at : at + rows], pad, target.device) for at in range(0, len(texts), rows)]
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": pad, "return_dict_in_generate": True}
    if arguments.temperature:
        options |= {"do_sample": True, "temperature": arguments.temperature, "top_k": 0, "top_p": 1.0}
    head = load_head(arguments.head, target, arguments.packed)
    costs = CostModel.profile(
        target, head, batch_sizes=sorted({1, rows}), tokens=(1, 2, 4, 8, 13), context=batches[0]["input_ids"].shape[1]
    )
    given_ways = ways(target, arguments.head, arguments.packed, costs)
    tallies = {name: Tally() for name in given_ways}
    for turn in range(arguments.repeats + 1):
        for inputs in batches if turn else batches[:1]:  # the first turn warms up
            for name, given in given_ways.items():
                torch.manual_seed(turn)
                limit = arguments.max_new_tokens if turn else 8
                begin = time.perf_counter()
                with sv.enabled(target):
                    output = target.generate(**inputs, **given, **options, max_new_tokens=limit)
                if turn:
                    tallies[name].add(turn, time.perf_counter() - begin, output, inputs["input_ids"].shape[1], pad)
    plain = tallies.pop("plain")
    print("| drafts | tokens per pass | scored drafts a token | accepted | times plain: median, least, most |")
    print("| --- | --- | --- | --- | --- |")
    for name, tally in tallies.items():
        ratios = [own / before for own, before in zip(tally.speeds(), plain.speeds(), strict=True)]
        spread = f"{statistics.median(ratios):.2f}, {min(ratios):.2f}, {max(ratios):.2f}"
        print(f"| {name} | {tally.figures()} | {spread} |")


if __name__ == "__main__":
    main()
