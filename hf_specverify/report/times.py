"""What the report says of time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import fsum

from .work import WorkFigures, ratio

PHASES = ("draft", "companion", "schedule", "target", "verify", "other")
FORWARD_PHASES = ("draft", "companion", "target")


@dataclass(frozen=True)
class TimeFigures(WorkFigures):
    """Figures of time.

    Attributes:
        seconds: wall seconds by phase; its keys are ``PHASES``, its values sum to the wall time of the call.
    """

    seconds: dict[str, float]

    @cached_property
    def total_seconds(self) -> float:
        """Wall seconds of the call: the sum over phases."""
        return fsum(self.seconds.values())

    @cached_property
    def tokens_per_second(self) -> float:
        """Tokens committed per wall second, over all rows."""
        return ratio(self.committed, self.total_seconds)

    @cached_property
    def time_outside_forwards(self) -> float:
        """Share of the wall time that no model forward accounts for: (schedule + verify + other) / total."""
        return ratio(fsum(s for phase, s in self.seconds.items() if phase not in FORWARD_PHASES), self.total_seconds)

    @cached_property
    def time_to_first_token(self) -> float:
        """Seconds from the start of the call to the end of its first step; 0.0 without a step."""
        return self.steps[0].elapsed if self.steps else 0.0

    @cached_property
    def expected_seconds(self) -> float | None:
        """Seconds that the forwards of all steps should take by the call's costs, the reading of the prompt left out.

        What depends on the schedule alone, without the noise of a clock. None unless it is known of every step.
        """
        known = [step.expected_seconds for step in self.steps if step.expected_seconds is not None]
        return fsum(known) if known and len(known) == len(self.steps) else None

    @cached_property
    def slower_than_plain(self) -> float | None:
        """Share of the speculative steps that committed fewer tokens per second than a plain step of their rows would.

        Of the steps whose ``plain_seconds`` is known, the first one left out, for it includes the reading of the
        prompt (2509.24328). None where no step can be judged.
        """
        judged = [
            # The speeds multiplied out, so that neither time may be a divisor.
            sum(step.committed) * step.plain_seconds < len(step.rows) * (step.elapsed - before.elapsed)
            for before, step in pairwise(self.steps)
            if step.mode == "speculative" and step.plain_seconds is not None
        ]
        return sum(judged) / len(judged) if judged else None
