"""A calibration that follows the text: what was accepted lately, over what was measured before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .binning import cell_indices
from .calibration import CalibrationTable

MEMORY = 2000.0  # positions that the window looks back on
PRIOR = 500.0  # positions that the table counts for
WARM_UP = 100
EVERY = 16  # steps between two new tables


class OnlineCalibration:
    """Counts over the cells of a table, with exponential forgetting; the table itself is the prior.

    Only positions that verification reached count, and only those of earlier steps, so a schedule that uses it stays
    lossless (2509.24328, §4).

    Args:
        table: measured before, on text that need not be like this one.
        warm_up: positions to see before anything is cut by it.
    """

    def __init__(self, table: CalibrationTable, warm_up: int = WARM_UP) -> None:
        self.prior, self.warm_up = table, warm_up
        total = float(table.number.sum().clamp(min=1))
        scale = min(1.0, PRIOR / total)
        self._prior = [part.double() * scale for part in (table.number, table.outcome, table.squares)]
        self._window = [torch.zeros_like(part) for part in self._prior]
        self.table, self.seen, self._steps = table, 0, 0

    @property
    def is_warm(self) -> bool:
        """Whether enough was seen to cut by."""
        return self.seen >= self.warm_up

    def learn(self, signals: Mapping[str, Tensor], outcome: Tensor) -> None:
        """Take in some reached positions: (n,) signals of the table, and outcomes in [0, 1]."""
        given = {name: signals[name].cpu().float() for name in self.prior.names}
        cells, values = cell_indices(self.prior.names, self.prior.edges, given), outcome.cpu().double()
        keep = (1 - 1 / MEMORY) ** len(values)
        for window, amount in zip(self._window, (torch.ones_like(values), values, values**2), strict=True):
            window.mul_(keep).view(-1).scatter_add_(0, cells, amount)
        self.seen, self._steps = self.seen + len(values), self._steps + 1
        if self._steps % EVERY == 0:
            number, total, squares = (a + b for a, b in zip(self._prior, self._window, strict=True))
            self.table = replace(self.prior, number=number, outcome=total, squares=squares, samples=None)

    @property
    def drift(self) -> float:
        """How much more is accepted lately than the prior predicts, as a mean over the window; 0 before anything."""
        number = self._window[0].sum()
        if not float(number):
            return 0.0
        expected = (self._window[0] * self.prior.probabilities.double()).sum()
        return float((self._window[1].sum() - expected) / number)
