"""A feature head as companion: it reads the target's hidden states, so it is far cheaper than a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.state import BatchState
from ..drafting.batch import DraftBatch
from ..drafting.drafter import DraftingCall
from ..drafting.heads import FeatureHead
from .companion import Companion


class HeadCompanion(Companion):
    """Scores drafted blocks token by token, in forwards of a single layer.

    A head reads its own output where the target has not been yet, so a block of L tokens takes L forwards in a row.
    Before the target has read the prompt there is nothing to read, and the step drafts nothing.

    Args:
        head: the head.
        call: the call; the head's laws come from the target's stateless processors.
    """

    def __init__(self, head: FeatureHead, call: DraftingCall) -> None:
        self.head = head.read_for(call, "companion")
        self.plan = call.plan.draft_plan(None, history=self.head.device == call.state.ids.device)

    @property
    def is_ready(self) -> bool:
        """Whether the target has read the prompt."""
        return self.head.is_ready

    def laws(self, state: BatchState, drafts: DraftBatch) -> Tensor:
        """(A, L, V) float32, the head's law at the place of every drafted token, on the target's device."""
        tokens = drafts.tokens.to(self.head.device)
        logits = [self.head.catch_up(state)]
        for place in range(tokens.shape[1] - 1):
            logits.append(self.head.feed(tokens[:, place : place + 1]))
        scores = self.plan(torch.stack(logits, dim=1), self._block(state, drafts))
        return scores.softmax(dim=-1).to(state.ids.device)

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """Take note of the target's hidden states, see `DraftSession.see`."""
        self.head.see(states, prompt)

    def commit(self, state: BatchState) -> None:
        """Take back what was not committed."""
        self.head.take_back(state)

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        self.head.select(places)


def start_companion(companion: Any, call: DraftingCall) -> Companion:
    """A companion at work on one call, from a model or a `FeatureHead`."""
    return HeadCompanion(companion, call) if isinstance(companion, FeatureHead) else Companion(companion, call)


def companion_weights(companion: Any) -> Any:
    """What is priced and identified: of a `FeatureHead` its network; None stays None."""
    return companion.head if isinstance(companion, FeatureHead) else companion


def layers_to_see(draft_layers: tuple[int, ...], companion: Any, target: Any) -> tuple[int, ...]:
    """The target's hidden states that a call collects, for the drafter and a companion that is a head.

    Raises:
        ValueError: if both want some, and not the same.
    """
    wanted = companion.target_layers(target) if isinstance(companion, FeatureHead) else ()
    if wanted and draft_layers and wanted != draft_layers:
        raise ValueError(
            f"companion_model: its head reads the hidden states {list(wanted)}, the draft's {list(draft_layers)}; "
            "allowed: a head that reads the same, or a model"
        )
    return draft_layers or wanted
