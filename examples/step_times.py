"""Time one step of every verifier, number of paths and length, and say what that makes of the tokens that it accepts.

    python examples/step_times.py TARGET DRAFT PROMPTS --batch-size 4 [--quantization nf4] --json steps.json
    python examples/step_times.py --speed steps.json replay_1.json replay_0.6.json

How long a step takes hardly depends on what is accepted, so a few steps tell it; how much is accepted takes many
drafts, which `replay_verifiers.py` gives. Together they are a speed with little chance in it: tokens per pass over
seconds per step. Only steps in which all rows are at work count, the first one (it ends the reading of the prompt) not.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import torch
from transformers import AutoTokenizer

import hf_specverify as sv
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.measuring import CommitStamps
from hf_specverify.benchmark.prompts import chat_encoder, encode_chunk, read_prompts
from hf_specverify.benchmark.runs import pad_token_id

LENGTHS, PATHS = (3, 5, 8), (2, 3, 4)


def ways():
    """Every lossless verifier with the numbers of paths that it takes."""
    for name, info in sv.verifiers().items():
        if not info.lossless or name == "hierarchical":
            continue
        if info.structure == "chain":
            yield name, 1
        elif "independent" in info.drafts:
            yield from ((name, paths) for paths in PATHS)


def plain_steps(target, inputs, options):
    stamps = CommitStamps(inputs["input_ids"].shape[1], time.perf_counter())
    target.generate(**inputs, **options, stopping_criteria=[stamps])
    return differences([commit.elapsed for commit in stamps.commits])


def our_steps(target, draft, inputs, options, way, length):
    with sv.enabled(target):
        output = target.generate(
            **inputs, **options, assistant_model=draft, verification=way[0], num_draft_paths=way[1],
            num_draft_tokens=length, return_dict_in_generate=True,
        )  # fmt: skip
    rows = len(inputs["input_ids"])
    return differences([step.elapsed for step in output.speculation.steps if len(step.rows) == rows])


def differences(times):
    return [after - before for before, after in pairwise(times)][1:]


def measure(options):
    target, draft = load_model(options.target, "bfloat16"), load_model(options.draft, "bfloat16", options.quantization)
    tokenizer, texts = AutoTokenizer.from_pretrained(options.target), read_prompts(options.prompts)
    seconds = defaultdict(list)
    for repeat in range(options.repeats):
        chunk = texts[repeat * options.batch_size :][: options.batch_size]
        inputs = encode_chunk(chat_encoder(tokenizer), chunk, pad_token_id(target, tokenizer), target.device)
        length = options.max_new_tokens
        sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
                    "max_new_tokens": length, "min_new_tokens": length}  # fmt: skip
        cells = [(way, length) for length in LENGTHS for way in ways()]
        for place, (way, length) in enumerate(cells):
            torch.manual_seed(repeat)
            if place % 10 == 0:  # plain decoding in between, so that a slow spell of the machine slows both
                seconds["plain", 1, 0] += plain_steps(target, inputs, sampling)
            seconds[way[0], way[1], length] += our_steps(target, draft, inputs, sampling, way, length)
    figures = [{"verifier": name, "paths": paths, "length": length, "steps": len(times),
                "milliseconds": 1000 * statistics.median(times)}
               for (name, paths, length), times in seconds.items()]  # fmt: skip
    options.json.write_text(json.dumps({"batch_size": options.batch_size, "figures": figures}, indent=1))
    for figure in figures:
        print("{verifier:<32} K={paths} L={length}  {milliseconds:7.1f} ms a step ({steps} steps)".format(**figure))


def speed(steps, replays):
    """Print a table of speeds against plain decoding."""
    cost = {(f["verifier"], f["paths"], f["length"]): f["milliseconds"] for f in steps["figures"]}
    replays = sorted(replays, key=lambda replay: replay["temperature"])
    heads = [f"T={replay['temperature']:g}, L={length}" for replay in replays for length in LENGTHS]
    print("| verifier | K |", " | ".join(heads), "|\n| --- | --- |", " | ".join("---" for _ in heads), "|")
    for name, paths in ways():
        cells = []
        for replay in replays:
            found = {(f["verifier"], f["paths"], f["length"]): f["tokens_per_pass"] for f in replay["figures"]}
            for length in LENGTHS:
                way = (name, paths, length)
                cells.append(f"{found[way] * cost['plain', 1, 0] / cost[way]:.2f}")
        print(f"| `{name}` | {paths} |", " | ".join(cells), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("prompts", nargs="?")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speed", type=Path, nargs="+", help="steps.json and files of replay_verifiers.py")
    options = parser.parse_args()
    if options.speed is None:
        measure(options)
    else:
        steps, *replays = [json.loads(path.read_text()) for path in options.speed]
        speed(steps, replays)


if __name__ == "__main__":
    main()
