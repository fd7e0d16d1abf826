"""Propose: the drafters, and the trees of draft tokens that they hand on."""

from typing import Any

from transformers.generation.candidate_generator import CandidateGenerator

from .batch import DraftBatch
from .candidate_generator import CandidateDrafter
from .draft_model import DraftModel
from .drafter import Drafter, DraftingCall, DraftSession
from .dynamic_trees import DynamicTree
from .early_exit import EarlyExit
from .heads import FeatureHead
from .prompt_lookup import PromptLookup
from .tree import DraftTree
from .tree_batch import TreeBatch

__all__ = [
    "CandidateDrafter",
    "DraftBatch",
    "DraftModel",
    "DraftSession",
    "DraftTree",
    "Drafter",
    "DraftingCall",
    "DynamicTree",
    "EarlyExit",
    "FeatureHead",
    "PromptLookup",
    "TreeBatch",
    "as_drafter",
]


def as_drafter(assistant: Any) -> Drafter:
    """The drafter for what a user gives as `assistant_model`: a model, a Drafter, or a host candidate generator.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(assistant, Drafter):
        return assistant
    if isinstance(assistant, CandidateGenerator):
        return CandidateDrafter(assistant)
    if hasattr(assistant, "get_input_embeddings") and hasattr(assistant, "config"):
        return DraftModel(assistant)
    raise TypeError(
        f"assistant_model={assistant!r}: allowed are a Transformers causal language model, a Drafter such as "
        "PromptLookup(), or a CandidateGenerator"
    )
