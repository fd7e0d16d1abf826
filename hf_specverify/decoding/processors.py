"""Logits processors at every position of a block, as plain generation would have called them.

Plain generation calls each processor once per token with everything before it. A block needs that for several
positions of rows of different length at once. Processors fall into three kinds:

* by row: depend on the scores of a row alone (temperature, top-k, …): one call for all positions;
* by history: host processors that depend on the tokens before, but keep no state: one call per absolute position,
  for the rows that stand there, with exactly the ids that plain generation passes;
* unknown: everything else may keep a state, or know rows by their index in the batch. Each row gets a copy, called
  with the whole batch, in order; drafted positions are called on copies of the copy and forgotten after a rejection.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation import logits_process as host

_BY_ROW = (
    host.TemperatureLogitsWarper,
    host.TopKLogitsWarper,
    host.TopPLogitsWarper,
    host.MinPLogitsWarper,
    host.TypicalLogitsWarper,
    host.EpsilonLogitsWarper,
    host.EtaLogitsWarper,
    host.TopHLogitsWarper,
    host.InfNanRemoveLogitsProcessor,
    host.LogitNormalization,
)
_BY_HISTORY = (
    host.MinLengthLogitsProcessor,
    host.MinNewTokensLengthLogitsProcessor,
    host.RepetitionPenaltyLogitsProcessor,
    host.NoRepeatNGramLogitsProcessor,
    host.SequenceBiasLogitsProcessor,
    host.NoBadWordsLogitsProcessor,
    host.ForcedBOSTokenLogitsProcessor,
    host.ForcedEOSTokenLogitsProcessor,
    host.ExponentialDecayLengthPenalty,
    host.SuppressTokensAtBeginLogitsProcessor,
    host.SuppressTokensLogitsProcessor,
)


@dataclass(frozen=True)
class Block:
    """The positions of one step, whose scores are to be processed.

    ids: (B, T) the whole batch as generate expanded it, with the drafted chains of the active rows written behind
    what is committed. rows: the active rows' indices into it. starts: for each active row, the number of tokens
    before its first position. counts: its number of positions.
    drafted: where drafts are trees, for each active row and position the draft tokens between what is committed and
    that position; None for chains, whose tokens are in `ids`.
    parents: with `drafted`, for each active row and position the position before it; -1 at the first.
    """

    ids: Tensor
    rows: list[int]
    starts: list[int]
    counts: list[int]
    drafted: list[list[list[int]]] | None = None
    parents: list[list[int]] | None = None

    def part(self, places: slice) -> Block:
        """The block of some of the active rows."""
        drafted, parents = self.drafted and self.drafted[places], self.parents and self.parents[places]
        return Block(self.ids, self.rows[places], self.starts[places], self.counts[places], drafted, parents)

    def by_length(self) -> dict[int, list[tuple[int, int]]]:
        """{number of tokens before: [(place among the active rows, position in the block), …]}, in order."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for place, count in enumerate(self.counts):
            for position in range(count):
                groups.setdefault(self.length(place, position), []).append((place, position))
        return dict(sorted(groups.items()))

    def length(self, place: int, position: int) -> int:
        """Number of tokens before a position."""
        return self.starts[place] + (position if self.drafted is None else len(self.drafted[place][position]))

    def before(self, place: int, position: int) -> int:
        """The position before one, in the same text; -1 at the first."""
        return position - 1 if self.parents is None else self.parents[place][position]

    def token(self, place: int, position: int) -> int:
        """The draft token that stands right before a position other than the first."""
        if self.drafted is not None:
            return self.drafted[place][position][-1]
        return int(self.ids[self.rows[place], self.starts[place] + position - 1])

    def histories(self, members: list[tuple[int, int]]) -> Tensor:
        """(m, length) ids before m positions at the same length."""
        rows = torch.tensor([self.rows[place] for place, _ in members], device=self.ids.device)
        return self._with_drafts(self.ids[rows, : self.length(*members[0])], members, list(range(len(members))))

    def batch(self, place: int, position: int) -> Tensor:
        """(B, length) ids of the whole batch up to a position, that of the position's own row among them."""
        ids = self.ids[:, : self.length(place, position)]
        if self.drafted is None:
            return ids
        return self._with_drafts(ids.clone(), [(place, position)], [self.rows[place]])

    def _with_drafts(self, ids: Tensor, members: list[tuple[int, int]], rows: list[int]) -> Tensor:
        if self.drafted is not None:
            for row, (place, position) in zip(rows, members, strict=True):
                drafted = self.drafted[place][position]
                ids[row, self.starts[place] :] = torch.tensor(drafted, dtype=torch.long, device=ids.device)
        return ids


