"""The law of the draft at every position of a text, as it was when the text was generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..decoding.processors import ProcessorPlan
from ..decoding.traits import input_device
from ..drafting import Drafter, DraftModel, PromptLookup
from ..drafting.prompt_lookup import lookup
from .along import logits_along
from .text import Text


class DraftLaws(ABC):
    """Gives q along one text, from its beginning to its end.

    `everywhere` says whether q is known at positions, too, that were not drafted.
    """

    everywhere: bool

    @abstractmethod
    def start(self, text: Text, vocabulary: int) -> None:
        """Begin with a text, over the target's vocabulary."""

    @abstractmethod
    def law(self, start: int, stop: int) -> Tensor:
        """(stop - start, V) q before new tokens start … stop - 1, on the text's device, in float32."""


class ModelLaws(DraftLaws):
    """The laws of a draft model, by teacher forcing.

    Args:
        model: the draft.
        plan: the target's processors.
        temperature: the draft's own, or None; 0 makes q one-hot on the most likely token.
        device: of the texts.
    """

    everywhere = True

    def __init__(self, model: Any, plan: ProcessorPlan, temperature: float | None, device: torch.device) -> None:
        self.model, self.deterministic = model, temperature == 0
        # As in drafting: across devices only processors that look at scores alone.
        self.plan = plan.draft_plan(temperature, history=input_device(model) == device)

    def start(self, text: Text, vocabulary: int) -> None:
        """As `DraftLaws.start`."""
        self.text = text
        self.pieces: Iterator[tuple[int, Tensor]] = logits_along(self.model, text.prompt, text.new, vocabulary)
        self.first, self.logits = next(self.pieces)

    def law(self, start: int, stop: int) -> Tensor:
        """As `DraftLaws.law`; a span lies within one piece."""
        while start >= self.first + len(self.logits):
            self.first, self.logits = next(self.pieces)
        block = self.text.block(start, stop) if self.plan.needs_history else None
        scores = self.plan(self.logits[None, start - self.first : stop - self.first], block)[0].to(self.text.new.device)
        if self.deterministic:
            return torch.nn.functional.one_hot(scores.argmax(dim=-1), scores.shape[-1]).float()
        return scores.softmax(dim=-1)


class LookupLaws(DraftLaws):
    """One-hot laws on what prompt lookup proposed, looked up again; at positions not drafted, on the token there.

    Args:
        drafter: the drafter.
    """

    everywhere = False

    def __init__(self, drafter: PromptLookup) -> None:
        self.drafter = drafter

    def start(self, text: Text, vocabulary: int) -> None:
        """As `DraftLaws.start`."""
        self.vocabulary = vocabulary
        self.tokens = text.new.clone()
        ids = np.asarray(torch.cat([text.prompt, text.new]).cpu())
        for begin, drafted, verified in text.work.blocks:
            known = ids[: len(text.prompt) + begin]
            found = lookup(known, self.drafter.max_matching_ngram_size, drafted).tokens[:verified]
            room = self.tokens[begin : begin + len(found)]
            room.copy_(torch.from_numpy(found.copy())[: len(room)])

    def law(self, start: int, stop: int) -> Tensor:
        """As `DraftLaws.law`."""
        return torch.nn.functional.one_hot(self.tokens[start:stop], self.vocabulary).float()


def draft_laws(
    drafter: Drafter, plan: ProcessorPlan, temperature: float | None, device: torch.device
) -> DraftLaws | None:
    """The laws of a drafter, or None for one whose laws can't be had again.

    Args:
        drafter: what drafted.
        plan: the target's processors.
        temperature: the draft's, see `effective_temperature`.
        device: of the texts.
    """
    if isinstance(drafter, DraftModel):
        return ModelLaws(drafter.model, plan, temperature, device)
    return LookupLaws(drafter) if isinstance(drafter, PromptLookup) else None


def effective_temperature(drafter: Drafter, temperature: float | None) -> float | None:
    """The draft's temperature: 0 also for a draft model that is told to take its most likely tokens."""
    return 0 if getattr(drafter, "drawing", None) == "deterministic" else temperature
