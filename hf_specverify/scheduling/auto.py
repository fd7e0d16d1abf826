"""Choose the way of decoding by what it costs and what was accepted so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .call_costs import CallCosts
from .goodput_schedule import GoodputSchedule
from .schedule import Schedule, StepOutcome

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from ..drafting.batch import DraftBatch
    from ..drafting.tree_batch import TreeBatch

MEMORY = 64.0  # blocks that the acceptance estimate looks back on, per position
PRIOR_BLOCKS = 4.0  # weight of what was assumed at first
STAY = 1.03  # another length must promise 3 % more
ASK_AGAIN = 64  # plain steps after which drafting is tried anew, where the draft has read the text already
TYPICAL = 0.7  # acceptance assumed without a calibration


class AutoSchedule(Schedule):
    """Decodes as promises the most tokens per second: plainly, with a draft length, or as `GoodputSchedule` does.

    For each draft length L the batch is expected to commit B·(1 + Σ_{j ≤ L} Π_{i ≤ j} a_i) tokens in L passes of the
    draft and one of the target over B·(L + 1) tokens; a_i is the acceptance at position i, an average over earlier
    steps with exponential forgetting. The draft's reading of the prompt counts too, spread over the tokens that are
    left, so where drafting can't pay the draft is never called. Once drafting has begun, what it brought lately decides
    whether it goes on. How many tokens a row drafts and verifies is left to a `GoodputSchedule`, where the drafter says
    anything of its tokens.

    The way of a step depends on earlier steps only, so the output keeps its law.

    Args:
        prices: what the call's steps cost; without the draft's its passes are free, as for lookup.
        acceptance: assumed until there is something to go by.
        inner: schedules the steps that draft; None drafts the most promising length and verifies all.
    """

    name = "auto"
    wants_outcomes = True

    def __init__(
        self, prices: CallCosts, acceptance: float | None = None, inner: GoodputSchedule | None = None
    ) -> None:
        self.longest, self.prices, self.costs, self.inner = prices.longest, prices, prices.costs, inner
        assumed = TYPICAL if acceptance is None else acceptance
        self.hits = torch.full((self.longest,), assumed * PRIOR_BLOCKS, dtype=torch.float64)
        self.seen = torch.full((self.longest,), PRIOR_BLOCKS, dtype=torch.float64)
        self.length = 0
        self.started, self.plain_steps = False, 0
        if inner is not None:
            self.companion, self.stopper, self.draft_signals = inner.companion, inner.stopper, inner.draft_signals

    def draft_lengths(self, room: list[int], state: BatchState) -> list[int]:
        """None for all rows, the best length, or what the inner schedule says; as far as each has space."""
        self._choose_length(self.rates(len(room), max(state.lengths), sum(room) / len(room)))
        self.plain_steps = 0 if self.length else self.plain_steps + 1
        self.started = self.started or self.length > 0
        if self.inner is not None:
            lengths = self.inner.draft_lengths(room, state)  # it wants to know of every step
            return lengths if self.length else [0] * len(room)
        return [min(self.length, space) for space in room]

    def _choose_length(self, rates: torch.Tensor) -> None:
        best, best_drafting = int(rates.argmax()), int(rates[1:].argmax()) + 1
        if self.inner is not None and "draft" not in self.prices.costs.roles:
            self.length = best_drafting  # drafts are free, and the inner schedule may verify none of them
        elif not self.started:
            self.length = best
        elif self.length == 0:
            # Where speculation has brought too little, the rates are of rows that were stopped, and promise too much.
            promises = self.inner is None and float(rates[best]) > STAY * float(rates[0])
            if promises or self.plain_steps >= ASK_AGAIN:
                self.length = best_drafting
                self._forget(rates)
        elif self.inner is not None:
            self.length = 0 if STAY * self.inner.speed_up.value < 1 else best_drafting
        elif float(rates[best]) > STAY * float(rates[min(self.length, len(rates) - 1)]):
            self.length = best

    def _forget(self, rates: torch.Tensor) -> None:
        if self.inner is not None:
            self.inner.speed_up.assume(max(1.0, float(rates[1:].amax() / rates[0])))

    def choose(self, drafts: DraftBatch | TreeBatch, state: BatchState) -> DraftBatch | TreeBatch:
        """What of the drafts the target verifies."""
        if self.inner is None:
            self.choice = f"fixed {self.length}" if self.length else "plain"
            return drafts
        chosen = self.inner.choose(drafts, state)
        self.choice, self.asked = self.inner.choice, self.inner.asked
        return chosen

    def rates(self, rows: int, context: int, left: float) -> torch.Tensor:
        """(longest + 1,) float64, tokens per second expected of each draft length.

        Args:
            rows: active rows.
            context: tokens of the longest row.
            left: tokens that a row may still get, on average.
        """
        expected = rows * (1 + torch.nn.functional.pad(self.acceptance().cumprod(0).cumsum(0), (1, 0)))
        seconds = self.prices.fixed_seconds(rows, context)
        if not self.started and "draft" in self.prices.costs.roles:
            # A forward costs by its tokens: reading the prompt is like one over all of them.
            reading = self.prices.costs.latency(rows * context, rows, context, "draft")
            steps = (max(left, 1.0) * rows / expected[1:]).clamp(min=1)
            seconds[1:] += reading / steps
        return expected / seconds

    def acceptance(self) -> torch.Tensor:
        """(longest,) acceptance by position, given that it is reached; one that few reached leans on the one before."""
        values: list[float] = []
        for hits, seen in zip(self.hits.tolist(), self.seen.tolist(), strict=True):
            before = values[-1] if values else hits / seen
            values.append((hits + PRIOR_BLOCKS * before) / (seen + PRIOR_BLOCKS))
        return torch.tensor(values, dtype=torch.float64)

    def learn(self, outcome: StepOutcome) -> None:
        """Take in the acceptance of the positions that were reached."""
        places = torch.arange(outcome.acceptance.shape[1])
        reached = places < torch.tensor(outcome.reached)[:, None]
        values = torch.where(reached, outcome.acceptance.cpu().double().clamp(0, 1), 0.0)
        count = reached.sum(0).double()
        width = len(places)
        keep = (1 - 1 / MEMORY) ** count
        self.hits[:width] = self.hits[:width] * keep + values.sum(0)
        self.seen[:width] = self.seen[:width] * keep + count
        if self.inner is not None and self.length:
            self.inner.learn(outcome)

    @property
    def drift(self) -> float | None:
        """Of the inner schedule's calibration."""
        return None if self.inner is None else self.inner.drift
