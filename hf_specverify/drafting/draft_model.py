"""A small model as drafter, with its own loop and its own row cache."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from ..decoding.probe import make_runner
from ..decoding.processors import Block, ProcessorPlan
from ..decoding.runner import Runner
from ..decoding.state import BatchState
from ..verification.base import DraftKind, VerifierInfo
from ..verification.draws import Draws, GeneratorDraws
from .batch import DraftBatch
from .drafter import Drafter, DraftingCall, DraftSession
from .tree_batch import TreeBatch
from .vocabulary import check_partner, fit_vocabulary, vocabulary_size


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

    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call; the prompt is read at the first proposal."""
        from .model_trees import TreeSession  # it builds on the chains of this file

        check_partner(call.target, self.model, "assistant_model", call.tokenizers)
        branching = self._branching(call.num_paths)
        if max(branching) == 1:
            return ModelSession(self.model, call)
        kind = self._kind(call)
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


class ModelSession(DraftSession):
    """A draft model at work on one call: drafts one chain per row."""

    def __init__(self, model: Any, call: DraftingCall) -> None:
        self.runner: Runner = make_runner(model, call.stopwatch, "draft")
        self.device = self.runner.device
        self.vocabulary = vocabulary_size(call.target)
        self.largest_id = vocabulary_size(model) - 1
        self.sampling = call.sampling and call.draft_temperature != 0
        # Processors hold tensors on the target's device; across devices only those that look at scores alone are used.
        self.plan: ProcessorPlan = call.plan.draft_plan(
            call.draft_temperature, history=self.device == call.state.ids.device
        )
        self.draws: Draws = GeneratorDraws(call.generator, self.device)
        self.prefill_chunk = call.prefill_chunk
        self._prefilled = False
        self._buffer = torch.empty(0, device=self.device)

    def propose(self, state: BatchState, lengths: list[int]) -> DraftBatch | TreeBatch:
        """Draft token by token for all active rows; rows that want fewer ignore the surplus."""
        longest = max(lengths)
        if not longest:
            return DraftBatch(state.ids.new_zeros(len(lengths), 0), tuple(lengths), None)
        logits = self._catch_up(state)
        tokens = torch.zeros(len(lengths), longest, dtype=torch.long, device=self.device)
        q = self._law_buffer(len(lengths), longest) if self.sampling else None
        for position in range(longest):
            if position:
                logits = self._forward(tokens[:, position - 1 : position])
            scores = self._scores(logits, state, tokens, position)
            if q is not None:
                law = scores.softmax(dim=-1)
                q[:, position] = law
                tokens[:, position] = self.draws.sample(law)
            else:
                tokens[:, position] = scores.argmax(dim=-1)
        device = state.ids.device
        return DraftBatch(tokens.to(device), tuple(lengths), None if q is None else q.to(device))

    def _law_buffer(self, rows: int, longest: int) -> Tensor:
        """(rows, longest, V) for the laws of one step, the same memory in every step."""
        size = rows * longest * self.vocabulary
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, device=self.device)
        return self._buffer[:size].view(rows, longest, self.vocabulary)

    def _catch_up(self, state: BatchState) -> Tensor:
        """Feed what was committed since the last proposal: one token, or two after a full acceptance; (A, V) logits."""
        if not self._prefilled:
            self._prefill(state)
        tokens, counts = state.tail(self.runner.lengths)
        logits = self.runner.forward(self._known(tokens), counts, last_only=True).logits[:, -1]
        return fit_vocabulary(logits, self.vocabulary)

    def _prefill(self, state: BatchState) -> None:
        length = min(state.lengths) - 1
        rows = state.row_index
        prompt_valid = state.prompt_valid[rows]
        # Where drafting begins late, committed tokens stand behind the prompt.
        valid = torch.nn.functional.pad(prompt_valid, (0, max(0, length - prompt_valid.shape[1])), value=True)
        prompt = self._known(state.ids[rows, :length])
        self.runner.prefill(prompt, valid[:, :length], prompt_valid, self.prefill_chunk)
        self._prefilled = True

    def _forward(self, tokens: Tensor) -> Tensor:
        logits = self.runner.forward(self._known(tokens), [1] * len(tokens), last_only=True).logits[:, -1]
        return fit_vocabulary(logits, self.vocabulary)

    def _known(self, tokens: Tensor) -> Tensor:
        """Ids that only the target's padded head has are no tokens; the draft reads its last id instead."""
        return tokens.clamp(max=self.largest_id)

    def _scores(self, logits: Tensor, state: BatchState, tokens: Tensor, position: int) -> Tensor:
        """(A, V) processed scores of the draft's next token."""
        block = None
        if self.plan.needs_history:
            drafted = state.with_block(tokens[:, :position].to(state.ids.device), [position] * len(tokens))
            starts = [length + position for length in state.lengths]
            block = Block(drafted, state.rows, starts, [1] * len(starts))
        return self.plan(logits[:, None], block)[:, 0]

    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Take back what the draft read beyond the accepted tokens; the verifier's own token is still to be read."""
        if self._prefilled:
            valid = [length - 1 for length in state.lengths]
            self.runner.rewind([min(cached, kept) for cached, kept in zip(self.runner.lengths, valid, strict=True)])

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        if self._prefilled:
            self.runner.select(places)
