"""Choose the way of decoding by what it costs and what was accepted so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .cost import CostModel
from .schedule import Schedule, StepOutcome

if TYPE_CHECKING:
    from ..decoding.state import BatchState

MEMORY = 64.0  # blocks that the acceptance estimate looks back on, per position
PRIOR_BLOCKS = 4.0  # weight of what was assumed at first
STAY = 1.03  # another length must promise 3 % more
ASK_AGAIN = 64  # plain steps after which drafting is tried anew, where the draft has read the text already
TYPICAL = 0.7  # acceptance assumed without a calibration


class AutoSchedule(Schedule):
    """Drafts as many tokens as promise the most tokens per second, none included.

    For each draft length L the batch is expected to commit B·(1 + Σ_{j ≤ L} Π_{i ≤ j} a_i) tokens in L passes of the
    draft and one of the target over B·(L + 1) tokens; a_i is the acceptance at position i, an average over earlier
    steps with exponential forgetting. The draft's reading of the prompt counts too, spread over the tokens that are
    left, so where drafting can't pay the draft is never called. The length of a step depends on earlier steps only, so
    the output keeps its law.

    Args:
        longest: the largest draft length considered.
        costs: of the target's and the draft's forwards; without the draft its passes are free, as for lookup.
        acceptance: assumed until there is something to go by.
    """

    wants_outcomes = True

    def __init__(self, longest: int, costs: CostModel, acceptance: float | None = None) -> None:
        self.longest, self.costs = longest, costs
        assumed = TYPICAL if acceptance is None else acceptance
        self.hits = torch.full((longest,), assumed * PRIOR_BLOCKS, dtype=torch.float64)
        self.seen = torch.full((longest,), PRIOR_BLOCKS, dtype=torch.float64)
        self.length = 0
        self.started, self.plain_steps = False, 0
        self._tables: dict[tuple[int, int], torch.Tensor] = {}

    def draft_lengths(self, room: list[int], state: BatchState) -> list[int]:
        """The best length for all rows, as far as each has space."""
        rates = self.rates(len(room), max(state.lengths), sum(room) / len(room))
        best = int(rates.argmax())
        if float(rates[best]) > STAY * float(rates[min(self.length, len(rates) - 1)]) or not self.started:
            self.length = best
        elif self.length == 0 and self.plain_steps >= ASK_AGAIN:
            self.length = max(1, int(rates[1:].argmax()) + 1)
        self.plain_steps = 0 if self.length else self.plain_steps + 1
        self.started = self.started or self.length > 0
        return [min(self.length, space) for space in room]

    def rates(self, rows: int, context: int, left: float) -> torch.Tensor:
        """(longest + 1,) float64, tokens per second expected of each draft length.

        Args:
            rows: active rows.
            context: tokens of the longest row.
            left: tokens that a row may still get, on average.
        """
        expected = rows * (1 + torch.nn.functional.pad(self.acceptance().cumprod(0).cumsum(0), (1, 0)))
        seconds = self._seconds(rows, context).clone()
        if not self.started and "draft" in self.costs.roles:
            # A forward costs by its tokens: reading the prompt is like one over all of them.
            reading = self.costs.latency(rows * context, rows, context, "draft")
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

    def _seconds(self, rows: int, context: int) -> torch.Tensor:
        """(longest + 1,) seconds of a step by its draft length; contexts are told apart by the nearest 64 tokens."""
        key = (rows, context // 64)
        if key not in self._tables:
            draft = self.costs.latency(rows, rows, context, "draft") if "draft" in self.costs.roles else 0.0
            verify = [self.costs.latency(rows * (length + 1), rows, context) for length in range(self.longest + 1)]
            passes = draft * torch.arange(self.longest + 1, dtype=torch.float64)
            self._tables[key] = torch.tensor(verify, dtype=torch.float64) + passes
        return self._tables[key]

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
