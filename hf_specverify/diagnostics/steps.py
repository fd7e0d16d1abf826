"""What the steps of a speculative call say of single rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..report.steps import Positions, StepRecord


@dataclass
class RowWork:
    """The work of one row of a call.

    Attributes:
        passes: scoring forwards that it was in.
        verified: positions of drafted tokens that the target decided on, those behind a rejection included.
        accepted: of these, at which the draft token stands.
        blocks: for each step, tokens committed before it, tokens drafted, and tokens verified.
        drafted: for each committed token, whether its position was drafted; the others are the target's own.
    """

    passes: int = 0
    verified: int = 0
    accepted: int = 0
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)

    def add(self, drafted: int, depth: int, accepted: int, committed: int) -> None:
        """Take in one step."""
        counts = Positions.of(depth, accepted, committed)
        self.passes += 1
        self.verified += counts.counted
        self.accepted += counts.stands
        self.blocks.append((len(self.drafted), drafted, depth))
        self.drafted.extend(place < depth for place in range(committed))


def work_by_row(steps: Iterable[StepRecord], rows: int) -> list[RowWork]:
    """The work of each of the `rows` rows of a call that drafted chains."""
    found = [RowWork() for _ in range(rows)]
    for step in steps:
        numbers = zip(step.rows, step.drafted, step.depths, step.accepted, step.committed, strict=True)
        for row, drafted, depth, accepted, committed in numbers:
            found[row].add(drafted, depth, accepted, committed)
    return found
