"""How far a companion is from the draft that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .decoding.traits import input_device
from .scheduling.signal_values import compute_signals

LONGEST = 512  # tokens read
_ROWS = 64  # positions whose laws are held at once

SAMPLE = """A farmer had three sons who did nothing but quarrel. One day he asked them for a bundle of sticks, tied it
together with a string, and told each of them to break it. None of them could. Then he untied the bundle and gave them
the sticks one by one, and they broke them with ease. "You see," he said, "how it is with you."

def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2

Water boils at 100 degrees Celsius at sea level, but at about 93 degrees on a mountain of 2000 metres, for the pressure
of the air is lower there. So pasta takes longer: a packet that says 10 minutes needs 12 or 13. Salt raises the boiling
point by less than one degree, whatever is said of it.

To solve 3x + 5 = 20, subtract 5 from both sides, which gives 3x = 15, and divide both by 3: x = 5.
"""
"""What is read where the user gives no text: prose, code, facts and arithmetic."""


@dataclass(frozen=True)
class Distance:
    """Draft (law q) and companion (law c) after every token of a text, at temperature 1.

    Attributes:
        tokens: read; there are as many positions.
        total_variation: mean of ½ Σ |q − c|.
        largest_logit_difference: over positions and tokens.
        agreement: share of positions where both have the same most likely token.
        overlap: mean, lowest tenth and median of S = Σ min(q, c) = 1 − TV (2509.24328, section 3).
        acceptance: the same of A = min(1, c/q) at tokens drawn from q.
    """

    tokens: int
    total_variation: float
    largest_logit_difference: float
    agreement: float
    overlap: tuple[float, float, float]
    acceptance: tuple[float, float, float]


def measure_distance(draft: Any, companion: Any, ids: Tensor, seed: int = 0) -> Distance:
    """Compare two models of one vocabulary on a text.

    Args:
        draft: a causal language model.
        companion: another with the same tokens.
        ids: (n,) the text's tokens; the first `LONGEST` are read.
        seed: of the tokens drawn for A.

    Raises:
        ValueError: if there is no token, or the vocabularies differ in size.
    """
    ids = torch.as_tensor(ids)[:LONGEST]
    if ids.ndim != 1 or not len(ids):
        raise ValueError(f"ids must be one row of at least one token, got the shape {tuple(ids.shape)}")
    logits = [_logits(model, ids) for model in (draft, companion)]
    if logits[0].shape != logits[1].shape:
        raise ValueError(f"draft and companion have {logits[0].shape[1]} and {logits[1].shape[1]} tokens; must be one")
    generator = torch.Generator().manual_seed(seed)
    parts: list[dict[str, Tensor]] = []
    for first, second in zip(*(torch.split(part, _ROWS) for part in logits), strict=True):
        first, second = first.float(), second.float()
        q, c = first.softmax(-1), second.softmax(-1)
        drawn = torch.multinomial(q, 1, generator=generator)
        found = compute_signals(("S", "A"), drawn, q[:, None], c[:, None])
        found["logits"] = (first - second).abs().amax(-1)
        found["agree"] = (first.argmax(-1) == second.argmax(-1)).float()
        found["variation"] = 0.5 * (q - c).abs().sum(-1)
        parts.append({name: value.flatten() for name, value in found.items()})
    of = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Distance(
        len(ids),
        float(of["variation"].mean()),
        float(of["logits"].max()),
        float(of["agree"].mean()),
        _summary(of["S"]),
        _summary(of["A"]),
    )


def _logits(model: Any, ids: Tensor) -> Tensor:
    """(n, V) on the CPU, in the model's dtype."""
    with torch.no_grad():
        output = model(input_ids=ids[None].to(input_device(model)), use_cache=False, return_dict=True)
    logits: Tensor = output.logits[0].cpu()
    return logits


def _summary(values: Tensor) -> tuple[float, float, float]:
    tenth, median = torch.quantile(values, torch.tensor([0.1, 0.5])).tolist()
    return float(values.mean()), tenth, median
