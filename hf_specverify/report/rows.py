"""What the report says of single rows: whether some of a batch got less than others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import ceil

from .work import WorkFigures

TENTH = 10  # one row in so many is among the worst


class RowFigures(WorkFigures):
    """Figures of rows, and of how unequal they are."""

    @cached_property
    def verified_by_row(self) -> dict[int, float]:
        """For each row: draft tokens verified per scoring forward that the row was in."""
        tokens: Counter[int] = Counter()
        passes: Counter[int] = Counter()
        for step in self.steps:
            for row, verified in zip(step.rows, step.verified, strict=True):
                tokens[row] += verified
                passes[row] += 1
        return {row: tokens[row] / passes[row] for row in sorted(passes)}

    @cached_property
    def mean_verified_worst_rows(self) -> float:
        """Mean of ``verified_by_row`` over the tenth of the rows that got least, rounded up; 0.0 without a row."""
        worst = sorted(self.verified_by_row.values())[: ceil(len(self.verified_by_row) / TENTH)]
        return sum(worst) / len(worst) if worst else 0.0

    @cached_property
    def seconds_per_token(self) -> dict[int, float]:
        """For each row that got tokens: seconds from the start of the call to its last commit, per token."""
        tokens: Counter[int] = Counter()
        last: dict[int, float] = {}
        for step in self.steps:
            for row, committed in zip(step.rows, step.committed, strict=True):
                if committed:
                    tokens[row] += committed
                    last[row] = step.elapsed
        return {row: last[row] / tokens[row] for row in sorted(tokens)}

    @cached_property
    def row_latency_tail(self) -> dict[str, float]:
        """Median, 95th percentile and maximum of ``seconds_per_token`` over rows; 0.0 without a row."""
        ordered = sorted(self.seconds_per_token.values())
        return {name: _quantile(ordered, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linearly interpolated between values in rising order; 0.0 of none."""
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
