"""What a rule did to the law of the next token, over all positions of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from .bootstrap import Array, Estimate, Ratio, estimate
from .figures import by_prompt
from .law_metrics import LAW_METRICS, MATCHED_METRICS
from .samples import SequenceSample

ENTROPY_EDGES = (0.0, 0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, inf)
"""Bins of the entropy of the target's law, in nats."""


@dataclass(frozen=True)
class LawFigure:
    """One metric over positions.

    Attributes:
        drafted: mean over the positions that were drafted.
        all: mean over all positions; those that were not drafted have the target's law.
        median, high, largest: over drafted positions; `high` is the 95th percentile. None where infinite.
        infinite: share of the drafted positions at which it is infinite; means leave them out.
    """

    drafted: Estimate
    all: Estimate
    median: float | None
    high: float | None
    largest: float | None
    infinite: float


@dataclass(frozen=True)
class EntropyBin:
    """Drafted positions at which the entropy of the target's law lies in low … high nats (None: without end).

    Attributes:
        positions: how many.
        means: by metric; infinite ones are left out.
    """

    low: float
    high: float | None
    positions: int
    means: dict[str, Estimate]


@dataclass(frozen=True, eq=False)
class Positions:
    """All positions of some sequences: for each its prompt, whether it was drafted, and its metrics (inf allowed)."""

    prompt: Any
    drafted: Any
    values: dict[str, Array]

    @classmethod
    def of(cls, sequences: Sequence[SequenceSample]) -> Positions | None:
        """Of those sequences that have positions; None without one."""
        found = [(s.prompt, s.positions) for s in sequences if s.positions is not None]
        if not found:
            return None
        columns = {name: np.concatenate([_numbers(positions[name]) for _, positions in found]) for name in found[0][1]}
        prompt = np.concatenate([np.full(len(positions["drafted"]), number) for number, positions in found])
        return cls(prompt, columns.pop("drafted") > 0, columns)

    def mean(self, metric: str, chosen: Any, prompts: int) -> Estimate:
        """Mean of a metric over the chosen positions (bool) at which it is finite."""
        values = self.values[metric]
        kept = chosen & np.isfinite(values)
        numbers = self.prompt[kept]
        counts = np.bincount(numbers, minlength=prompts).astype(np.float64)
        return estimate(Ratio(by_prompt(numbers, values[kept].tolist(), prompts), counts))


def summarise_laws(positions: Positions, prompts: int) -> dict[str, LawFigure]:
    """Each metric that was measured, over all positions."""
    return {
        metric: _figure(positions, metric, prompts)
        for metric in (*LAW_METRICS, *MATCHED_METRICS)
        if metric in positions.values
    }


def _figure(positions: Positions, metric: str, prompts: int) -> LawFigure:
    values = positions.values[metric][positions.drafted]
    everywhere = np.ones_like(positions.drafted)
    levels = np.quantile(values, [0.5, 0.95, 1.0], method="lower").tolist() if len(values) else [inf] * 3
    median, high, largest = (level if level < inf else None for level in levels)
    return LawFigure(
        drafted=positions.mean(metric, positions.drafted, prompts),
        all=positions.mean(metric, everywhere, prompts),
        median=median,
        high=high,
        largest=largest,
        infinite=float(np.mean(~np.isfinite(values))) if len(values) else 0.0,
    )


def shift_by_entropy(positions: Positions, prompts: int) -> list[EntropyBin]:
    """The metrics over drafted positions by the entropy of the target's law; bins without a position are left out."""
    entropy, bins = positions.values["entropy"], []
    for low, high in pairwise(ENTROPY_EDGES):
        chosen = positions.drafted & (entropy >= low) & (entropy < high)
        if chosen.any():
            means = {name: positions.mean(name, chosen, prompts) for name in positions.values if name != "entropy"}
            bins.append(EntropyBin(low, high if high < inf else None, int(chosen.sum()), means))
    return bins


def _numbers(values: Sequence[float | None]) -> Array:
    return np.array([inf if value is None else value for value in values], dtype=np.float64)
