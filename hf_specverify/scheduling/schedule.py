"""What a schedule is: it says how many tokens to draft, and which of them the target verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..drafting.tree_batch import TreeBatch

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from ..drafting.batch import DraftBatch
    from ..drafting.drafter import DraftStopper
    from .companion import Companion
    from .cost import CostModel


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """What verification said of the drafts of one step.

    Attributes:
        rows: the active rows, by their index in the batch.
        verified: what the target scored: chains, or trees that nothing was drawn for.
        acceptance: (A, L) float32, the acceptance probability of every verified token, given that it is reached:
            min(1, p/q), of a tree's nodes p, or whether it is the greedy target's own choice; behind a row's own tokens
            anything.
        accepted: tokens accepted, by row.
        seconds: wall time of the step.
        path: (A, D) long, the accepted nodes of trees, anything beyond their number; None for chains.
    """

    rows: list[int]
    verified: DraftBatch | TreeBatch
    acceptance: Tensor
    accepted: list[int]
    seconds: float
    path: Tensor | None = None

    @property
    def decided(self) -> Tensor:
        """(A, L) bool, on the CPU: what verification decided on, which is all that stands behind an accepted token."""
        if self.path is None:
            return torch.arange(self.acceptance.shape[1]) < torch.tensor(self.reached)[:, None]
        trees, path = self.verified, self.path.cpu()
        assert isinstance(trees, TreeBatch)
        is_accepted = torch.arange(path.shape[1]) < torch.tensor(self.accepted)[:, None]
        open_ = torch.zeros(len(path), trees.tokens.shape[1] + 1, dtype=torch.bool)
        open_[:, 0] = True  # the root
        open_.scatter_(1, torch.where(is_accepted, path + 1, 0), True)
        return open_.gather(1, trees.parents.cpu() + 1) & trees.exists.cpu()

    @property
    def reached(self) -> list[int]:
        """How many positions of each chain were decided: the accepted ones and the first one that was not."""
        return [min(count + 1, length) for count, length in zip(self.accepted, self.verified.lengths, strict=True)]


class Schedule(ABC):
    """How much to draft and to verify, in one call.

    Attributes:
        draft_signals: what the drafter is to say of its tokens.
        stopper: stops rows while they are being drafted; None lets them go on.
        wants_outcomes: whether `learn` is to be called.
        companion: reads along with the rows; None where no signal needs it.
        name: what the report calls it.
        choice: what it chose in the last step, in words.
        drift: how much more is accepted lately than its calibration said; None where nothing follows that.
        costs: of forwards, if they are known.
        prices_drafts: whether the costs say what drafts cost; those of a drafter without a model are free.
        asked: draft tokens of the last step that the companion read; None if it was left alone.
    """

    name = "fixed"
    choice = ""
    costs: CostModel | None = None
    prices_drafts = True
    asked: int | None = None

    draft_signals: tuple[str, ...] = ()
    stopper: DraftStopper | None = None
    wants_outcomes = False
    companion: Companion | None = None

    @abstractmethod
    def draft_lengths(self, room: list[int], state: BatchState) -> list[int]:
        """Tokens to draft for each active row, which has space for room[i] of them."""

    def choose(self, drafts: DraftBatch | TreeBatch, state: BatchState) -> DraftBatch | TreeBatch:
        """What of the drafts the target verifies; here all."""
        return drafts

    @property
    def drift(self) -> float | None:
        """See the class."""
        return None

    def plain_seconds(self, state: BatchState) -> float | None:
        """What plain decoding would take for a step of the active rows; None without costs."""
        if self.costs is None:
            return None
        rows = len(state.rows)
        return self.costs.latency(rows, rows, max(state.lengths))

    def expected_seconds(
        self, drafted: DraftBatch | TreeBatch, verified: DraftBatch | TreeBatch, state: BatchState
    ) -> float | None:
        """What the forwards of a step should take by the costs.

        None where they say nothing of it: without costs, for trees, and where the draft has no price.
        """
        if self.costs is None or isinstance(drafted, TreeBatch) or not self.prices_drafts:
            return None
        rows, context, roles = len(state.rows), max(state.lengths), self.costs.roles
        seconds = self.costs.latency(rows + sum(verified.lengths), rows, context)
        if "draft" in roles:
            seconds += max(drafted.lengths) * self.costs.latency(rows, rows, context, "draft")
        if self.asked is not None and "companion" in roles:
            seconds += self.costs.latency(rows + self.asked, rows, context, "companion")
        return seconds

    def learn(self, outcome: StepOutcome) -> None:  # noqa: B027 - most schedules have nothing to learn
        """Take note of a step."""

    @property
    def is_ready(self) -> bool:
        """Whether a step may draft: a companion that reads the target's states waits until the prompt was read."""
        return self.companion is None or self.companion.is_ready

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """Hand the target's states on to the companion, see `DraftSession.see`."""
        if self.companion is not None:
            self.companion.see(states, prompt)

    def commit(self, state: BatchState) -> None:
        """The state has the step's tokens: the companion takes back the others."""
        if self.companion is not None:
            self.companion.commit(state)

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        if self.companion is not None:
            self.companion.select(places)
