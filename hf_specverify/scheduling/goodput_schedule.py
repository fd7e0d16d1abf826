"""Verify what pays: goodput over the predicted acceptance of every drafted token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..drafting.batch import DraftBatch
from .calibration import CalibrationTable
from .companion import Companion
from .cost import CostModel
from .cutoff import admission_cutoff
from .drawn import admitted, schedule_drawn
from .goodput import schedule_batch
from .online import OnlineCalibration
from .schedule import Schedule, StepOutcome
from .signal_values import compute_signals, vocabulary_signals
from .signals import SIGNALS
from .stopper import GoodputStopper

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from ..drafting.tree_batch import TreeBatch


class GoodputSchedule(Schedule):
    """Drafts a fixed number of tokens and lets the target verify those that raise the batch's goodput (2509.24328, §4).

    Where the target samples, the draft was drawn, and a signal looks at the drawn token, the cut is corrected by a null
    token and the output keeps the target's law exactly (see `schedule_drawn`); elsewhere any cut is exact.

    Args:
        num_draft_tokens: drafted per row and step.
        table: predicts acceptance from signals.
        costs: what the target's forward costs.
        companion: gives the signals S, A and c; None if the table needs none of them.
        sampling: whether the target samples.
        verifies: False verifies all that is drafted, so that only drafting is scheduled.
        stopper: stops drafting; None drafts the fixed number.
        online: follows the text; None leaves the table as it is.
    """

    def __init__(
        self,
        num_draft_tokens: int,
        table: CalibrationTable,
        costs: CostModel,
        companion: Companion | None,
        sampling: bool,
        verifies: bool = True,
        stopper: GoodputStopper | None = None,
        online: OnlineCalibration | None = None,
    ) -> None:
        self.num_draft_tokens, self.table, self.costs = num_draft_tokens, table, costs
        self.online, self.wants_outcomes = online, online is not None
        self._signals_of_step: dict[str, Tensor] = {}
        self.companion, self.sampling = companion, sampling
        self.verifies, self.stopper, self._stopper = verifies, stopper, stopper
        self.looks = any(SIGNALS[name].looks_at_drawn_token for name in table.names)
        self.draft_signals = tuple(
            name for name in table.names if SIGNALS[name].needs != "companion" and name != "position"
        )

    def draft_lengths(self, room: list[int], state: BatchState) -> list[int]:
        """As many as there is space for, up to the fixed number."""
        if self._stopper is not None:
            self._stopper.begin(len(room), self.num_draft_tokens, max(state.lengths))
        return [min(self.num_draft_tokens, space) for space in room]

    def choose(self, drafts: DraftBatch | TreeBatch, state: BatchState) -> DraftBatch:
        """The part of each row's chain that pays."""
        assert isinstance(drafts, DraftBatch)
        drawn = self.sampling and drafts.q is not None
        must_correct = drawn and self.looks
        # The stopper has looked at the tokens of all rows; to cut some of them afterwards is exact for one row only.
        clash = self.stopper is not None and drawn and len(drafts.lengths) > 1
        self._signals_of_step = {}
        if not max(drafts.lengths):
            return drafts
        if not self.verifies or clash:
            # What the drafter said is all that is needed to learn from.
            self._signals_of_step = dict(drafts.signals or {}) if self.companion is None else {}
            return drafts
        c = None if self.companion is None else self.companion.laws(state, drafts)
        self._signals_of_step = signals = self._signals(drafts, c)
        if self.online is not None and not self.online.is_warm:
            return drafts
        predicted = self.table.predict(signals).clamp(0, 1)
        drafted = torch.tensor(drafts.lengths, device=predicted.device)
        latency = self._latency(drafts, state)
        if not must_correct:
            survival = predicted.double().cumprod(dim=1)
            return drafts.shortened(schedule_batch(survival, latency, drafted).lengths.tolist())
        schedule = schedule_drawn(predicted, latency, drafted)
        required = schedule.required

        def admit(rows: Tensor, places: Tensor) -> Tensor:
            return self._admitted(drafts, c, signals, required, rows, places)

        return drafts.corrected(schedule.lengths.tolist(), schedule.cut.tolist(), admit)

    def _signals(self, drafts: DraftBatch, c: Tensor | None) -> dict[str, Tensor]:
        """(A, L) of every signal of the table."""
        known = dict(drafts.signals or {})
        missing = [name for name in self.table.names if name not in known]
        q = None if drafts.q is None else drafts.q[:, : drafts.tokens.shape[1]]
        return known | compute_signals(missing, drafts.tokens, q, c)

    def _admitted(
        self,
        drafts: DraftBatch,
        c: Tensor | None,
        drawn: dict[str, Tensor],
        required: Tensor,
        rows: Tensor,
        places: Tensor,
    ) -> Tensor:
        """(m, V) bool, which tokens would have been admitted at some places, had they been drawn."""
        assert drafts.q is not None
        by_token = [name for name in self.table.names if SIGNALS[name].looks_at_drawn_token]
        fixed = {name: drawn[name][rows, places] for name in self.table.names if name not in by_token}
        values = vocabulary_signals(by_token, drafts.q[rows, places], None if c is None else c[rows, places])
        if len(by_token) == 1 and self.table.directions[by_token[0]] == "increasing":
            cutoff = admission_cutoff(self.table, by_token[0], required[rows, places], fixed)
            return values[by_token[0]] >= cutoff[:, None]
        known = {name: value[:, None] for name, value in fixed.items()}
        return admitted(self.table.predict({**values, **known}).clamp(0, 1), required[rows, places])

    def _latency(self, drafts: DraftBatch, state: BatchState) -> Tensor:
        rows = len(drafts.lengths)
        return self.costs.verify_table(rows, rows * drafts.tokens.shape[1], max(state.lengths))

    def learn(self, outcome: StepOutcome) -> None:
        """Let the calibration follow."""
        if self.online is None or any(name not in self._signals_of_step for name in self.table.names):
            return
        reached = torch.tensor(outcome.reached)[:, None]
        places = torch.arange(outcome.acceptance.shape[1]) < reached
        width = places.shape[1]
        signals = {name: self._signals_of_step[name][:, :width].cpu()[places] for name in self.table.names}
        self.online.learn(signals, outcome.acceptance.cpu()[places].clamp(0, 1))
        self.table = self.online.table
        if self._stopper is not None:
            self._stopper.follow(self.table)
