"""From the options of a call to its schedule."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .auto import AutoSchedule
from .calibration import CalibrationTable
from .companion import Companion
from .cost import CostModel
from .fixed import FixedLength
from .goodput_schedule import GoodputSchedule
from .online import OnlineCalibration
from .schedule import Schedule
from .signals import SIGNALS
from .stopper import GoodputStopper

if TYPE_CHECKING:
    from ..config import SpeculationConfig
    from ..drafting.drafter import Drafter, DraftingCall

LAZY_SECONDS = 20.0  # for costs that are measured in the first call, because none were given
LAZY_TOKENS = (1, 2, 4, 8)
AUTO_LONGEST = 8  # draft tokens per step that `auto` considers, unless num_draft_tokens says otherwise

_MEASURED: WeakKeyDictionary[Any, dict[tuple[int, str, str], CostModel]] = WeakKeyDictionary()


def make_schedule(config: SpeculationConfig, drafter: Drafter, companion_model: Any, call: DraftingCall) -> Schedule:
    """The schedule that the options ask for.

    Raises:
        ValueError, TypeError: naming an option that does not fit the others.
    """
    wanted = config.num_draft_tokens or drafter.default_num_draft_tokens
    if config.verify_length == config.draft_length == "fixed":
        return FixedLength(wanted)
    if config.num_draft_paths > 1:
        raise ValueError(
            f"num_draft_paths={config.num_draft_paths}: verify_length={config.verify_length!r} and draft_length="
            f"{config.draft_length!r} schedule single chains; allowed: 1, or 'fixed' for both"
        )
    if config.verify_length == "auto":
        table = None if config.calibration is None else _table(config.calibration)
        mean = None if table is None else float(table.outcome.sum() / table.number.sum().clamp(min=1))
        longest = min(config.num_draft_tokens or AUTO_LONGEST, 64)
        return AutoSchedule(longest, _costs(config.costs, call, drafter, None), mean)
    table = _table(config.calibration)
    _check_signals(table, drafter, companion_model)
    needs_companion = any(SIGNALS[name].needs == "companion" for name in table.names)
    costs = _costs(config.costs, call, drafter, companion_model if needs_companion else None)
    companion = Companion(companion_model, call) if needs_companion else None
    stopper = None
    if config.draft_length == "goodput":
        _check_stopping(table, drafter, costs)
        stopper = GoodputStopper(table, costs)
    verifies = config.verify_length == "goodput"
    online = OnlineCalibration(table) if config.online_calibration else None
    return GoodputSchedule(min(wanted, 64), table, costs, companion, call.sampling, verifies, stopper, online)


def _table(calibration: Any) -> CalibrationTable:
    if isinstance(calibration, CalibrationTable):
        return calibration
    if isinstance(calibration, (str, Path)):
        return CalibrationTable.from_pretrained(calibration)
    raise ValueError(
        f"calibration={calibration!r}: 'goodput' predicts acceptance from one; allowed: a CalibrationTable, or the "
        "folder of one (hf_specverify.calibrate makes them)"
    )


def _check_signals(table: CalibrationTable, drafter: Drafter, companion_model: Any) -> None:
    for name in table.names:
        if name not in SIGNALS:
            raise ValueError(f"calibration: its signal {name!r} is unknown; allowed are {sorted(SIGNALS)}")
        if SIGNALS[name].needs == "companion":
            if companion_model is None:
                raise ValueError(f"companion_model=None: the calibration's signal {name!r} needs the companion")
        elif name != "position" and name not in drafter.signals:
            raise ValueError(
                f"calibration: its signal {name!r} is not given by {drafter.name}; allowed: {sorted(drafter.signals)}"
            )


def _check_stopping(table: CalibrationTable, drafter: Drafter, costs: CostModel) -> None:
    others = [name for name in table.names if name != "position" and name not in drafter.signals]
    if others or "draft" not in costs.roles:
        raise ValueError(
            "draft_length='goodput': while drafting only the draft's own signals are known, and its passes must have a "
            f"cost (signals of others: {others}, costs of {list(costs.roles)}); allowed: a calibration of "
            f"{sorted(drafter.signals)} and costs with the draft"
        )


def _costs(given: Any, call: DraftingCall, drafter: Drafter, companion_model: Any) -> CostModel:
    if isinstance(given, CostModel):
        return given
    if isinstance(given, (str, Path)):
        return CostModel.load(given, {"target": call.target})
    if given is not None:
        raise TypeError(f"costs={given!r}: allowed are a CostModel, the path of a saved one, and None")
    draft = getattr(drafter, "model", None)
    key = (call.state.batch_size, _kind(draft), _kind(companion_model))
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
    return "" if model is None else f"{type(model).__name__} {model.num_parameters()} {model.dtype} {model.device}"
