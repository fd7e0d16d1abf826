"""Compare what a feature head can draft: chains, dynamic trees, and what schedules leave of them.

    python examples/head_drafts.py TARGET HEAD PROMPTS --batch-size 8 --repeats 3

TARGET and HEAD are names on the Hub or folders; HEAD also the name of a head that comes with the library. Greedy, in
float32, a single batch. Every way is run in turn; ratios are to plain decoding in the same turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
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
    for width, nodes in ((2, 4), (4, 12)):
        tree = load_head(name, target, packed, tree=sv.DynamicTree(width, nodes))
        options = {"assistant_model": tree, "num_draft_tokens": 3, "verification": "traversal"}
        found[f"tree of {nodes}"] = options
        found[f"tree of {nodes}, cut"] = {**options, "verify_length": "goodput", "costs": costs}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("head")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--packed", action="store_true", help="all ways with weights ordered for the processor")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    if arguments.packed:
        sv.pack_weights(target)
    pad = pad_token_id(target, tokenizer)
    texts = read_prompts(arguments.prompts)[: arguments.batch_size]
    inputs = encode_chunk(chat_encoder(tokenizer), texts, pad, target.device)
    options = {"do_sample": False, "pad_token_id": pad, "return_dict_in_generate": True}
    head = load_head(arguments.head, target, arguments.packed)
    costs = CostModel.profile(
        target, head, batch_sizes=sorted({1, len(texts)}), tokens=(1, 2, 4, 8, 13), context=inputs["input_ids"].shape[1]
    )
    seconds: dict[str, list[float]] = {}
    figures: dict[str, str] = {}
    given_ways = ways(target, arguments.head, arguments.packed, costs)
    for turn in range(arguments.repeats + 1):
        for name, given in given_ways.items():
            begin = time.perf_counter()
            limit = arguments.max_new_tokens if turn else 8  # the first turn warms up
            with sv.enabled(target):
                output = target.generate(**inputs, **given, **options, max_new_tokens=limit)
            if turn:
                seconds.setdefault(name, []).append(time.perf_counter() - begin)
            if given:
                report = output.speculation
                scored = report.verified / report.committed
                figures[name] = f"{report.tokens_per_target_pass:.2f} | {scored:.2f} | {report.acceptance_rate:.2f}"
    print("| drafts | tokens per pass | scored drafts a token | accepted | times plain: median, least, most |")
    print("| --- | --- | --- | --- | --- |")
    for name, figure in figures.items():
        ratios = [plain / own for plain, own in zip(seconds["plain"], seconds[name], strict=True)]
        print(f"| {name} | {figure} | {statistics.median(ratios):.2f}, {min(ratios):.2f}, {max(ratios):.2f} |")


if __name__ == "__main__":
    main()
