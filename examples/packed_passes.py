"""Measure what `pack_weights` does to the passes of a model on a CPU: over one token, and over a drafted block.

    python examples/packed_passes.py MODEL --batch-size 1 4 8 --tokens 1 2 4 8

MODEL is a name on the Hub or a folder. float32, a context of 100 random tokens a row. The model runs both ways in
turn; ratios are of neighbouring passes.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import hf_specverify as sv

CONTEXT = 100


def read(model: Any, cache: DynamicCache, tokens: torch.Tensor) -> None:
    # Transformers 5.24 renamed the argument.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    model(tokens, **{name: cache})


def seconds(model: Any, cache: DynamicCache, tokens: torch.Tensor) -> float:
    """Of one pass over (B, n) tokens, which the cache forgets again."""
    begin = time.perf_counter()
    read(model, cache, tokens)
    taken = time.perf_counter() - begin
    cache.crop(-tokens.shape[1])
    return taken


def measure(model: Any, rows: int, count: int, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of passes over (rows, count) tokens, as the model is, and packed."""
    vocabulary = model.config.get_text_config().vocab_size
    cache = DynamicCache(config=model.config)
    read(model, cache, torch.randint(vocabulary, (rows, CONTEXT)))
    tokens, plain, packed = torch.randint(vocabulary, (rows, count)), [], []
    for _ in range(repeats):
        for change, found in ((sv.unpack_weights, plain), (sv.pack_weights, packed)):
            change(model)
            seconds(model, cache, tokens)  # orders the weights, and warms up
            found += [seconds(model, cache, tokens) for _ in range(2)]
    sv.unpack_weights(model)
    return plain, packed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    print("| batch | tokens a row | ms plain | ms packed | plain / packed: median, least, most |")
    print("| --- | --- | --- | --- | --- |")
    with torch.no_grad():
        for rows in arguments.batch_size:
            for count in arguments.tokens:
                plain, packed = measure(model, rows, count, arguments.repeats)
                ratios = [before / after for before, after in zip(plain, packed, strict=True)]
                middle = [1e3 * statistics.median(times) for times in (plain, packed)]
                spread = f"{statistics.median(ratios):.2f}, {min(ratios):.2f}, {max(ratios):.2f}"
                print(f"| {rows} | {count} | {middle[0]:.1f} | {middle[1]:.1f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
