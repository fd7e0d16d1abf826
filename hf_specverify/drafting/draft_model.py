"""A small model as drafter, with its own loop and its own row cache."""

from __future__ import annotations

from typing import Any, get_args

from ..verification.base import DraftKind, VerifierInfo
from .drafter import Drafter, DraftingCall, DraftSession
from .model_chains import ModelSession
from .model_reader import ModelReader
from .model_trees import TreeSession
from .vocabulary import check_partner


class DraftModel(Drafter):
    """Drafts with a Transformers causal language model that shares the target's tokenizer.

    The model is only called: neither its configuration nor its generation_config is read for sampling or changed.
    While the target samples, a draft token is drawn from q, the draft's distribution after the target's processors
    (with `draft_temperature` in place of the target's temperature, if given); a `draft_temperature` of 0 and greedy
    targets take the most likely token instead, and q is one-hot.

    With several paths the draft draws a tree per row and step (see `shape.TreeShape`): `num_draft_paths` children of
    the root, each continued by one token per level, unless `branching` says otherwise. All nodes of a level go through
    the model in one forward, behind the cached prefix that they share.

    Args:
        model: the draft.
        drawing: how the children of a node are drawn: `independent`, `without_replacement`, or `deterministic` (the
            most likely tokens). None: as the verifier prefers, and deterministic where the target is greedy.
        branching: children per node at each level, the last entry for all levels below, in place of
            `num_draft_paths`; not for independent paths.

    Raises:
        ValueError: for values that are not allowed.
    """

    signals = frozenset({"q", "entropy", "max_q", "margin"})

    def __init__(
        self, model: Any, *, drawing: DraftKind | None = None, branching: tuple[int, ...] | None = None
    ) -> None:
        if drawing not in (None, *get_args(DraftKind)):
            raise ValueError(f"drawing={drawing!r}: allowed are {list(get_args(DraftKind))} and None")
        if branching is not None and not (branching and all(isinstance(n, int) and n >= 1 for n in branching)):
            raise ValueError(f"branching={branching!r}: allowed are tuples of integers from 1, and None")
        self.model, self.drawing, self.branching = model, drawing, branching

    @property
    def name(self) -> str:
        """The draft's class and size."""
        return f"{type(self.model).__name__} ({self.model.num_parameters() / 1e6:.0f}M)"

    def drafting_model(self, target: Any) -> Any:
        """The draft."""
        return self.model

    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call; the prompt is read at the first proposal."""
        check_partner(call.target, self.model, "assistant_model", call.tokenizers)
        branching, kind = self._branching(call.num_paths), self._kind(call)
        if max(branching) == 1:
            return ModelSession(ModelReader(self.model, call, "draft"), call, kind)
        if not call.takes_trees:
            raise ValueError(
                f"num_draft_paths={call.num_paths}, branching={self.branching!r}: the target runs in a layout without "
                "trees; allowed is one path"
            )
        check_structure(call.verifier, kind if call.sampling else None)
        if kind == "independent" and self.branching is not None:
            raise ValueError(
                f"branching={self.branching!r}: independent paths branch at the root only; allowed: num_draft_paths=, "
                "or another drawing"
            )
        return TreeSession(self.model, call, kind, branching)

    def _branching(self, num_paths: int) -> tuple[int, ...]:
        if self.branching is None:
            return (num_paths, 1)
        if num_paths != 1:
            raise ValueError(
                f"num_draft_paths={num_paths}: branching={self.branching!r} says it already; leave one out"
            )
        return self.branching

    def _kind(self, call: DraftingCall) -> DraftKind:
        if call.sampling and call.draft_temperature == 0 and self.drawing not in (None, "deterministic"):
            raise ValueError(
                f"draft_temperature=0: drawing={self.drawing!r} needs a law to draw from; allowed are others"
            )
        if not call.sampling or call.draft_temperature == 0:
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
