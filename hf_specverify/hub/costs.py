"""Measured costs beside a calibration: of use where the machine is the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..scheduling.cost import CostModel
from ..scheduling.cost_files import read_costs
from ..scheduling.fingerprint import Fingerprint
from .names import COSTS


def fitting_costs(folder: Path, models: Mapping[str, Any]) -> CostModel | None:
    """The costs in a folder, if there are some, of this machine and of all these models.

    Args:
        folder: of a calibration.
        models: by role; None has no costs.
    """
    path = folder / COSTS
    if not path.is_file():
        return None
    known = {role: model for role, model in models.items() if model is not None}
    try:
        costs = read_costs(path)
    except ValueError:
        return None
    fits = costs.fingerprint.covers(Fingerprint.of(known)) and set(known) <= set(costs.roles)
    return costs if fits else None
