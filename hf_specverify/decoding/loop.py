"""The step, read aloud: propose, schedule, score, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..drafting.drafter import DraftSession
from ..drafting.tree import DraftBatch
from ..report import StepRecord
from ..scheduling import FixedLength
from ..verification.base import BatchVerdict, Verifier
from ..verification.draws import Draws
from ..verification.greedy import verify_greedy
from .processors import Block, ProcessorPlan
from .recorder import Recorder
from .runner import ForwardOutput, Runner
from .state import BatchState
from .stopping import Stopping
from .timing import Stopwatch

# Float32 numbers (16 MB) that the rows verified at once may have. It bounds the memory of a step whatever the batch,
# and the allocator reuses buffers of this size: beyond 32 MB, glibc maps and clears fresh pages each time.
VERIFY_ELEMENTS = 1 << 22


@dataclass
class SpeculativeLoop:
    """Everything one call works with; `run` generates.

    Attributes:
        state: the batch. target: the target's runner. session: the drafter at work. schedule: draft lengths.
        verifier: decides while the target samples. plan: the target's processors. stopping: its criteria.
        draws: random draws on the target's device. recorder: scores and states of committed tokens.
        streamer: gets committed tokens, or None. sampling: whether the target samples.
    """

    state: BatchState
    target: Runner
    session: DraftSession
    schedule: FixedLength
    verifier: Verifier
    plan: ProcessorPlan
    stopping: Stopping
    draws: Draws
    recorder: Recorder
    stopwatch: Stopwatch
    streamer: Any
    sampling: bool

    def run(self, prefill_chunk: int | None) -> list[StepRecord]:
        """Generate until every row has ended; the tokens are in `state`."""
        self._prefill(prefill_chunk)
        records = []
        while self.state.rows:
            records.append(self._step())
        if self.streamer is not None:
            self.streamer.end()
        return records

    def _prefill(self, chunk: int | None) -> None:
        """Hand over all but the last prompt token, which is the root of the first block."""
        prompt, valid = self.state.ids[:, : self.state.prompt_length - 1], self.state.prompt_valid
        self.target.prefill(prompt, valid[:, :-1], valid, chunk)

    def _step(self) -> StepRecord:
        state = self.state
        with self.stopwatch.measure("schedule"):
            lengths = self.schedule.draft_lengths(state.room(self.target.traits.max_positions))
        drafts = self.session.propose(state, lengths)
        output = self._score(drafts)
        with self.stopwatch.measure("verify"):
            verdict, scores = self._verify(drafts, output)
        return self._commit(drafts, verdict, output, scores)

    def _score(self, drafts: DraftBatch) -> ForwardOutput:
        """One target pass over the last committed token of every row and its drafts."""
        roots = self.state.ids[self.state.row_index, self.state.starts - 1]
        self.target.rewind([length - 1 for length in self.state.lengths])
        block = torch.cat([roots[:, None], drafts.tokens], dim=1)
        return self.target.forward(block, [1 + length for length in drafts.lengths])

    def _verify(self, drafts: DraftBatch, output: ForwardOutput) -> tuple[BatchVerdict, Tensor | None]:
        """The verdict, and the processed scores where they are to be kept."""
        logits = output.logits.to(self.state.ids.device)
        block = self._block(drafts)
        verdicts, kept = [], []
        for places in self._chunks(logits):
            part = DraftBatch(
                drafts.tokens[places], drafts.lengths[places], None if drafts.q is None else drafts.q[places]
            )
            verdict, scores = self._verify_rows(part, logits[places], block and block.part(places))
            verdicts.append(verdict)
            if self.recorder.wants_scores:
                kept.append(scores)
        verdict = BatchVerdict(
            torch.cat([part.accepted for part in verdicts]), torch.cat([part.next_token for part in verdicts])
        )
        return verdict, torch.cat(kept) if kept else None

    def _verify_rows(self, drafts: DraftBatch, logits: Tensor, block: Block | None) -> tuple[BatchVerdict, Tensor]:
        scores = self.plan(logits, block)
        if not self.sampling:
            return verify_greedy(drafts, scores.argmax(dim=-1)), scores
        return self.verifier.verify_batch(drafts, scores.softmax(dim=-1), self.draws), scores

    def _chunks(self, logits: Tensor) -> Iterator[slice]:
        rows = logits.shape[0]
        step = max(1, VERIFY_ELEMENTS // (logits.shape[1] * logits.shape[2]))
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def _block(self, drafts: DraftBatch) -> Block | None:
        if not self.plan.needs_history:
            return None
        counts = list(drafts.lengths)
        ids = self.state.with_block(drafts.tokens, counts)
        return Block(ids, self.state.rows, self.state.lengths, [1 + count for count in counts])

    def _commit(
        self, drafts: DraftBatch, verdict: BatchVerdict, output: ForwardOutput, scores: Tensor | None
    ) -> StepRecord:
        """Append what was accepted, up to where a row stops; rows that end leave."""
        state, rows, before = self.state, list(self.state.rows), list(self.state.lengths)
        tokens = append_next(drafts.tokens, verdict)
        stops = self.stopping.stops(tokens, state.starts)
        # The one wait for the device in a step.
        accepted, stopped = verdict.accepted.tolist(), stops.tolist()
        counts = [_first(row[: count + 1]) for row, count in zip(stopped, accepted, strict=True)]
        finished = [row[count - 1] for row, count in zip(stopped, counts, strict=True)]
        self.recorder.step(rows, before, counts, output, scores)
        if self.stopping.needs_text:
            self._check_text(tokens, counts, finished)
            self.recorder.trim(rows, [start + count for start, count in zip(before, counts, strict=True)])
        if self.stopping.out_of_time():
            finished = [True] * len(finished)
        state.commit(tokens, counts)
        self.plan.commit(rows, counts)
        self._stream(tokens, counts)
        self.session.commit(state, accepted, scores)
        if any(finished):
            self._leave(finished)
        return self._record(rows, drafts, accepted, counts)

    def _check_text(self, tokens: Tensor, counts: list[int], finished: list[bool]) -> None:
        """Shorten rows that stop strings or custom criteria end; changes `counts` and `finished`."""
        ids = self.state.with_block(tokens, counts)
        found = self.stopping.stops_by_text(
            ids, self.state.rows, self.state.lengths, counts, self.recorder.scores_until
        )
        for place, position in enumerate(found):
            if position is not None:
                counts[place], finished[place] = position + 1, True

    def _leave(self, finished: list[bool]) -> None:
        places = self.state.drop(finished)
        if places:
            self.target.select(places)
            self.session.select(places)

    def _stream(self, tokens: Tensor, counts: list[int]) -> None:
        if self.streamer is not None:
            for token in tokens[0, : counts[0]].cpu():
                self.streamer.put(token[None])

    def _record(self, rows: list[int], drafts: DraftBatch, accepted: list[int], counts: list[int]) -> StepRecord:
        return StepRecord(
            mode="speculative" if any(drafts.lengths) else "plain",
            rows=tuple(rows),
            drafted=drafts.lengths,
            verified=drafts.lengths,
            accepted=tuple(accepted),
            committed=tuple(counts),
            elapsed=self.stopwatch.elapsed(),
        )


def append_next(drafted: Tensor, verdict: BatchVerdict) -> Tensor:
    """(A, L + 1) tokens: the accepted drafts of each row, then the verifier's own token; what follows is filler."""
    tokens = torch.cat([drafted, drafted.new_zeros(drafted.shape[0], 1)], dim=1)
    return tokens.scatter_(1, verdict.accepted[:, None], verdict.next_token[:, None])


def _first(stops: list[bool]) -> int:
    """How many tokens are committed: up to and including the first that stops the row."""
    return stops.index(True) + 1 if True in stops else len(stops)
