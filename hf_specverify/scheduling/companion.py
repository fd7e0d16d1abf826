"""The companion: a second small model that reads the drafted block before the target does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.processors import Block, ProcessorPlan
from ..decoding.state import BatchState
from ..drafting.batch import DraftBatch
from ..drafting.drafter import DraftingCall
from ..drafting.model_reader import ModelReader
from ..drafting.vocabulary import fit_vocabulary


class Companion:
    """Scores drafted blocks in one pass of a companion model, from a row cache of its own (2509.24328, §3).

    Args:
        model: the companion.
        call: the call; the companion's laws c come from the target's stateless processors.
    """

    def __init__(self, model: Any, call: DraftingCall) -> None:
        self.reader = ModelReader(model, call, "companion")
        self.plan: ProcessorPlan = call.plan.draft_plan(None, history=self.reader.device == call.state.ids.device)

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked; a model always can."""
        return True

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """A model has no use for the target's states."""

    def laws(self, state: BatchState, drafts: DraftBatch) -> Tensor:
        """(A, L, V) float32, the companion's law at the place of every drafted token, on the target's device."""
        longest = drafts.tokens.shape[1]
        self.reader.start(state)
        ids, counts = self._unread(state, drafts)
        behind = [length - read for length, read in zip(state.lengths, self.reader.lengths, strict=True)]
        logits = self.reader.runner.forward(self.reader.known(ids), counts).logits
        # The law of a row's first draft token stands after its last committed one.
        first = torch.tensor(behind, device=logits.device)[:, None] - 1
        last = torch.tensor(counts, device=logits.device)[:, None] - 1
        places = torch.minimum(first + torch.arange(longest, device=logits.device), last)
        rows = torch.arange(len(counts), device=logits.device)[:, None]
        scores = self.plan(fit_vocabulary(logits[rows, places], self.reader.vocabulary), self._block(state, drafts))
        return scores.softmax(dim=-1).to(state.ids.device)

    def _unread(self, state: BatchState, drafts: DraftBatch) -> tuple[Tensor, list[int]]:
        """What each row has committed and drafted behind what was read, less its last draft token; and the counts."""
        ends = [length + max(drafted - 1, 0) for length, drafted in zip(state.lengths, drafts.lengths, strict=True)]
        counts = [end - read for end, read in zip(ends, self.reader.lengths, strict=True)]
        ids = state.with_block(drafts.tokens, list(drafts.lengths))
        starts = torch.tensor(self.reader.lengths, device=ids.device)[:, None]
        columns = (starts + torch.arange(max(counts), device=ids.device)).clamp_(max=ids.shape[1] - 1)
        return ids[state.row_index[:, None], columns], counts

    def _block(self, state: BatchState, drafts: DraftBatch) -> Block | None:
        if not self.plan.needs_history:
            return None
        ids = state.with_block(drafts.tokens, list(drafts.lengths))
        return Block(ids, state.rows, state.lengths, list(drafts.lengths))

    def commit(self, state: BatchState) -> None:
        """Take back what was not committed."""
        self.reader.take_back(state)

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        self.reader.select(places)
