"""What the report says of tokens: how many there were, which were accepted, and which were scored in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from .steps import Positions, StepRecord


@dataclass(frozen=True)
class WorkFigures:
    """Figures of tokens and passes, over all rows and steps.

    Attributes:
        steps: the records, in order.
    """

    steps: tuple[StepRecord, ...] = field(repr=False)

    @cached_property
    def _positions(self) -> list[Positions]:
        rows = ((s.depths, s.accepted, s.committed) for s in self.steps)
        return [Positions.of(*counts) for row in rows for counts in zip(*row, strict=True)]

    @cached_property
    def drafted(self) -> int:
        """Tokens proposed, over all rows and steps."""
        return sum(sum(step.drafted) for step in self.steps)

    @cached_property
    def verified(self) -> int:
        """Draft tokens that the target scored, those behind a cut included."""
        return sum(sum(step.verified) for step in self.steps)

    @cached_property
    def accepted(self) -> int:
        """Draft tokens that stand in the output."""
        return sum(p.stands for p in self._positions)

    @cached_property
    def rejected(self) -> int:
        """Draft tokens that the target scored and the verifier did not accept; of trees, all off the accepted path."""
        return self.verified - sum(sum(step.accepted) for step in self.steps)

    @cached_property
    def committed(self) -> int:
        """Tokens appended to the rows."""
        return sum(sum(step.committed) for step in self.steps)

    @cached_property
    def target_passes(self) -> int:
        """Scoring forwards of the target: steps. Prefill is not counted."""
        return len(self.steps)

    @cached_property
    def row_passes(self) -> int:
        """Rows scored, summed over steps."""
        return sum(len(step.rows) for step in self.steps)

    @cached_property
    def tokens_per_target_pass(self) -> float:
        """Tokens committed per row and scoring forward (block efficiency): ``committed / row_passes``."""
        return ratio(self.committed, self.row_passes)

    @cached_property
    def acceptance_rate(self) -> float:
        """Share of the verified positions of a path, those not behind a cut, at which a draft token stands."""
        return ratio(self.accepted, sum(p.counted for p in self._positions))

    @cached_property
    def acceptance_by_position(self) -> dict[str, list[float]]:
        """Acceptance at each position of the block, first position first.

        ``"conditional"``: given that all earlier positions were accepted. ``"unconditional"``: over all blocks that
        had the position verified and were not cut before it.
        """
        length = max((depth for step in self.steps for depth in step.depths), default=0)
        stands, observed, counted = (
            _reaching([getattr(p, kind) for p in self._positions], length) for kind in Positions._fields
        )
        return {
            "conditional": [ratio(s, n) for s, n in zip(stands, observed, strict=True)],
            "unconditional": [ratio(s, n) for s, n in zip(stands, counted, strict=True)],
        }

    @cached_property
    def rejected_share(self) -> float:
        """Share of the verified draft tokens that were not accepted (2509.24328): ``rejected / verified``."""
        return ratio(self.rejected, self.verified)

    @cached_property
    def wasted_verification(self) -> float:
        """Share of all tokens of the scoring forwards, roots included: ``rejected / (verified + row_passes)``."""
        return ratio(self.rejected, self.verified + self.row_passes)

    @cached_property
    def verify_lengths(self) -> dict[int, int]:
        """How often each number of verified tokens occurred, over rows and steps."""
        return dict(sorted(Counter(n for step in self.steps for n in step.verified).items()))

    @cached_property
    def draft_lengths(self) -> dict[int, int]:
        """How often each number of drafted tokens occurred, over rows and steps."""
        return dict(sorted(Counter(n for step in self.steps for n in step.drafted).items()))

    @cached_property
    def mode_by_step(self) -> list[str]:
        """``"speculative"`` or ``"plain"`` for each step."""
        return [step.mode for step in self.steps]

    @cached_property
    def choices(self) -> dict[str, int]:
        """How many steps went by each choice of the schedule, the most frequent first; steps without one left out."""
        return dict(Counter(step.choice for step in self.steps if step.choice).most_common())


def ratio(part: float, whole: float) -> float:
    """A share, mean or speed; 0.0 with an empty denominator."""
    return part / whole if whole else 0.0


def _reaching(counts: Iterable[int], length: int) -> list[int]:
    """For each position below ``length``, how many of the counts exceed it."""
    of = Counter(counts)
    return [sum(times for count, times in of.items() if count > position) for position in range(length)]
