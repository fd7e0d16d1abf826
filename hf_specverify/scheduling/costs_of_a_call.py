"""The costs that a call's schedule goes by: given, beside the calibration, or measured once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..hub.costs import fitting_costs
from ..packing import described_dtype
from .cost import CostModel

if TYPE_CHECKING:
    from ..config import SpeculationConfig
    from ..drafting.drafter import Drafter, DraftingCall

LAZY_SECONDS = 20.0  # for costs that are measured in the first call, because none were given
LAZY_TOKENS = (1, 2, 4, 8)

_MEASURED: WeakKeyDictionary[Any, dict[tuple[int, str, str, str], CostModel]] = WeakKeyDictionary()


def costs_of(config: SpeculationConfig, drafter: Drafter, companion_model: Any, call: DraftingCall) -> CostModel:
    """Those that were given, else those beside the calibration, if they are of this machine, else measured once.

    Args:
        config: its `costs`, and the folder of its `calibration` where it is one.
        drafter: its model is priced, if it has one.
        companion_model: priced too; None where it is not asked.
        call: of the target.

    Raises:
        ValueError, TypeError: for costs that can't be used, as those of other models.
    """
    given, draft = config.costs, drafter.drafting_model(call.target)
    models = {"target": call.target, "draft": draft, "companion": companion_model}
    if isinstance(given, (str, Path)):
        given = CostModel.load(given, {role: model for role, model in models.items() if model is not None})
    if isinstance(given, CostModel):
        return given if draft is not None else _without_draft(given)
    if given is not None:
        raise TypeError(f"costs={given!r}: allowed are a CostModel, the path of a saved one, and None")
    if isinstance(config.calibration, Path):
        found = fitting_costs(config.calibration, models)
        if found is not None:
            return found
    return _measured(draft, companion_model, call)


def _without_draft(costs: CostModel) -> CostModel:
    """The costs for a drafter that has no model: another drafter's passes are none of its."""
    if "draft" not in costs.roles:
        return costs
    return CostModel([point for point in costs.points if point.role != "draft"], costs.fingerprint)


def _measured(draft: Any, companion_model: Any, call: DraftingCall) -> CostModel:
    """Costs that are measured in the first call that needs them."""
    if (getattr(call.target, "tp_size", None) or 1) > 1:
        raise ValueError(
            "costs=None: a tensor-parallel target is in several processes, which would measure different costs and no "
            "longer run the same forwards; allowed: a CostModel, or the path of a saved one"
        )
    key = (call.state.batch_size, _kind(call.target), _kind(draft), _kind(companion_model))
    measured = _MEASURED.setdefault(call.target, {})
    if key not in measured:
        warnings.warn(
            f"costs=None: measuring the models once, for about {LAZY_SECONDS:.0f} s; give costs=CostModel.profile(…), "
            "or the path of a saved one, to choose when.",
            UserWarning,
            stacklevel=2,
        )
        sizes = sorted({1, call.state.batch_size})
        measured[key] = CostModel.profile(
            call.target, draft, companion_model, sizes, LAZY_TOKENS, call.state.prompt_length,
            budget_seconds=LAZY_SECONDS,
        )  # fmt: skip
    return measured[key]


def _kind(model: Any) -> str:
    """What the cost of a model's forwards depends on."""
    return (
        ""
        if model is None
        else f"{type(model).__name__} {model.num_parameters()} {described_dtype(model)} {model.device}"
    )
