"""Stop drafting a row where one more position is not expected to pay."""

from __future__ import annotations

import torch
from torch import Tensor

from .calibration import CalibrationTable
from .cost import CostModel
from .draft_stop import worth_drafting


class GoodputStopper:
    """Goes on drafting as long as another position is worth a draft pass and its place in the target's forward.

    It looks at tokens that are drawn and kept, and decides on tokens that are not drawn yet: a lagged rule, exact for
    any signal, see `worth_drafting`. The acceptance of the position to come is taken to be the mean of the calibration.

    Args:
        table: predicts acceptance from the draft's own signals.
        costs: of the target's and the draft's forwards.
    """

    def __init__(self, table: CalibrationTable, costs: CostModel) -> None:
        self.costs = costs
        self.follow(table)

    def follow(self, table: CalibrationTable) -> None:
        """Predict by another table from now on."""
        self.table = table
        self.mean = float(table.outcome.sum() / table.number.sum().clamp(min=1))

    def begin(self, rows: int, longest: int, context: int) -> None:
        """A step begins, with so many rows, draft tokens at most, and tokens before them."""
        self.survival = torch.ones(rows, dtype=torch.float64)
        self.expected, self.tokens = float(rows), 0
        self.verify = self.costs.verify_table(rows, rows * longest, context)
        self.draft_pass = self.costs.latency(rows, rows, context, "draft")
        self.passes = 1

    def after(self, drafted: int, signals: dict[str, Tensor], lengths: list[int]) -> list[int]:
        """New draft lengths, see `DraftStopper`."""
        given = {name: value.cpu() for name, value in signals.items()}
        predicted = self.table.predict({**given, "position": torch.full((len(lengths),), float(drafted))}).clamp(0, 1)
        limits = torch.tensor(lengths)
        drew = limits >= drafted
        self.survival = torch.where(drew, self.survival * predicted, self.survival)
        self.expected += float(self.survival[drew].sum())
        self.tokens += int(drew.sum())
        # All rows go through the draft together, so a pass costs the same for one row that goes on as for all.
        extra = self.verify[self.tokens : self.tokens + len(lengths) + 1] - self.verify[self.tokens]
        extra = torch.nn.functional.pad(extra, (0, len(lengths) + 1 - len(extra)), value=float(extra[-1]))
        goes_on = worth_drafting(
            self.survival,
            torch.full_like(self.survival, self.mean),
            expected=self.expected,
            seconds=float(self.verify[self.tokens]) + self.passes * self.draft_pass,
            extra_seconds=extra + self.draft_pass,
            drafting=limits > drafted,
        )
        self.passes += 1
        return [length if go else min(length, drafted) for length, go in zip(lengths, goes_on.tolist(), strict=True)]
