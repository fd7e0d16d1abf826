"""From the options of a call to its schedule."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..hub.comparing import check_models
from ..hub.shipped import find_folder, read_table
from .assumed import assumed_of_children, assumed_table
from .auto import AutoSchedule
from .calibration import CalibrationTable
from .call_costs import CallCosts
from .companion import Companion
from .cost import CostModel
from .costs_of_a_call import costs_of
from .fixed import FixedLength
from .goodput_schedule import GoodputSchedule
from .head_companion import companion_weights, start_companion
from .online import OnlineCalibration
from .schedule import Schedule
from .signals import SIGNALS, own_signals
from .tree_options import check_schedule_of_trees, check_table_of_trees, tree_of
from .tree_schedule import TreeSchedule

if TYPE_CHECKING:
    from ..config import SpeculationConfig
    from ..drafting.drafter import Drafter, DraftingCall
    from ..drafting.dynamic_trees import DynamicTree

LONGEST = 64  # draft tokens per step that are scheduled
AUTO_LONGEST = 12  # of these, those that `auto` considers, unless num_draft_tokens says otherwise


def make_schedule(config: SpeculationConfig, drafter: Drafter, companion_model: Any, call: DraftingCall) -> Schedule:
    """The schedule that the options ask for.

    Raises:
        ValueError, TypeError: naming an option that does not fit the others.
    """
    schedule = _make(config, drafter, companion_model, call)
    if schedule.costs is not None and "draft" not in schedule.costs.roles:
        schedule.prices_drafts = drafter.drafting_model(call.target) is None
    return schedule


def _make(config: SpeculationConfig, drafter: Drafter, companion_model: Any, call: DraftingCall) -> Schedule:
    wanted = config.num_draft_tokens or drafter.default_num_draft_tokens
    if config.verify_length == config.draft_length == "fixed":
        return FixedLength(wanted, None if config.costs is None else costs_of(config, drafter, None, call))
    if config.num_draft_paths > 1:
        raise ValueError(
            f"num_draft_paths={config.num_draft_paths}: verify_length={config.verify_length!r} and draft_length="
            f"{config.draft_length!r} schedule single chains; allowed: 1, or 'fixed' for both"
        )
    check_schedule_of_trees(config, drafter)
    if isinstance(config.calibration, str | PathLike):
        folder = find_folder(config.calibration, *_models(drafter, companion_model, call))
        config = replace(config, calibration=folder)
    tree = tree_of(drafter)
    if tree is not None:
        return _of_trees(config, min(wanted, LONGEST), tree, drafter, call)
    if config.verify_length == "auto":
        return _auto(config, drafter, companion_model, call)
    table = _table(config, drafter, companion_model, call)
    companion, prices = _beside(config, table, min(wanted, LONGEST), drafter, companion_model, call)
    stops = config.draft_length == "goodput"
    if stops:
        _check_stopping(table, drafter, prices.costs)
    return GoodputSchedule(
        prices.longest, table, prices, companion, call.sampling, verifies=config.verify_length == "goodput",
        stops=stops, online=OnlineCalibration(table) if config.online_calibration else None,
    )  # fmt: skip


def _of_trees(
    config: SpeculationConfig, levels: int, tree: DynamicTree, drafter: Drafter, call: DraftingCall
) -> TreeSchedule:
    """For dynamic trees: without a calibration the draft's own probabilities, which then follow the text."""
    given = config.calibration is not None
    table = _table(config, drafter, None, call) if given else assumed_of_children()
    _check_signals(table, drafter, None)
    online = OnlineCalibration(table) if config.online_calibration or not given else None
    prices = CallCosts(costs_of(config, drafter, None, call), tree.nodes)
    return TreeSchedule(levels, tree.width, table, prices, online)


def _auto(config: SpeculationConfig, drafter: Drafter, companion_model: Any, call: DraftingCall) -> AutoSchedule:
    """`auto`: with a calibration, given or assumed, it leaves the steps that draft to goodput."""
    longest = min(config.num_draft_tokens or AUTO_LONGEST, LONGEST)
    given = config.calibration is not None
    table = _table(config, drafter, companion_model, call) if given else assumed_table(drafter.signals)
    if table is None:
        return AutoSchedule(CallCosts(costs_of(config, drafter, None, call), longest))
    companion, prices = _beside(config, table, longest, drafter, companion_model, call)
    stops = "draft" in prices.costs.roles and bool(own_signals(table.names))
    # A measured table is trusted from the first step on.
    online = OnlineCalibration(table) if config.calibration is None else OnlineCalibration(table, warm_up=0)
    inner = GoodputSchedule(
        longest, table, prices, companion, call.sampling, stops=stops, online=online, hesitates=True
    )
    return AutoSchedule(prices, None if config.calibration is None else table.mean, inner)


def _beside(
    config: SpeculationConfig,
    table: CalibrationTable,
    longest: int,
    drafter: Drafter,
    companion_model: Any,
    call: DraftingCall,
) -> tuple[Companion | None, CallCosts]:
    """The companion, if the table needs one, and what steps cost."""
    _check_signals(table, drafter, companion_model)
    needed = companion_model if own_signals(table.names) != table.names else None
    costs = costs_of(config, drafter, companion_weights(needed), call)
    if needed is not None and "companion" not in costs.roles:
        raise ValueError(
            f"costs: of {list(costs.roles)} only, and the calibration's signals {list(table.names)} need the "
            "companion; allowed: costs measured with it (CostModel.profile(target, draft, companion))"
        )
    return None if needed is None else start_companion(needed, call), CallCosts(costs, longest)


def _table(config: SpeculationConfig, drafter: Drafter, companion_model: Any, call: DraftingCall) -> CalibrationTable:
    """The calibration, if it is of these models."""
    table = read_table(config.calibration) if isinstance(config.calibration, Path) else config.calibration
    if not isinstance(table, CalibrationTable):
        raise ValueError(
            f"calibration={table!r}: 'goodput' predicts acceptance from one; allowed: a CalibrationTable, the folder "
            "of one (hf_specverify.calibrate makes them), user/name on the Hub, or the name of one that comes with the "
            "library (specverify tables)"
        )
    check_models(table, *_models(drafter, companion_model, call))
    check_table_of_trees(table, drafter)
    return table


def _models(drafter: Drafter, companion_model: Any, call: DraftingCall) -> tuple[dict[str, Any], dict[str, Any]]:
    """The models by role, and the tokenizers that are known."""
    models = {"target": call.target, "draft": getattr(drafter, "model", None)}
    if companion_model is not None:
        models["companion"] = companion_weights(companion_model)
    return models, dict(zip(("target", "draft"), call.tokenizers, strict=True))


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
    if not own_signals(table.names) or "draft" not in costs.roles:
        raise ValueError(
            "draft_length='goodput': while drafting only the draft's own signals are known, and its passes must have a "
            f"cost (signals {list(table.names)}, costs of {list(costs.roles)}); allowed: a calibration with some of "
            f"{sorted(drafter.signals)} and costs with the draft"
        )
