"""A feature head as drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...decoding.traits import input_device
from ...verification.base import DraftKind
from ..drafter import DraftingCall
from ..drawing import DrawingDrafter
from ..dynamic_trees import DynamicTree
from .acceptance import AcceptanceHead, load_acceptance, save_acceptance
from .config import SPECULATORS
from .files import find_folder, load_head, save_head
from .model import HeadModel
from .reader import HeadReader
from .weights import check_target, layers_of, take_from_target


class FeatureHead(DrawingDrafter):
    """Drafts with one decoder layer that reads the target's low, middle and high hidden states (EAGLE-3, 2503.01840).

    The hidden states come out of the forwards that verify, so the first step of a call, which reads the prompt, drafts
    nothing. The head keeps a cache of its own. How tokens are drawn, and what `drawing`, `branching` and `tree` mean,
    says `DrawingDrafter`.

    Args:
        head: the network, with embeddings and scoring rows (`from_pretrained` puts the target's in).
        drawing: how the children of a node are drawn.
        branching: children per node at each level.
        tree: trees that grow where the head is sure.
        acceptance: a network on the head's output, which gives the signal `expected`; None: there is none.

    Raises:
        ValueError, TypeError: for values that are not allowed.
    """

    def __init__(
        self,
        head: HeadModel,
        *,
        drawing: DraftKind | None = None,
        branching: tuple[int, ...] | None = None,
        tree: DynamicTree | None = None,
        acceptance: AcceptanceHead | None = None,
    ) -> None:
        super().__init__(drawing=drawing, branching=branching, tree=tree)
        if not isinstance(head, HeadModel):
            raise TypeError(f"head={head!r}: allowed is a HeadModel; FeatureHead.from_pretrained loads one")
        if acceptance is not None:
            _check_acceptance(acceptance, head)
            self.signals = self.signals | {"expected"}
        self.head, self.acceptance = head, acceptance
        self.default_num_draft_tokens = head.config.num_draft_tokens

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        target: Any,
        *,
        revision: str | None = None,
        dtype: torch.dtype | None = None,
        drawing: DraftKind | None = None,
        branching: tuple[int, ...] | None = None,
        tree: DynamicTree | None = None,
    ) -> FeatureHead:
        """Load a head in the `speculators` format, or from a repository as EAGLE-3 has them; its acceptance head too.

        Args:
            name_or_folder: a folder, the name of a head that comes with the library, or a repository on the Hub.
            target: the model that it was made for; it gives embeddings and scoring rows that the file has not.
            revision: of the repository.
            dtype: of the head; None: the target's.
            drawing: see the class.
            branching: see the class.
            tree: see the class.

        Raises:
            ValueError: naming the field or tensor that is wrong, or in which head and target differ.
            OSError: if there is no such folder or repository, or a file is missing.
        """
        head = load_head(name_or_folder, revision=revision)  # by its name, which calibrations say
        check_target(head.config, target)
        acceptance = load_acceptance(find_folder(name_or_folder, revision), head.config.hidden_size)
        head.to(input_device(target), dtype or target.dtype)
        take_from_target(head, target)
        if acceptance is not None:  # in its own dtype, which costs nothing and keeps estimates near 1 apart
            acceptance.to(head.device)
        return cls(head, drawing=drawing, branching=branching, tree=tree, acceptance=acceptance)

    def save_pretrained(self, folder: str | Path, *, layout: str = SPECULATORS, complete: bool = False) -> None:
        """Write the head, see `save_head`, and its acceptance head to a file of its own.

        Raises:
            ValueError: for an unknown layout.
        """
        save_head(self.head, folder, layout=layout, complete=complete)
        save_acceptance(self.acceptance, folder)

    @property
    def name(self) -> str:
        """Its kind and size."""
        return f"feature head ({self.head.num_parameters() / 1e6:.1f}M)"

    @property
    def model(self) -> HeadModel:
        """The head, as what drafts: calibrations name it, and are of no other."""
        return self.head

    def drafting_model(self, target: Any) -> HeadModel:
        """The head."""
        return self.head

    def target_layers(self, target: Any) -> tuple[int, ...]:
        """Low, middle and high, as the head was trained with."""
        return layers_of(self.head.config, target)

    def read_for(self, call: DraftingCall, phase: str = "draft") -> HeadReader:
        """The head with a cache of its own; its forwards count as `phase`, `draft` or `companion`."""
        check_target(self.head.config, call.target)
        return HeadReader(self.head, call.stopwatch, call.prefill_chunk, phase, self.acceptance)


def _check_acceptance(acceptance: AcceptanceHead, head: HeadModel) -> None:
    if not isinstance(acceptance, AcceptanceHead):
        raise TypeError(f"acceptance={acceptance!r}: allowed are an AcceptanceHead and None")
    if acceptance.hidden.in_features != head.config.hidden_size:
        raise ValueError(
            f"acceptance: it reads {acceptance.hidden.in_features} numbers, and the head gives hidden_size="
            f"{head.config.hidden_size}; allowed is the one that was trained with the head"
        )
