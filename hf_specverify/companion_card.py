"""The model card that goes with a companion."""

from __future__ import annotations

from .companion_distance import Distance

WAYS = {
    "nf4": "4-bit NormalFloat weights (bitsandbytes)",
    "fp4": "4-bit float weights (bitsandbytes)",
    "int8": "8-bit integer weights (bitsandbytes, LLM.int8)",
    "layers": "the first layers with the final norm and the head, without training",
    "bf16": "weights rounded to bfloat16",
}
"""What every method makes of a draft."""


def write_card(
    name: str,
    method: str,
    base_model: str | None,
    revision: str | None,
    layers: tuple[int, int],
    sizes: tuple[int, int],
    distance: Distance | None,
    own_text: bool,
) -> str:
    """The text of README.md.

    Args:
        name: the companion's.
        method: one of `WAYS`.
        base_model: Hub id of the draft; None for one that has none.
        revision: the draft's commit on the Hub, if known.
        layers: of the companion and of the draft.
        sizes: bytes of the companion's weight files and of the draft's weights in memory.
        distance: to the draft, where it was measured.
        own_text: whether it was measured on a text of the user's.
    """
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if base_model is not None:
        lines.append(f"base_model: {base_model}")
        if method in ("nf4", "fp4", "int8"):
            lines.append("base_model_relation: quantized")
    lines += ["tags:", "- speculative-decoding", "- companion", "---", "", f"# {name}", ""]
    lines += [
        "A companion for speculative verification: it reads what its draft proposes, before the target model does, and",
        "tells which tokens are worth verifying. It is the draft in a cheaper form, and may also draft by itself.",
        "Its licence is that of its base model.",
        "",
        "| | |",
        "|---|---|",
        f"| base model | {base_model or 'a local model'} |",
        f"| revision | {revision or 'not recorded'} |",
        f"| method | {method}: {WAYS[method]} |",
        f"| layers | {layers[0]} of {layers[1]} |",
        f"| weights on disk | {_megabytes(sizes[0])} (the draft's in memory: {_megabytes(sizes[1])}) |",
        "",
        *_distance_lines(distance, own_text),
        "",
        "```python",
        "import hf_specverify as sv",
        "from transformers import AutoModelForCausalLM",
        "",
        f'companion = AutoModelForCausalLM.from_pretrained("{name}")',
        "sv.enable(target)",
        "target.generate(",
        '    **inputs, assistant_model=draft, companion_model=companion, verify_length="goodput", calibration="FOLDER"',
        ")  # of `specverify calibrate`",
        "```",
        "",
    ]
    return "\n".join(lines)


def _distance_lines(distance: Distance | None, own_text: bool) -> list[str]:
    if distance is None:
        return ["Its distance to the draft was not measured, for there was no tokenizer."]
    return [
        f"Distance to the draft, after each of {distance.tokens} tokens of {'a given' if own_text else 'a built-in'} "
        "text, at temperature 1:",
        "",
        "| | mean | lowest tenth below | median |",
        "|---|---|---|---|",
        f"| S, overlap of the two laws | {_row(distance.overlap)} |",
        f"| A, acceptance of a token drawn from the draft | {_row(distance.acceptance)} |",
        "",
        f"Total variation {distance.total_variation:.4f} on average, largest difference of a logit "
        f"{distance.largest_logit_difference:.3g}, same most likely token at {distance.agreement:.1%} of the places.",
    ]


def _row(values: tuple[float, float, float]) -> str:
    return " | ".join(f"{value:.4f}" for value in values)


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.1f} MB"
