"""Which tokens a schedule would admit, as one comparison per token in place of a lookup."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .binning import cell_indices
from .calibration import CalibrationTable


def admission_cutoff(table: CalibrationTable, name: str, required: Tensor, signals: Mapping[str, Tensor]) -> Tensor:
    """Find the value of one signal from which on a token is admitted, the other signals being given.

    `signal >= cutoff` is the same, to the last bit, as `admitted(table.predict(…), required)`; over a whole vocabulary
    it is much cheaper. It needs a table in which `name` is the only signal that looks at the drawn token.

    Args:
        table: predicts acceptance, increasing in `name`.
        name: one of its signals.
        required: (…), of `DrawnSchedule`.
        signals: the table's other signals, each (…).

    Returns:
        (…) float32: minus infinity where every token is admitted, infinity where none is.

    Raises:
        ValueError: if `name` is not such a signal, or another one is missing.
    """
    if name not in table.names or table.directions[name] != "increasing":
        raise ValueError(f"name must be one of {list(table.names)} in which predictions increase, got {name!r}")
    others = [other for other in table.names if other != name]
    if missing := [other for other in others if other not in signals]:
        raise ValueError(f"signals must hold {others}, got {list(signals)} without {missing}")
    grid = table.probabilities.movedim(table.names.index(name), -1)
    lines = grid.reshape(-1, grid.shape[-1]).to(required.device)
    cells = cell_indices(others, table.edges, signals) if others else torch.zeros_like(required, dtype=torch.long)
    refused = (lines[cells] <= required.double()[..., None]).sum(dim=-1)
    ends = torch.tensor([torch.inf])
    edges = torch.cat([-ends, table.edges[name].cpu(), ends]).to(required.device)
    return edges[refused]
