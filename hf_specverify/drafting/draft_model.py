"""A small model as drafter, with its own loop and its own row cache."""

from __future__ import annotations

from typing import Any

from ..verification.base import DraftKind
from .drafter import DraftingCall
from .drawing import DrawingDrafter
from .dynamic_trees import DynamicTree
from .model_reader import ModelReader
from .vocabulary import check_partner


class DraftModel(DrawingDrafter):
    """Drafts with a Transformers causal language model that shares the target's tokenizer.

    The model is only called: neither its configuration nor its generation_config is read for sampling or changed.
    How tokens are drawn, and what `drawing`, `branching` and `tree` mean, says `DrawingDrafter`.

    Args:
        model: the draft.
        drawing: how the children of a node are drawn.
        branching: children per node at each level.
        tree: trees that grow where the draft is sure.

    Raises:
        ValueError, TypeError: for values that are not allowed.
    """

    def __init__(
        self,
        model: Any,
        *,
        drawing: DraftKind | None = None,
        branching: tuple[int, ...] | None = None,
        tree: DynamicTree | None = None,
    ) -> None:
        super().__init__(drawing=drawing, branching=branching, tree=tree)
        self.model = model

    @property
    def name(self) -> str:
        """The draft's class and size."""
        return f"{type(self.model).__name__} ({self.model.num_parameters() / 1e6:.0f}M)"

    def drafting_model(self, target: Any) -> Any:
        """The draft."""
        return self.model

    def read_for(self, call: DraftingCall) -> ModelReader:
        """The model with a cache of its own."""
        check_partner(call.target, self.model, "assistant_model", call.tokenizers)
        return ModelReader(self.model, call, "draft")
