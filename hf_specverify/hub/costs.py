"""Measured costs beside a calibration: of use where the machine is the same."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..drafting import as_drafter
from ..scheduling.cost import CostModel
from .names import COSTS


def fitting_costs(folder: Path, models: Mapping[str, Any]) -> CostModel | None:
    """The costs in a folder, if there are some, of this machine and of all these models.

    Args:
        folder: of a calibration.
        models: by role; drafters without a model, and None, have no costs.
    """
    path = folder / COSTS
    if not path.is_file():
        return None
    known = {role: model for role, model in models.items() if model is not None}
    if "draft" in known:
        drafter = as_drafter(known.pop("draft"))
        known |= {"draft": drafter.model} if hasattr(drafter, "model") else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of another machine
            costs = CostModel.load(path, known)
    except (ValueError, UserWarning):
        return None
    return costs if set(known) <= set(costs.roles) else None
