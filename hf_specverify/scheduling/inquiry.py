"""When the companion is asked, and about what."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafting.batch import DraftBatch
from .asking import CompanionValue
from .calibration import CalibrationTable
from .call_costs import StepCosts
from .signals import own_signals

KEEP = 1 - 1 / 8  # memory of what asking would have been worth, per step


class Inquiry:
    """Decides how many drafted positions of each row the companion reads.

    Where a cut needs no correction (a greedy target, a deterministic draft), rows are asked about one by one, up to the
    position that may pay, and only if the answers are expected to bring more than the companion's pass costs. Else a
    row's tokens may not decide whether it is asked about: then all are asked about or none.

    Args:
        hesitates: where all or none are asked about: whether that follows from what earlier steps would have gained by
            it; False asks always.
    """

    def __init__(self, hesitates: bool) -> None:
        self.hesitates, self._worth = hesitates, 0.0
        self._value: CompanionValue | None = None

    def follow(self, table: CalibrationTable) -> None:
        """Judge by another table from now on; one without signals of the drafter says nothing before asking."""
        self._value = CompanionValue(table) if own_signals(table.names) else None

    @property
    def asks_all(self) -> bool:
        """Whether it would ask about all rows in this step, as earlier steps say."""
        return self._value is None or not self.hesitates or self._worth > 0

    def lengths(
        self,
        drafts: DraftBatch,
        own: dict[str, Tensor],
        drawn: bool,
        step: StepCosts,
        rate: float,
        weights: Tensor | None = None,
    ) -> list[int]:
        """How many positions of each row to ask about.

        Args:
            drafts: the proposals.
            own: (B, L) each, the drafter's signals.
            drawn: whether tokens were drawn for a target that samples.
            step: what this step costs.
            rate: tokens per second of the batch in the long run.
            weights: (B,) what the rows' tokens are worth.
        """
        everything, nothing = list(drafts.lengths), [0] * len(drafts.lengths)
        if self._value is None or (drawn and not self.hesitates):
            return everything
        assert step.companion is not None
        most = len(drafts.lengths) * max(drafts.lengths)
        price = rate * float(step.verify[most] - step.verify[0]) / most
        worth, reach = self._value.worth(own, torch.tensor(drafts.lengths), price, weights)
        if not drawn:
            return [int(n) for n in torch.where(rows_to_ask(worth, reach, step.companion, rate), reach, 0)]
        asks_all = self.asks_all
        gained = float(worth.sum()) - rate * float(step.companion[sum(everything)])
        self._worth = KEEP * self._worth + (1 - KEEP) * gained
        return everything if asks_all else nothing


def rows_to_ask(worth: Tensor, reach: Tensor, seconds: Tensor, rate: float) -> Tensor:
    """(B,) bool: the rows about which asking pays, all in one pass of the companion.

    Args:
        worth: (B,) tokens that the answers are worth.
        reach: (B,) long, positions to ask about.
        seconds: of the companion's pass by the draft tokens in it.
        rate: tokens that a second is worth.
    """
    ranked, order = worth.sort(descending=True, stable=True)
    profit = ranked.cumsum(dim=0) - rate * seconds[reach[order].cumsum(dim=0)]
    if not bool(profit.amax() > 0):
        return torch.zeros(len(worth), dtype=torch.bool)
    asked = (torch.arange(len(worth)) <= profit.argmax()) & (ranked > 0)
    return torch.zeros_like(asked).scatter_(0, order, asked)
