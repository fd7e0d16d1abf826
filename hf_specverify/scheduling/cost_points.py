"""Measured forwards, and the seconds between them."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

ROLES = ("target", "draft", "companion")


@dataclass(frozen=True, order=True)
class Point:
    """One measured forward.

    Attributes:
        role: whose it is, one of `ROLES`.
        context: tokens of each row that were cached.
        batch: rows.
        tokens: tokens in the forward over all rows, roots and filler included.
        seconds: median of several.
    """

    role: str
    context: int
    batch: int
    tokens: int
    seconds: float

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role must be one of {ROLES}, got {self.role!r}")
        for name, least in (("context", 0), ("batch", 1), ("tokens", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be an integer from {least}, got {value!r}")
        if not isinstance(self.seconds, float) or not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds must be positive and finite, got {self.seconds!r}")


class Curve:
    """Seconds by tokens, for one role, batch and context."""

    def __init__(self, measured: Sequence[Point]) -> None:
        self.tokens = [point.tokens for point in measured]
        # Disturbances only ever add time. So where seconds fall along tokens the earlier ones are too long.
        self.seconds = list(accumulate((point.seconds for point in reversed(measured)), min))[::-1]

    def at(self, tokens: float) -> float:
        """Interpolated; level below the first point, and along the last slope beyond the last."""
        if len(self.tokens) == 1 or tokens <= self.tokens[0]:
            return self.seconds[0]
        place = min(bisect.bisect_left(self.tokens, tokens), len(self.tokens) - 1)
        slope = (self.seconds[place] - self.seconds[place - 1]) / (self.tokens[place] - self.tokens[place - 1])
        return self.seconds[place - 1] + slope * (tokens - self.tokens[place - 1])


def at_batch(curves: Mapping[int, Curve], tokens: float, batch: int) -> float:
    """Seconds for a batch size, from the curves of the measured ones; beyond them those of the nearest."""
    low, high, share = between(sorted(curves), batch)
    share = min(share, 1.0)
    return (1 - share) * curves[low].at(tokens) + share * curves[high].at(tokens)


def between(measured: Sequence[int], value: float) -> tuple[int, int, float]:
    """The measured numbers around a value, and its share of the way from the first to the second, above 1 beyond."""
    if value <= measured[0] or len(measured) == 1:
        return measured[0], measured[0], 0.0
    place = min(bisect.bisect_left(measured, value), len(measured) - 1)
    low, high = measured[place - 1], measured[place]
    return low, high, (value - low) / (high - low)
