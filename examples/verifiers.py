"""Compare verifiers on a pair of models: block efficiency and speed, as a table and a plot.

    python examples/verifiers.py TARGET DRAFT PROMPT [PROMPT ...]

TARGET and DRAFT are Hub ids or folders of two models with one tokenizer. Writes verifiers.png (needs matplotlib).
"""

import sys

import matplotlib.pyplot as plt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specverify as sv

WAYS = [("token", 1), ("block", 1), ("greedy_multipath_block", 2), ("traversal", 2), ("traversal", 4)]


def main(target_name: str, draft_name: str, *prompts: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target_name, padding_side="left")
    target, draft = (AutoModelForCausalLM.from_pretrained(name, dtype="auto") for name in (target_name, draft_name))
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    efficiency, speed = {}, {}
    with sv.enabled(target):
        for name, paths in [WAYS[0], *WAYS]:  # the first run warms up
            torch.manual_seed(0)
            out = target.generate(**inputs, assistant_model=draft, verification=name, num_draft_paths=paths,
                                  do_sample=True, top_k=0, max_new_tokens=64, return_dict_in_generate=True)  # fmt: skip
            efficiency[f"{name}, K={paths}"] = out.speculation.tokens_per_target_pass
            speed[f"{name}, K={paths}"] = out.speculation.tokens_per_second
    for way, tokens in efficiency.items():
        print(f"{way:<30} {tokens:5.2f} tokens per target pass {speed[way]:7.1f} tokens/s")
    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(10, 3), layout="constrained")
    for axis, values, label in zip(axes, (efficiency, speed), ("tokens per target pass", "tokens/s"), strict=True):
        axis.barh(list(values), list(values.values()))
        axis.set_xlabel(label)
    figure.savefig("verifiers.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
