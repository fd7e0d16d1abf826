"""Any candidate generator of Transformers as drafter."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation.candidate_generator import CandidateGenerator

from ..decoding.state import BatchState
from .batch import DraftBatch
from .drafter import Drafter, DraftingCall, DraftSession, one_path_only
from .vocabulary import fit_vocabulary, vocabulary_size


class CandidateDrafter(Drafter):
    """Drafts with a user's `CandidateGenerator`, one row at a time.

    The generator is called as the host calls it: `get_candidates` with the unpadded ids of one row, then
    `update_candidate_strategy`. If it returns logits, their softmax must be the law that the candidates were drawn
    from while the target samples; without logits the candidates count as deterministic (one-hot q). With several rows
    each row has a copy of the generator; models in it are shared.

    Args:
        generator: the candidate generator.

    Raises:
        ValueError: if it needs outputs of the target, which this interface does not have.
    """

    # As many as the generator gives.
    default_num_draft_tokens = 1_000_000

    def __init__(self, generator: CandidateGenerator) -> None:
        if getattr(generator, "requires_model_outputs", False):
            raise ValueError(
                f"assistant_model: {type(generator).__name__} reads the target's outputs; allowed are candidate "
                "generators that need the token ids only"
            )
        self.generator = generator

    @property
    def name(self) -> str:
        """The generator's class."""
        return type(self.generator).__name__

    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call."""
        one_path_only(self, call)
        count = call.state.batch_size
        generators = [self.generator] if count == 1 else [_copy(self.generator) for _ in range(count)]
        return _CandidateSession(generators, call)


class _CandidateSession(DraftSession):
    def __init__(self, generators: list[Any], call: DraftingCall) -> None:
        self.generators = generators
        self.vocabulary = vocabulary_size(call.target)
        self.sampling = call.sampling
        self.stopwatch = call.stopwatch

    def propose(self, state: BatchState, lengths: list[int]) -> DraftBatch:
        """Ask every active row's generator."""
        with self.stopwatch.measure("draft"):
            rows = [
                self._row(state, row, length, wanted)
                for row, length, wanted in zip(state.rows, state.lengths, lengths, strict=True)
            ]
        counts = tuple(len(tokens) for tokens, _ in rows)
        device, longest = state.ids.device, max(counts)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long, device=device)
        for place, (candidates, _) in enumerate(rows):
            tokens[place, : len(candidates)] = candidates
        if not self.sampling or all(law is None for _, law in rows):
            return DraftBatch(tokens, counts, None)
        q = torch.zeros(len(rows), longest, self.vocabulary, dtype=torch.float32, device=device)
        for place, (candidates, law) in enumerate(rows):
            one_hot = nn.functional.one_hot(candidates, self.vocabulary)
            q[place, : len(candidates)] = (one_hot if law is None else law).to(q)
        return DraftBatch(tokens, counts, q)

    def _row(self, state: BatchState, row: int, length: int, wanted: int) -> tuple[Tensor, Tensor | None]:
        """(k,) candidates of one row and their (k, V) laws, or None."""
        ids = state.ids[row : row + 1, state.host_padding[row] : length]
        if not wanted:
            return ids[0, :0], None
        candidates, logits = self.generators[row].get_candidates(ids)
        new = candidates[0, ids.shape[1] :][:wanted].to(ids.device)
        if new.numel() and int(new.max()) >= self.vocabulary:
            raise ValueError(
                f"assistant_model: {type(self.generators[row]).__name__} proposed the id {int(new.max())}; allowed are "
                f"ids of the target's vocabulary, 0 to {self.vocabulary - 1}"
            )
        if logits is None:
            return new, None
        law = fit_vocabulary(logits[0, : len(new)].float(), self.vocabulary).softmax(dim=-1)
        return new, law.to(ids.device)

    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Let the generators adapt, as the host does after each round."""
        for place, row in enumerate(state.rows):
            ids = state.ids[row : row + 1, state.host_padding[row] : state.lengths[place]]
            row_scores = None if scores is None else scores[place : place + 1, : accepted[place] + 1]
            self.generators[row].update_candidate_strategy(ids, row_scores, accepted[place])

    def select(self, places: list[int]) -> None:
        """Nothing to do: generators are kept by row."""


def _copy(generator: Any) -> Any:
    shared = {id(value): value for value in vars(generator).values() if isinstance(value, nn.Module)}
    try:
        return copy.deepcopy(generator, shared)
    except Exception as error:
        raise ValueError(
            f"assistant_model: {type(generator).__name__} can't be copied ({error}), which a batch of several rows "
            "needs; allowed: generators that copy.deepcopy can copy, or one row"
        ) from error
