"""What is assumed of acceptance before anything was measured."""

from __future__ import annotations

import torch
from torch import Tensor

from .calibration import CalibrationTable
from .signals import SIGNALS

# Of the draft's probability of its token, and of the length of the n-gram that a lookup found: inner edges of bins, and
# the acceptance assumed in each. Rounded from what was seen on a few pairs; `OnlineCalibration` soon leaves it behind.
_ASSUMED = {
    "q": ((0.1, 0.3, 0.5, 0.7, 0.9, 0.99), (0.3, 0.45, 0.6, 0.72, 0.82, 0.93, 0.98)),
    "match_length": ((1.5, 2.5, 3.5, 4.5), (0.35, 0.55, 0.7, 0.8, 0.85)),
}
POSITIONS = 20  # that each bin counts for
# Of p of a child in a tree, for which nothing was drawn: bins of the draft's own probability of it.
_CHILD_EDGES = (0.003, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 0.99)


def assumed_table(signals: frozenset[str]) -> CalibrationTable | None:
    """A table of the first signal that a drafter gives and something is assumed of; None if there is none."""
    name = next((name for name in _ASSUMED if name in signals), None)
    if name is None:
        return None
    edges, means = (torch.tensor(values) for values in _ASSUMED[name])
    return _stated(name, edges, means)


def assumed_of_children() -> CalibrationTable:
    """The target's probability of a child by the draft's: the same, until something was seen."""
    edges = torch.tensor(_CHILD_EDGES)
    ends = torch.cat([torch.zeros(1), edges, torch.ones(1)])
    return _stated("q", edges, (ends[1:] + ends[:-1]) / 2)


def _stated(name: str, edges: Tensor, means: Tensor) -> CalibrationTable:
    number = torch.full((len(means),), POSITIONS)
    outcome: Tensor = POSITIONS * means.double()
    metadata = {"source": "assumed"}
    directions = {name: SIGNALS[name].direction}
    return CalibrationTable(
        (name,), {name: edges}, number, outcome, POSITIONS * means.double() ** 2, directions, metadata
    )
