"""Stops drafting, row by row, where one more token does not pay."""

from __future__ import annotations

import torch
from torch import Tensor

from .calibration import CalibrationTable
from .call_costs import CallCosts
from .draft_stop import worth_drafting
from .speed_up import SpeedUp

PERSISTENCE = 0.7  # how much of what sets a token apart from the mean is expected of the one behind it


class GoodputStopper:
    """Goes on while one more position is expected to bring more than its seconds are worth, see `worth_drafting`.

    The rule lags by a token, so it is exact for any signal. The acceptance of a position that has not been drawn yet is
    taken to lie between the mean of the calibration and the prediction for the position before it.

    Args:
        table: predicts acceptance from the draft's own signals.
        prices: what the call's steps cost.
        speed_up: of the call so far.
    """

    def __init__(self, table: CalibrationTable, prices: CallCosts, speed_up: SpeedUp) -> None:
        self.prices, self.speed_up, self.is_active = prices, speed_up, True
        self.follow(table)

    def follow(self, table: CalibrationTable) -> None:
        """Predict by another table from now on."""
        self.table, self.mean = table, table.mean

    def begin(self, rows: int, context: int, weights: Tensor | None = None) -> None:
        """A step begins, with so many rows and tokens before them; `weights` as in `worth_drafting`."""
        self.weights = weights
        self.survival = torch.ones(rows, dtype=torch.float64)
        self.step, self.tokens = self.prices.step(rows, context), 0

    def after(self, drafted: int, signals: dict[str, Tensor], lengths: list[int]) -> list[int]:
        """New draft lengths, see `DraftStopper`."""
        if not self.is_active:
            return lengths
        given = {name: value.cpu() for name, value in signals.items()}
        predicted = self.table.predict({**given, "position": torch.full((len(lengths),), float(drafted))})
        limits = torch.tensor(lengths)
        drew = limits >= drafted
        self.survival = torch.where(drew, self.survival * predicted, self.survival)
        self.tokens += int(drew.sum())
        # All rows go through the draft together, so a pass costs the same for one row that goes on as for all.
        verify = self.step.verify
        extra = verify[self.tokens : self.tokens + len(lengths) + 1] - verify[self.tokens]
        extra = torch.nn.functional.pad(extra, (0, len(lengths) + 1 - len(extra)), value=float(extra[-1]))
        goes_on = worth_drafting(
            self.survival,
            self.mean + PERSISTENCE * (predicted - self.mean),
            rate=self.speed_up.rate(self.step),
            extra_seconds=extra + self.step.draft,
            drafting=limits > drafted,
            weights=self.weights,
        )
        return [length if go else min(length, drafted) for length, go in zip(lengths, goes_on.tolist(), strict=True)]
