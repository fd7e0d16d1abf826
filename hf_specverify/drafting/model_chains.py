"""A draft model that draws one chain per row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..decoding.processors import Block, ProcessorPlan
from ..decoding.state import BatchState
from ..scheduling import signal_values  # the module, whose own imports may have led here
from ..verification.base import DraftKind
from ..verification.draws import Draws, GeneratorDraws
from .batch import DraftBatch
from .drafter import DraftingCall, DraftSession
from .reader import ChainReader
from .tree_batch import TreeBatch


class ModelSession(DraftSession):
    """A draft model or head at work on one call: drafts token by token, one chain per row.

    Args:
        reader: of the draft model, of the target's first layers, or the head.
        call: the call.
        kind: `deterministic` takes the most likely tokens, anything else draws.
    """

    def __init__(self, reader: ChainReader, call: DraftingCall, kind: DraftKind) -> None:
        self.reader = reader
        self.device, self.vocabulary = self.reader.device, self.reader.vocabulary
        self.sampling = kind != "deterministic"
        # Processors hold tensors on the target's device; across devices only those that look at scores alone are used.
        self.plan: ProcessorPlan = call.plan.draft_plan(
            call.draft_temperature, history=self.device == call.state.ids.device
        )
        self.draws: Draws = GeneratorDraws(call.generator, self.device)
        self.signals, self.stopper = call.signals, call.stopper
        self._buffer = torch.empty(0, dtype=torch.float32, device=self.device)

    def propose(self, state: BatchState, lengths: list[int]) -> DraftBatch | TreeBatch:
        """Draft for all active rows; rows that want fewer tokens ignore the surplus."""
        lengths = self.possible(lengths)
        longest = max(lengths)
        if not longest:
            return DraftBatch(state.ids.new_zeros(len(lengths), 0), tuple(lengths), None)
        logits = self.reader.catch_up(state)
        tokens = torch.zeros(len(lengths), longest, dtype=torch.long, device=self.device)
        q = self._law_buffer(len(lengths), longest) if self.sampling else None
        values = {name: torch.zeros(tokens.shape, device=self.device) for name in self.signals}
        for position in range(longest):
            if position:
                logits = self.reader.feed(tokens[:, position - 1 : position])
            scores = self._scores(logits, state, tokens, position)
            self._draw(scores, tokens, q, values, position)
            if self.stopper is not None and position + 1 < longest:
                so_far = {name: value[:, position] for name, value in values.items()}
                lengths = self.stopper.after(position + 1, so_far, lengths)
            if max(lengths) <= position + 1:
                break
        drawn, device = max(lengths), state.ids.device
        return DraftBatch(
            tokens[:, :drawn].to(device),
            tuple(lengths),
            None if q is None else q[:, :drawn].to(device),
            signals={name: value[:, :drawn].to(device) for name, value in values.items()},
        )

    def possible(self, lengths: list[int]) -> list[int]:
        """Draft lengths, 0 while the reader can't draft yet."""
        return lengths if self.reader.is_ready else [0] * len(lengths)

    def _draw(self, scores: Tensor, tokens: Tensor, q: Tensor | None, values: dict[str, Tensor], position: int) -> None:
        """Draw the tokens of one position; write them, their law, and their signals."""
        law = scores.softmax(dim=-1) if q is not None or values else None
        if q is not None and law is not None:
            q[:, position] = law
            tokens[:, position] = self.draws.sample(law)
        else:
            tokens[:, position] = scores.argmax(dim=-1)
        if law is not None and values:
            drawn, given = tokens[:, position : position + 1], self.reader.signals(self.signals)
            found = signal_values.compute_signals(self.signals, drawn, law[:, None], lookup=given)
            for name, value in found.items():
                values[name][:, position] = value[:, 0]

    def _law_buffer(self, rows: int, longest: int) -> Tensor:
        """(rows, longest, V) for the laws of one step, the same memory in every step."""
        size = rows * longest * self.vocabulary
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.float32, device=self.device)
        return self._buffer[:size].view(rows, longest, self.vocabulary)

    def _scores(self, logits: Tensor, state: BatchState, tokens: Tensor, position: int) -> Tensor:
        """(A, V) processed scores of the draft's next token."""
        block = None
        if self.plan.needs_history:
            drafted = state.with_block(tokens[:, :position].to(state.ids.device), [position] * len(tokens))
            starts = [length + position for length in state.lengths]
            block = Block(drafted, state.rows, starts, [1] * len(starts))
        return self.plan(logits[:, None], block)[:, 0]

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """Hand the target's states on."""
        self.reader.see(states, prompt)

    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Take back what the draft read beyond the accepted tokens; the verifier's own token is still to be read."""
        self.reader.take_back(state)

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        self.reader.select(places)
