"""One step of a batch, written down."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

MODES = ("speculative", "plain")
COUNTS = ("drafted", "verified", "accepted", "committed")

_LIMITS = (
    ("verified", "drafted", 0),
    ("depths", "verified", 0),
    ("accepted", "depths", 0),
    ("committed", "accepted", 1),
)


@dataclass(frozen=True)
class StepRecord:
    """One step of a batch: what was drafted, scored, accepted and committed for each row in it.

    The six tuples have one entry per row of the step, in the same order.

    Attributes:
        mode: ``"speculative"`` or ``"plain"`` (no draft at all).
        rows: indices of the rows, into the batch as ``generate`` expanded it.
        drafted: tokens proposed for each row.
        verified: of these, tokens that the target scored.
        accepted: of these, tokens that the verifier accepted.
        committed: tokens appended to the row: the accepted ones and the verifier's own next token, less what a
            stopping criterion cut off.
        elapsed: seconds from the start of the call to the end of this step.
        depths: length of each row's longest verified path; by default ``verified``, as on chains.
        plain_seconds: what a plain step of these rows, at their context, would take by the call's costs; None where
            no costs are known.
        choice: what the schedule chose for this step, in its own words; "" where it had nothing to choose.
        expected_seconds: what the forwards of this step should take by the call's costs; None where no costs are known,
            and for trees.

    Raises:
        TypeError, ValueError: a field has the wrong type or value, or the counts of a row contradict each other.
    """

    mode: str
    rows: tuple[int, ...]
    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[int, ...]
    elapsed: float
    depths: tuple[int, ...] = ()
    plain_seconds: float | None = None
    choice: str = ""
    expected_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.depths:
            object.__setattr__(self, "depths", self.verified)
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; allowed are {', '.join(MODES)}")
        for name in ("rows", *COUNTS, "depths"):
            _check_counts(name, getattr(self, name), len(self.rows))
        if len(set(self.rows)) < len(self.rows):
            raise ValueError(f"rows is {self.rows}; a row may stand only once in a step")
        for name, limit, extra in _LIMITS:
            values, limits = getattr(self, name), getattr(self, limit)
            if any(n > most + extra for n, most in zip(values, limits, strict=True)):
                raise ValueError(f"{name} is {values}; allowed is at most {limit}{' + 1' * extra}; {limit} is {limits}")
        check_seconds("elapsed", self.elapsed)
        for name in ("plain_seconds", "expected_seconds"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        if not isinstance(self.choice, str):
            raise TypeError(f"choice is {self.choice!r}; allowed is a str")


class Positions(NamedTuple):
    """How many leading positions of one row's block, in one step, are of each kind."""

    stands: int  # drafted tokens that stand in the output
    observed: int  # accepted, or the first one rejected: behind it nothing was decided
    counted: int  # verified and not behind a cut

    @classmethod
    def of(cls, depth: int, accepted: int, committed: int) -> Positions:
        """Counts of a row that verified a path of `depth` tokens."""
        # Even the verifier's own next token is missing: a stopping criterion ended the row inside the block.
        if committed <= accepted:
            return cls(committed, committed, committed)
        return cls(accepted, min(accepted + 1, depth), depth)


def _check_counts(name: str, values: tuple[int, ...], length: int) -> None:
    if not isinstance(values, tuple) or any(type(n) is not int for n in values):
        raise TypeError(f"{name} is {values!r}; allowed is a tuple of int")
    if len(values) != length:
        raise ValueError(f"{name} has {len(values)} entries; rows has {length}")
    if any(n < 0 for n in values):
        raise ValueError(f"{name} is {values}; allowed is 0 or more")


def check_seconds(name: str, value: float) -> None:
    """Refuse what is no number of seconds.

    Raises:
        TypeError, ValueError: naming the value.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; allowed is a number of seconds")
    if not isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value}; allowed is a finite number of seconds, 0 or more")
