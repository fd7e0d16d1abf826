"""What schedules of trees are for, and which calibrations are of trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calibration import CalibrationTable
from .signals import own_signals

if TYPE_CHECKING:
    from ..config import SpeculationConfig
    from ..drafting.drafter import Drafter
    from ..drafting.dynamic_trees import DynamicTree

NODES_KEY = "tree_nodes"  # in the origin of a calibration: there for those of trees only


def tree_of(drafter: Drafter) -> DynamicTree | None:
    """The dynamic trees that a drafter grows; None for others."""
    tree: DynamicTree | None = getattr(drafter, "tree", None)
    return tree


def tree_settings(drafter: Drafter) -> dict[str, Any]:
    """What the origin of a calibration says of a drafter's dynamic trees; nothing for others."""
    tree = tree_of(drafter)
    return {} if tree is None else {"tree_width": tree.width, NODES_KEY: tree.nodes}


def check_schedule_of_trees(config: SpeculationConfig, drafter: Drafter) -> None:
    """Refuse schedules that drafts of several paths don't have.

    Raises:
        ValueError: naming the option.
    """
    asked = f"verify_length={config.verify_length!r} and draft_length={config.draft_length!r}"
    branching = getattr(drafter, "branching", None)
    if branching is not None and max(branching) > 1:
        raise ValueError(
            f"branching={branching!r}: {asked} schedule single chains and dynamic trees; allowed: 'fixed' for both, or "
            "tree=DynamicTree(…) with verify_length='goodput'"
        )
    tree = tree_of(drafter)
    if tree is not None and (config.verify_length == "auto" or config.draft_length != "fixed"):
        raise ValueError(
            f"tree={tree!r}: {asked} go token by token, and trees grow level by level; allowed with a tree: "
            "verify_length='fixed' or 'goodput', and draft_length='fixed'"
        )


def check_table_of_trees(table: CalibrationTable, drafter: Drafter) -> None:
    """Refuse a calibration of chains for trees and the other way round, where it says which it is of.

    Of a chain acceptance is min(1, p/q) of a token that was drawn, or p of the likeliest one; of a tree it is p of any
    child, which is something else.

    Raises:
        ValueError: naming the option.
    """
    tree, drafting = tree_of(drafter), table.origin.drafting
    if tree is not None and own_signals(table.names) != table.names:
        raise ValueError(
            f"calibration: of its signals {list(table.names)} some need the companion, which reads single chains; "
            f"allowed with tree={tree!r}: signals of the draft"
        )
    if drafting is None or (NODES_KEY in drafting) == (tree is not None):
        return
    made, here = ("trees", "chains") if tree is None else ("chains", "trees")
    raise ValueError(
        f"calibration: it was made with drafts that are {made}, whose acceptance says nothing of {here}; allowed: "
        f"a calibration made with this drafter (hf_specverify.calibrate){'' if tree is None else ', or None'}"
    )
