"""Verify the nodes of dynamic trees that pay: goodput over the predicted reach of every node of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..drafting.pruning import pruned
from ..drafting.tree_batch import TreeBatch
from .behind import RowsBehind
from .calibration import CalibrationTable
from .call_costs import CallCosts, StepCosts
from .online import OnlineCalibration
from .schedule import Schedule, StepOutcome
from .tree_cut import chosen_nodes, reach_probabilities

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from ..drafting.batch import DraftBatch


class TreeSchedule(Schedule):
    """Lets the target verify those nodes of the rows' trees that raise the batch's goodput (2509.24328, §4).

    Trees follow from the committed text alone, so any cut of them is exact, also one that looks at their tokens.

    Args:
        num_draft_tokens: levels per row and step, at most.
        width: nodes of a level that the draft reads, for what a level costs.
        table: predicts p of a node's token from its signals.
        prices: what the call's steps cost, up to the nodes that a tree may have.
        online: follows the text; None leaves the table as it is.
    """

    name = "goodput"
    wants_outcomes = True

    def __init__(
        self,
        num_draft_tokens: int,
        width: int,
        table: CalibrationTable,
        prices: CallCosts,
        online: OnlineCalibration | None = None,
    ) -> None:
        self.num_draft_tokens, self.width, self.prices, self.costs = num_draft_tokens, width, prices, prices.costs
        self.table, self.online, self.behind = table, online, RowsBehind(prices)
        self.draft_signals = tuple(name for name in table.names if name != "position")
        self._step: StepCosts | None = None
        self._weights: Tensor | None = None
        self._context = 0
        self._drafted: tuple[int, ...] = ()

    def draft_lengths(self, room: list[int], state: BatchState) -> list[int]:
        """As many levels as there is space for, up to the fixed number."""
        self._context = max(state.lengths)
        self._step = self.prices.step(len(room), self._context)
        generated = [length - state.prompt_length for length in state.lengths]
        self._weights = self.behind.weights(state.rows, generated, room, self._context)
        return [min(self.num_draft_tokens, space) for space in room]

    def choose(self, drafts: DraftBatch | TreeBatch, state: BatchState) -> TreeBatch:
        """The nodes of each row's tree that pay."""
        assert isinstance(drafts, TreeBatch)
        self._drafted = drafts.lengths
        levels = max(drafts.depths)
        is_warm = self.online is None or self.online.is_warm
        self.choice = ("cut" if is_warm else "fixed") if levels else "plain"
        if not levels or not is_warm:
            return drafts
        reach = reach_probabilities(self.table.predict(signals_of(drafts)), drafts.parents, drafts.exists, levels)
        return pruned(drafts, chosen_nodes(reach, drafts.exists, self._latency(levels, drafts), self._weights))

    def _latency(self, levels: int, drafts: TreeBatch) -> Tensor:
        """Seconds of this step by the nodes verified, drafting included: a token of each row, then the widest level."""
        assert self._step is not None
        rows, spent = len(drafts.lengths), self._step.draft
        if levels > 1 and spent:
            level = self.prices.costs.latency(rows * self.width, rows, self._context, "draft")
            spent += (levels - 1) * level
        return spent + self._step.verify[: rows * drafts.tokens.shape[1] + 1]

    def learn(self, outcome: StepOutcome) -> None:
        """Let the calibration follow, and what each row makes of a step."""
        trees = outcome.verified
        assert isinstance(trees, TreeBatch)
        exists, acceptance = trees.exists.cpu(), outcome.acceptance.cpu().clamp(0, 1)
        tokens = 1 + reach_probabilities(acceptance, trees.parents.cpu(), exists, max(trees.depths)).sum(dim=1)
        told = [not had or count > 0 for had, count in zip(self._drafted, trees.lengths, strict=True)]
        self.behind.learn(outcome.rows, tokens, told)
        if self.online is not None and max(trees.lengths):
            decided = outcome.decided
            given = {name: value.cpu()[decided] for name, value in signals_of(trees).items()}
            self.online.learn(given, acceptance[decided])
            self.table = self.online.table

    @property
    def drift(self) -> float | None:
        """How much more is accepted lately than the calibration said; None where it is not followed."""
        return None if self.online is None else self.online.drift


def signals_of(trees: TreeBatch) -> dict[str, Tensor]:
    """(B, N) float32 each: what the drafter said of the nodes, and their place on the way down as `position`."""
    return {**(trees.signals or {}), "position": trees.levels.float()}
