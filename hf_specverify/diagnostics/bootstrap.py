"""Confidence intervals by drawing the prompts again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
DRAWS, LEVEL = 1000, 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and its confidence interval.

    Attributes:
        value: None where nothing was there to measure.
        low, high: the interval, or None with fewer than two prompts.
    """

    value: float | None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """The value with its interval, in four significant digits."""
        if self.value is None:
            return "–"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{self.value:.4g}{interval}"


@dataclass(frozen=True, eq=False)
class Ratio:
    """A figure that is a ratio of sums over prompts, such as tokens per second.

    Attributes:
        above, below: (n,) what each prompt adds to the sums.
        transform: applied to the ratio; None leaves it.
    """

    above: Array
    below: Array
    transform: Callable[[Array], Array] | None = None

    def value(self) -> float:
        """The ratio over all prompts; NaN with nothing below."""
        return float(self.of(np.arange(len(self.above))[None])[0])

    def of(self, indices: Any) -> Array:
        """(d,) the ratio for each of d selections (d, n) of prompts; NaN with nothing below."""
        above, below = self.above[indices].sum(axis=1), self.below[indices].sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = np.where(below > 0, above / below, np.nan)
        return found if self.transform is None else self.transform(found)


def estimate(ratio: Ratio, seed: int = 0) -> Estimate:
    """The ratio with a percentile interval: `DRAWS` times as many prompts as there are, drawn with replacement."""
    return _estimate(ratio.value(), ratio.of(_selections(len(ratio.above), seed)), len(ratio.above))


def compare(first: Ratio, second: Ratio, seed: int = 0, relative: bool = False) -> Estimate:
    """The difference first - second, or first / second, of figures of the same prompts, drawn together (paired).

    Raises:
        ValueError: if the two have different numbers of prompts.
    """
    if len(first.above) != len(second.above):
        raise ValueError(f"first has {len(first.above)} prompts, second {len(second.above)}; allowed: the same number")
    combine: Callable[[Any, Any], Any] = np.divide if relative else np.subtract
    selections = _selections(len(first.above), seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(combine(np.float64(first.value()), np.float64(second.value())))
        return _estimate(value, combine(first.of(selections), second.of(selections)), len(first.above))


def _selections(prompts: int, seed: int) -> Any:
    """(DRAWS, n) prompt numbers; the same for the same n and seed, so that comparisons are paired."""
    return np.random.default_rng(seed).integers(0, max(prompts, 1), size=(DRAWS, prompts))


def _estimate(value: float, drawn: Array, prompts: int) -> Estimate:
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(value):
        return Estimate(None)
    if prompts < 2 or not len(drawn):
        return Estimate(value)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))
