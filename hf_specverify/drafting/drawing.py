"""Drafters that draw token by token: which session their options and the call ask for."""

from __future__ import annotations

from abc import abstractmethod
from typing import get_args

from ..verification.base import DraftKind, VerifierInfo
from .drafter import Drafter, DraftingCall, DraftSession
from .dynamic_trees import DynamicTree, DynamicTreeSession
from .model_chains import ModelSession
from .model_trees import TreeSession
from .reader import Reader


class DrawingDrafter(Drafter):
    """Draws chains or trees from what a reader scores.

    While the target samples, a draft token is drawn from q, the draft's distribution after the target's processors
    (with `draft_temperature` in place of the target's temperature, if given); a `draft_temperature` of 0 and greedy
    targets take the most likely token instead, and q is one-hot.

    With several paths a tree is drawn per row and step (see `shape.TreeShape`): `num_draft_paths` children of the root,
    each continued by one token per level, unless `branching` says otherwise. All nodes of a level are read in one
    forward, behind the cached prefix that they share.

    Args:
        drawing: how the children of a node are drawn: `independent`, `without_replacement`, or `deterministic` (the
            most likely tokens). None: as the verifier prefers, and deterministic where the target is greedy.
        branching: children per node at each level, the last entry for all levels below, in place of
            `num_draft_paths`; not for independent paths.
        tree: in place of both, trees that grow where the draft is sure; their tokens are deterministic.

    Raises:
        ValueError, TypeError: for values that are not allowed.
    """

    signals = frozenset({"q", "entropy", "max_q", "margin"})

    def __init__(
        self,
        *,
        drawing: DraftKind | None = None,
        branching: tuple[int, ...] | None = None,
        tree: DynamicTree | None = None,
    ) -> None:
        if drawing not in (None, *get_args(DraftKind)):
            raise ValueError(f"drawing={drawing!r}: allowed are {list(get_args(DraftKind))} and None")
        if branching is not None and not (branching and all(isinstance(n, int) and n >= 1 for n in branching)):
            raise ValueError(f"branching={branching!r}: allowed are tuples of integers from 1, and None")
        if tree is not None and not isinstance(tree, DynamicTree):
            raise TypeError(f"tree={tree!r}: allowed are a DynamicTree and None")
        if tree is not None and (branching is not None or drawing not in (None, "deterministic")):
            raise ValueError(
                f"tree={tree!r}: its shape and tokens follow from the draft's probabilities; allowed: without "
                "branching and drawing"
            )
        self.drawing, self.branching, self.tree = drawing, branching, tree

    @abstractmethod
    def read_for(self, call: DraftingCall) -> Reader:
        """The reader for a call.

        Raises:
            ValueError: if there can't be one for the call's target.
        """

    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call; the prompt is read at the first proposal."""
        reader = self.read_for(call)
        branching, kind = self._branching(call.num_paths), self._kind(call)
        if self.tree is None and max(branching) == 1:
            return ModelSession(reader, call, kind)
        asked = f"num_draft_paths={call.num_paths}, branching={self.branching!r}, tree={self.tree!r}"
        if not call.takes_trees:
            raise ValueError(f"{asked}: the target runs in a layout without trees; allowed is one path")
        if not reader.takes_trees:
            raise ValueError(f"{asked}: {self.name} runs in a layout without trees; allowed is one path")
        check_structure(call.verifier, kind if call.sampling else None)
        if self.tree is not None:
            return DynamicTreeSession(reader, call, self.tree)
        if kind == "independent" and self.branching is not None:
            raise ValueError(
                f"branching={self.branching!r}: independent paths branch at the root only; allowed: num_draft_paths=, "
                "or another drawing"
            )
        return TreeSession(reader, call, kind, branching)

    def _branching(self, num_paths: int) -> tuple[int, ...]:
        own = "branching" if self.branching is not None else "tree"
        if num_paths != 1 and (self.branching is not None or self.tree is not None):
            raise ValueError(
                f"num_draft_paths={num_paths}: {own}={getattr(self, own)!r} says it already; leave one out"
            )
        return self.branching or (num_paths, 1)

    def _kind(self, call: DraftingCall) -> DraftKind:
        if call.sampling and call.draft_temperature == 0 and self.drawing not in (None, "deterministic"):
            raise ValueError(
                f"draft_temperature=0: drawing={self.drawing!r} needs a law to draw from; allowed are others"
            )
        if self.tree is not None or not call.sampling or call.draft_temperature == 0:
            return "deterministic"
        return self.drawing or call.verifier.drafts[0]


def check_structure(verifier: VerifierInfo, kind: DraftKind | None) -> None:
    """Refuse trees that a verifier can't take, drawn as they are (None: the target is greedy, which takes any).

    Raises:
        ValueError: naming the option.
    """
    if verifier.structure == "chain":
        raise ValueError(f"verification={verifier.name!r} takes single chains; allowed: one draft path")
    if kind is not None and kind not in verifier.drafts:
        raise ValueError(
            f"verification={verifier.name!r} is not made for {kind} drafts; allowed are {list(verifier.drafts)}"
        )
