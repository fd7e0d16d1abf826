"""Verify what pays, and draft what pays: goodput over the predicted acceptance of every token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..drafting.batch import DraftBatch
from .behind import RowsBehind
from .calibration import CalibrationTable
from .call_costs import CallCosts, StepCosts
from .companion import Companion
from .cutting import cut, cut_drawn, looks
from .inquiry import Inquiry
from .online import OnlineCalibration
from .schedule import Schedule, StepOutcome
from .signal_values import compute_signals
from .signals import SIGNALS, own_signals
from .speed_up import SpeedUp, promised
from .stopper import GoodputStopper

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from ..drafting.tree_batch import TreeBatch


class GoodputSchedule(Schedule):
    """Lets the target verify those tokens that raise the batch's goodput (2509.24328, §4), and stops drafts early.

    Where the target samples, the draft was drawn, and a signal looks at the drawn token, the cut is corrected by a null
    token and the output keeps the target's law exactly (see `schedule_drawn`); elsewhere any cut is exact.

    Args:
        num_draft_tokens: drafted per row and step, at most.
        table: predicts acceptance from signals.
        prices: what the call's steps cost.
        companion: gives the signals S, A and c; None if the table needs none of them.
        sampling: whether the target samples.
        verifies: False verifies all that is drafted, so that only drafting is scheduled.
        stops: whether drafting stops early.
        online: follows the text; None leaves the table as it is.
        hesitates: whether the companion is left alone where earlier steps say that it does not pay, see `Inquiry`.
    """

    name = "goodput"
    wants_outcomes = True

    def __init__(
        self,
        num_draft_tokens: int,
        table: CalibrationTable,
        prices: CallCosts,
        companion: Companion | None,
        sampling: bool,
        *,
        verifies: bool = True,
        stops: bool = False,
        online: OnlineCalibration | None = None,
        hesitates: bool = False,
    ) -> None:
        self.num_draft_tokens, self.prices, self.costs = num_draft_tokens, prices, prices.costs
        self.companion, self.sampling, self.verifies, self.online = companion, sampling, verifies, online
        self.speed_up, self.inquiry, self.behind = SpeedUp(), Inquiry(hesitates), RowsBehind(prices)
        self.draft_signals = tuple(name for name in own_signals(table.names) if name != "position")
        self._follow(table)
        self._stopper = GoodputStopper(self.own or table, prices, self.speed_up) if stops else None
        self.stopper = self._stopper
        self._step: StepCosts | None = None
        self._weights: Tensor | None = None
        self._begin(0)

    def _follow(self, table: CalibrationTable) -> None:
        own = own_signals(table.names)
        self.table, self.own = table, table.marginal(own) if own else None
        if self.companion is not None:
            self.inquiry.follow(table)

    def _begin(self, passes: int, drafted: list[int] | None = None) -> None:
        """A step drafts in so many passes, so many tokens for each row; nothing else is known of it yet."""
        self._passes, self._drafted = passes, drafted
        self.asked = None
        self._signals: dict[str, Tensor] = {}

    def draft_lengths(self, room: list[int], state: BatchState) -> list[int]:
        """As many as there is space for, up to the fixed number."""
        context = max(state.lengths)
        self._step = self.prices.step(len(room), context)
        if not self.speed_up.is_known:
            self.speed_up.assume(promised(self.prices, len(room), context, self.table.mean))
        generated = [length - state.prompt_length for length in state.lengths]
        self._weights = self.behind.weights(state.rows, generated, room, context)
        if self._stopper is not None:
            self._stopper.begin(len(room), context, self._weights)
            # To cut what the stopper has looked at would not be exact, see `worth_drafting`.
            cuts = self.verifies and self.companion is not None and self.inquiry.hesitates and self.inquiry.asks_all
            self._stopper.is_active = not (cuts and self.sampling and len(room) > 1)
        return [min(self.num_draft_tokens, space) for space in room]

    def choose(self, drafts: DraftBatch | TreeBatch, state: BatchState) -> DraftBatch:
        """The part of each row's chain that pays."""
        assert isinstance(drafts, DraftBatch)
        self._begin(max(drafts.lengths), list(drafts.lengths))
        stops = self._stopper is not None and self._stopper.is_active
        self.choice = ("stop" if stops else "fixed") if self._passes else "plain"
        drawn = self.sampling and drafts.q is not None
        clash = stops and drawn and len(drafts.lengths) > 1
        if not self._passes:
            return drafts
        self._signals = own = self._own_signals(drafts)
        if not self.verifies or clash:
            return drafts
        is_warm = self.online is None or self.online.is_warm
        if not is_warm and self.companion is None:
            return drafts
        predicted, table, c = self._predict(drafts, state, own, drawn)  # also to learn what answers mean
        if not is_warm:
            return drafts
        self.choice = ("stop, " if stops else "") + ("cut" if self.asked is None else "cut with companion")
        latency = self._latency(len(drafts.lengths))
        if drawn and looks(table):
            return cut_drawn(drafts, predicted, latency, table, self._signals, c, self._weights)
        return cut(drafts, predicted, latency, self._weights)

    def _own_signals(self, drafts: DraftBatch) -> dict[str, Tensor]:
        """(B, L) of every signal that is known without the companion."""
        known = dict(drafts.signals or {})
        missing = [name for name in own_signals(self.table.names) if name not in known]
        return known | compute_signals(missing, drafts.tokens, laws_of(drafts))

    def _latency(self, rows: int) -> Tensor:
        """Seconds of this step by the draft tokens verified, what was spent before the target's pass included."""
        assert self._step is not None
        spent = self._step.seconds(self._passes, 0, self.asked) - self._step.seconds(0, 0)
        return spent + self._step.verify[: rows * self._passes + 1]

    def _predict(
        self, drafts: DraftBatch, state: BatchState, own: dict[str, Tensor], drawn: bool
    ) -> tuple[Tensor, CalibrationTable, Tensor | None]:
        """(B, L) predicted acceptance, the table that it is of, and the companion's laws if it was asked."""
        assert self._step is not None
        if self.companion is None:
            return self.table.predict(own), self.table, None
        lengths = self.inquiry.lengths(drafts, own, drawn, self._step, self.speed_up.rate(self._step), self._weights)
        if self.own is not None and not max(lengths):
            return self.own.predict(own), self.own, None
        part = drafts.shortened(lengths)
        c = self.companion.laws(state, part)
        self.asked, width = sum(lengths), part.tokens.shape[1]
        answers = [name for name in self.table.names if SIGNALS[name].needs == "companion"]
        self._signals = {name: value[:, :width] for name, value in own.items()}
        self._signals |= compute_signals(answers, part.tokens, laws_of(part), c)
        predicted = self.table.predict(self._signals)
        if self.own is not None:
            known, predicted = predicted, self.own.predict(own)
            predicted[:, :width] = torch.where(part.exists, known, predicted[:, :width])
        return predicted, self.table, c

    def learn(self, outcome: StepOutcome) -> None:
        """Let the calibration follow, and the rate of the call."""
        assert self._step is not None and self._weights is not None
        lengths = torch.tensor(outcome.verified.lengths)
        exists = torch.arange(outcome.acceptance.shape[1]) < lengths[:, None]
        survival = outcome.acceptance.cpu().double().clamp(0, 1).masked_fill(~exists, 0).cumprod(dim=1)
        seconds = self._step.seconds(self._passes, int(lengths.sum()), self.asked)
        tokens = 1 + survival.sum(dim=1)
        self.speed_up.add(float((tokens * self._weights).sum()), seconds, self._step)
        drafted = self._drafted or [0] * len(outcome.rows)
        told = [not had or count > 0 for had, count in zip(drafted, outcome.verified.lengths, strict=True)]
        self.behind.learn(outcome.rows, tokens, told)
        if self.online is not None and all(name in self._signals for name in self.table.names):
            signals, acceptance = _reached(outcome, self._signals, self.table.names)
            self.online.learn(signals, acceptance)
            if self.online.table is not self.table:
                self._follow(self.online.table)
                if self._stopper is not None:
                    self._stopper.follow(self.own or self.table)

    @property
    def drift(self) -> float | None:
        """How much more is accepted lately than the calibration said; None where it is not followed."""
        return None if self.online is None else self.online.drift


def laws_of(drafts: DraftBatch) -> Tensor | None:
    """(B, L, V) the laws of the drafted tokens, without rows behind them."""
    return None if drafts.q is None else drafts.q[:, : drafts.tokens.shape[1]]


def _reached(
    outcome: StepOutcome, signals: dict[str, Tensor], names: tuple[str, ...]
) -> tuple[dict[str, Tensor], Tensor]:
    """(n,) the signals and acceptances of the positions that were reached, as far as signals go."""
    width = min(outcome.acceptance.shape[1], *(signals[name].shape[1] for name in names))
    places = torch.arange(width) < torch.tensor(outcome.reached)[:, None]
    kept = {name: signals[name][:, :width].cpu()[places] for name in names}
    return kept, outcome.acceptance[:, :width].cpu()[places].clamp(0, 1)
