"""Calibration runs: ordinary speculative decoding that writes down signals and outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..drafting.tree_batch import TreeBatch
from .companion import Companion
from .fixed import FixedLength
from .signal_values import compute_signals
from .signals import SIGNALS
from .tree_schedule import signals_of

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from ..drafting.batch import DraftBatch
    from .schedule import StepOutcome


class RecordingSchedule(FixedLength):
    """Verifies all that is drafted and keeps, for every position that verification reached, its signals and outcome.

    Positions behind the first rejected one are unobserved (2509.24328, §4). The outcome is the acceptance probability,
    which has less variance than the coin flip. Of a dynamic tree all children of the root and of the accepted nodes are
    observed, and the outcome is p of their token.

    Args:
        num_draft_tokens: drafted and verified per row and step.
        signals: to be recorded.
        companion: gives S, A and c; None if none of them is.
    """

    def __init__(self, num_draft_tokens: int, signals: tuple[str, ...], companion: Companion | None) -> None:
        super().__init__(num_draft_tokens)
        self.signals, self.companion = signals, companion
        self.draft_signals = tuple(
            name for name in signals if SIGNALS[name].needs != "companion" and name != "position"
        )
        self.wants_outcomes = True
        self.values: dict[str, list[Tensor]] = {name: [] for name in signals}
        self.outcomes: list[Tensor] = []
        self.groups: list[Tensor] = []
        self._of_step: dict[str, Tensor] = {}

    def choose(self, drafts: DraftBatch | TreeBatch, state: BatchState) -> DraftBatch | TreeBatch:
        """All; the signals are computed on the way."""
        self._of_step = {}
        if isinstance(drafts, TreeBatch):
            self._of_step = signals_of(drafts) if max(drafts.lengths) else {}
        elif max(drafts.lengths):
            c = None if self.companion is None else self.companion.laws(state, drafts)
            known = dict(drafts.signals or {})
            missing = [name for name in self.signals if name not in known]
            self._of_step = known | compute_signals(missing, drafts.tokens, drafts.q, c)
        return drafts

    def learn(self, outcome: StepOutcome) -> None:
        """Keep the positions that were reached."""
        if not self._of_step:
            return
        places = outcome.decided
        for name in self.signals:
            self.values[name].append(self._of_step[name].cpu()[places])
        self.outcomes.append(outcome.acceptance.cpu()[places].clamp(0, 1))
        self.groups.append(torch.tensor(outcome.rows)[:, None].expand_as(places)[places])

    def samples(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Signals (n,) by name, outcomes (n,) float32, and the row (n,) long that each is from."""
        empty = [torch.zeros(0)]
        values = {name: torch.cat(parts or empty) for name, parts in self.values.items()}
        groups = torch.cat(self.groups) if self.groups else torch.zeros(0, dtype=torch.long)
        return values, torch.cat(self.outcomes or empty), groups