class ProcessorPlan:
    """Applies a list of processors to the scores of a block.

    Args:
        processors: the host's prepared list, in order.

    Raises:
        ValueError: if a processor of unknown kind can't be copied.
    """

    def __init__(self, processors: list[Any]) -> None:
        self.processors = list(processors)
        self._copies = {
            index: _RowCopies(processor) for index, processor in enumerate(self.processors) if _kind(processor) is None
        }

    @property
    def needs_history(self) -> bool:
        """Whether any processor looks at more than the scores of its row."""
        return any(not isinstance(processor, _BY_ROW) for processor in self.processors)

    def draft_plan(self, temperature: float | None, history: bool) -> ProcessorPlan:
        """The plan for a draft model: the same processors, less those of unknown kind.

        Leaving one out costs acceptance, not exactness: q stays the law that the draft token is drawn from. A draft
        temperature replaces the target's; `history` False also leaves out processors that look at tokens.
        """
        kept = [
            processor
            for processor in self.processors
            if _kind(processor) in (("row", "history") if history else ("row",))
        ]
        if temperature is not None and temperature > 0:
            warper = host.TemperatureLogitsWarper(temperature)
            place = next((i for i, item in enumerate(kept) if _kind(item) == "row"), len(kept))
            kept = [item for item in kept if not isinstance(item, host.TemperatureLogitsWarper)]
            kept.insert(place, warper)
        return ProcessorPlan(kept)

    def __call__(self, logits: Tensor, block: Block | None) -> Tensor:
        """Processed scores (A, n, V) in float32 from logits (A, n, V) of the A active rows, which stay as they are."""
        scores = logits.to(torch.float32, copy=self.needs_history)
        for index, processor in enumerate(self.processors):
            kind = _kind(processor)
            if kind == "row":
                flat = scores.reshape(-1, scores.shape[-1])
                scores = processor(flat.new_zeros(flat.shape[0], 1, dtype=torch.long), flat).view(scores.shape)
                continue
            assert block is not None
            if kind == "history":
                _by_history(processor, scores, block)
            else:
                self._copies[index](scores, block)
        return scores

    def commit(self, rows: list[int], last: list[int]) -> None:
        """Keep the states of unknown processors as they were after position last[i] of row rows[i]."""
        for copies in self._copies.values():
            copies.commit(rows, last)


def _kind(processor: Any) -> str | None:
    # Exact types: a subclass may have added a state.
    if type(processor) in _BY_ROW:
        return "row"
    return "history" if type(processor) in _BY_HISTORY else None


def _by_history(processor: Any, scores: Tensor, block: Block) -> None:
    """Process (A, n, V) scores in place, the rows that stand at the same length together."""
    for members in block.by_length().values():
        places, positions = zip(*members, strict=True)
        index = torch.tensor([places, positions], device=scores.device)
        rows = torch.tensor([block.rows[place] for place in places], device=block.ids.device)
        histories = block.histories(members)
        scores[index[0], index[1]] = _for_rows(processor, rows)(histories, scores[index[0], index[1]])


def _for_rows(processor: Any, rows: Tensor) -> Any:
    """The processor for some rows of the batch: the repetition penalty holds each row's padding."""
    padding = getattr(processor, "prompt_ignore_length", None)
    if not isinstance(padding, Tensor):
        return processor
    part = copy.copy(processor)
    part.prompt_ignore_length = padding[rows.to(padding.device)]
    return part


class _RowCopies:
    """One copy of a processor per row, at the state after what the row has committed."""

    def __init__(self, processor: Any) -> None:
        self.original = processor
        self.committed: dict[int, Any] = {}
        self.trail: dict[int, list[Any]] = {}
        self._copy(processor)

    def __call__(self, scores: Tensor, block: Block) -> None:
        """Process (A, n, V) scores in place, except behind a drafted token that the processor forbids.

        Such a token can't be accepted, so nothing behind it matters; and plain generation would never show the
        processor a text with it, which a grammar may not even be able to read.
        """
        for place, row in enumerate(block.rows):
            states: list[Any] = []  # by position; None where the processor is not called
            for position in range(block.counts[place]):
                before = block.before(place, position)
                state = self.committed.get(row, self.original) if before < 0 else states[before]
                if before >= 0 and scores[place, before, block.token(place, position)] == -torch.inf:
                    state = None
                states.append(None if state is None else self._copy(state))
                if state is not None:
                    ids = block.batch(place, position)
                    scores[place, position] = _for_row(states[-1], row, ids, scores[place, position])
            self.trail[row] = states

    def commit(self, rows: list[int], last: list[int]) -> None:
        for row, position in zip(rows, last, strict=True):
            self.committed[row] = self.trail[row][position]
        self.trail.clear()

    def _copy(self, processor: Any) -> Any:
        try:
            return copy.deepcopy(processor, shared_parts(processor))
        except Exception as error:
            raise ValueError(
                f"logits_processor: {type(processor).__name__} can't be copied ({error}), which speculative decoding "
                "needs to call it on drafted positions; allowed: processors that copy.deepcopy can copy"
            ) from error


def _for_row(processor: Any, row: int, ids: Tensor, scores: Tensor) -> Tensor:
    """One row's (V,) scores from a processor that may know rows by their place in the batch."""
    if type(processor) is host.PrefixConstrainedLogitsProcessor:
        # Other rows hold filler at this length, which the user's function must not see.
        allowed = processor._prefix_allowed_tokens_fn
        processor = host.PrefixConstrainedLogitsProcessor(lambda _, text: allowed(row, text), num_beams=1)
        alone: Tensor = processor(ids[row : row + 1], scores[None])
        return alone[0]
    batch = scores.new_zeros(ids.shape[0], scores.shape[-1])
    batch[row] = scores
    processed: Tensor = processor(ids, batch)
    return processed[row]


def shared_parts(value: Any) -> dict[int, Any]:
    """What a copy of `value` shares with it: the models and tokenizers that it holds. A memo for copy.deepcopy."""
    return {id(part): part for part in getattr(value, "__dict__", {}).values() if _is_shared(part)}


def _is_shared(value: Any) -> bool:
    return isinstance(value, nn.Module) or hasattr(value, "convert_tokens_to_ids")
