"""A small model beside the target, which reads along in a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.masks import TreeRegion
from ..decoding.probe import make_runner
from ..decoding.runner import Runner
from ..decoding.state import BatchState
from .drafter import DraftingCall
from .vocabulary import fit_vocabulary, vocabulary_size


class ModelReader:
    """Keeps a model's cache in step with what the rows have committed; the prompt is read at the first use.

    It is a `Reader`.

    Args:
        model: the model.
        call: the call.
        phase: what its forwards count as: `draft` or `companion`.
    """

    def __init__(self, model: Any, call: DraftingCall, phase: str) -> None:
        self.runner: Runner = make_runner(model, call.stopwatch, phase)
        self.device = self.runner.device
        self.vocabulary = vocabulary_size(call.target)
        self.largest_id = vocabulary_size(model) - 1
        self.prefill_chunk = call.prefill_chunk
        self.has_started = False

    @property
    def takes_trees(self) -> bool:
        """Whether the model's layout has trees."""
        return self.runner.takes_trees

    @property
    def is_ready(self) -> bool:
        """A model can always draft."""
        return True

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """A model has no use for the target's states."""

    @property
    def lengths(self) -> list[int]:
        """Tokens read of each active row."""
        return self.runner.lengths

    def start(self, state: BatchState) -> None:
        """Hand over all but the last token of the shortest row; nothing if that was done."""
        if self.has_started:
            return
        length = min(state.lengths) - 1
        rows = state.row_index
        prompt_valid = state.prompt_valid[rows]
        # Where reading begins late, committed tokens stand behind the prompt.
        valid = torch.nn.functional.pad(prompt_valid, (0, max(0, length - prompt_valid.shape[1])), value=True)
        prompt = self.known(state.ids[rows, :length])
        self.runner.prefill(prompt, valid[:, :length], prompt_valid, self.prefill_chunk)
        self.has_started = True

    def catch_up(self, state: BatchState) -> Tensor:
        """Feed what was committed since the last time: one token, or two after a full acceptance; (A, V) logits."""
        self.start(state)
        tokens, counts = state.tail(self.lengths)
        logits = self.runner.forward(self.known(tokens), counts, last_only=True).logits[:, -1]
        return fit_vocabulary(logits, self.vocabulary)

    def feed(self, tokens: Tensor) -> Tensor:
        """Feed one more token of each row, (A, 1); (A, V) logits."""
        logits = self.runner.forward(self.known(tokens), [1] * len(tokens), last_only=True).logits[:, -1]
        return fit_vocabulary(logits, self.vocabulary)

    def signals(self, names: Sequence[str]) -> dict[str, Tensor]:
        """None of its own; the laws give all."""
        return {}

    def feed_nodes(self, tokens: Tensor, parents: Tensor, region: TreeRegion) -> Tensor:
        """Feed nodes of a tree, (A, F); (A, F, V) logits. The region says all of their parents."""
        output = self.runner.forward(self.known(tokens), [tokens.shape[1]] * len(tokens), region=region)
        return fit_vocabulary(output.logits, self.vocabulary)

    def keep(self, base: list[int], chosen: list[list[int]]) -> None:
        """Move the nodes of each row's path to the front, and forget the others."""
        longest = max(map(len, chosen))
        # Beyond a row's own path slots are copied onto themselves; they are taken back next.
        slots = [row + list(range(len(row), longest)) for row in chosen]
        self.runner.keep(base, torch.tensor(slots, dtype=torch.long).reshape(len(slots), longest))
        self.runner.rewind([length + len(row) for length, row in zip(base, chosen, strict=True)])

    def forget(self, base: list[int]) -> None:
        """Forget what was read behind base[b] tokens."""
        if self.has_started:
            self.runner.rewind([min(read, length) for read, length in zip(self.lengths, base, strict=True)])

    def known(self, tokens: Tensor) -> Tensor:
        """Ids that only the target's padded head has are no tokens; the model reads its last id instead."""
        return tokens.clamp(max=self.largest_id)

    def take_back(self, state: BatchState) -> None:
        """Forget what was not committed; the last committed token is still to be read."""
        if self.has_started:
            kept = [min(read, length - 1) for read, length in zip(self.lengths, state.lengths, strict=True)]
            self.runner.rewind(kept)

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        if self.has_started:
            self.runner.select(places)
