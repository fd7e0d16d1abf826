"""The step, read aloud: propose, schedule, score, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..drafting.batch import DraftBatch
from ..drafting.drafter import DraftSession
from ..drafting.tree_batch import TreeBatch
from ..report import StepRecord
from ..scheduling.schedule import Schedule, StepOutcome
from ..verification.base import BatchVerdict, Verifier, child_probability
from ..verification.draws import Draws
from ..verification.greedy import greedy_children, verify_greedy, verify_greedy_trees
from .paths import along, committed_tokens, follow, join, scoring_region
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
        state: the batch. target: the target's runner. session: the drafter at work. schedule: how much to draft and
            verify.
        verifier: decides while the target samples. plan: the target's processors. stopping: its criteria.
        draws: random draws on the target's device. recorder: scores and states of committed tokens.
        streamer: gets committed tokens, or None. sampling: whether the target samples.
    """

    state: BatchState
    target: Runner
    session: DraftSession
    schedule: Schedule
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
        begin = self.stopwatch.elapsed()
        with self.stopwatch.measure("schedule"):
            lengths = self.schedule.draft_lengths(state.room(self.target.traits.max_positions), state)
            if not self.schedule.is_ready:
                lengths = [0] * len(lengths)
        proposed = self.session.propose(state, lengths)
        with self.stopwatch.measure("schedule"):
            drafts = self.schedule.choose(proposed, state)
            plain_seconds = self.schedule.plain_seconds(state)
            expected_seconds = self.schedule.expected_seconds(proposed, drafts, state)
        output = self._score(drafts)
        with self.stopwatch.measure("verify"):
            verdict, scores, acceptance = self._verify(drafts, output)
        rows = list(state.rows)
        accepted, counts = self._commit(drafts, verdict, output, scores)
        if acceptance is not None:
            with self.stopwatch.measure("schedule"):
                seconds = self.stopwatch.elapsed() - begin
                self.schedule.learn(StepOutcome(rows, drafts, acceptance, accepted, seconds, verdict.path))
        return StepRecord(
            mode="speculative" if any(proposed.lengths) else "plain",
            rows=tuple(rows),
            drafted=proposed.lengths,
            verified=drafts.lengths,
            accepted=tuple(accepted),
            committed=tuple(counts),
            elapsed=self.stopwatch.elapsed(),
            depths=drafts.depths,
            choice=self.schedule.choice,
            plain_seconds=plain_seconds,
            expected_seconds=expected_seconds,
        )

    def _score(self, drafts: DraftBatch | TreeBatch) -> ForwardOutput:
        """One target pass over the last committed token of every row and its drafts."""
        roots = self.state.ids[self.state.row_index, self.state.starts - 1]
        self.target.rewind([length - 1 for length in self.state.lengths])
        block = torch.cat([roots[:, None], drafts.tokens], dim=1)
        region = scoring_region(drafts).to(self.target.device) if isinstance(drafts, TreeBatch) else None
        return self.target.forward(block, [1 + length for length in drafts.lengths], region=region)

    def _verify(
        self, drafts: DraftBatch | TreeBatch, output: ForwardOutput
    ) -> tuple[BatchVerdict, Tensor | None, Tensor | None]:
        """The verdict, and, where they are wanted, processed scores and acceptance probabilities (A, L or N)."""
        logits = output.logits.to(self.state.ids.device)
        block = self._block(drafts)
        verdicts, kept, chances = [], [], []
        for places in self._chunks(logits):
            part = drafts.part(places)
            scores = self.plan(logits[places], block and block.part(places))
            verdict, chance = self._verify_rows(part, scores)
            verdicts.append(verdict)
            if self.recorder.wants_scores:
                kept.append(scores)
            if chance is not None:
                chances.append(chance)
        return (
            join(verdicts, max(drafts.depths)),
            torch.cat(kept) if kept else None,
            torch.cat(chances) if chances else None,
        )

    def _verify_rows(self, drafts: DraftBatch | TreeBatch, scores: Tensor) -> tuple[BatchVerdict, Tensor | None]:
        wanted = self.schedule.wants_outcomes
        if self.sampling:
            p = scores.softmax(dim=-1)
            verdict = self.verifier.verify_batch(drafts, p, self.draws)
            if not wanted:
                return verdict, None
            if isinstance(drafts, TreeBatch):
                return verdict, child_probability(drafts, p)
            return verdict, self.verifier.drafted_acceptance(drafts, p)
        best = scores.argmax(dim=-1)
        if isinstance(drafts, TreeBatch):
            return verify_greedy_trees(drafts, best), greedy_children(drafts, best).float() if wanted else None
        return verify_greedy(drafts, best), (drafts.tokens == best[:, :-1]).float() if wanted else None

    def _chunks(self, logits: Tensor) -> Iterator[slice]:
        rows = logits.shape[0]
        step = max(1, VERIFY_ELEMENTS // (logits.shape[1] * logits.shape[2]))
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def _block(self, drafts: DraftBatch | TreeBatch) -> Block | None:
        if not self.plan.needs_history:
            return None
        state, counts = self.state, [1 + length for length in drafts.lengths]
        if isinstance(drafts, DraftBatch):
            return Block(state.with_block(drafts.tokens, list(drafts.lengths)), state.rows, state.lengths, counts)
        # Room for the longest path; a node's own text is written in when it is asked for.
        ids = state.with_block(state.ids.new_zeros(len(counts), max(drafts.depths)), [0] * len(counts))
        parents = [
            [-1, *(parent + 1 for parent in row[: count - 1])]
            for row, count in zip(drafts.parents.tolist(), counts, strict=True)
        ]
        drafted = [_texts(row, above) for row, above in zip(drafts.tokens.tolist(), parents, strict=True)]
        return Block(ids, state.rows, state.lengths, counts, drafted, parents)

    def _commit(
        self, drafts: DraftBatch | TreeBatch, verdict: BatchVerdict, output: ForwardOutput, scores: Tensor | None
    ) -> tuple[list[int], list[int]]:
        """Append what was accepted, up to where a row stops; rows that end leave.

        Returns:
            Tokens accepted, and tokens committed, by row.
        """
        state, rows, before, path = self.state, list(self.state.rows), list(self.state.lengths), verdict.path
        tokens = committed_tokens(drafts, verdict)
        stops = self.stopping.stops(tokens, state.starts)
        # The one wait for the device in a step.
        accepted, stopped = verdict.accepted.tolist(), stops.tolist()
        counts = [_first(row[: count + 1]) for row, count in zip(stopped, accepted, strict=True)]
        finished = [row[count - 1] for row, count in zip(stopped, counts, strict=True)]
        if path is not None and isinstance(drafts, TreeBatch):
            self.target.keep(before, path)
            if self.recorder.is_active or self.target.flags.layers:
                output, scores = follow(output, path, before), None if scores is None else along(scores, path)
        self.recorder.step(rows, before, counts, output, scores)
        if self.stopping.needs_text:
            self._check_text(tokens, counts, finished)
            self.recorder.trim(rows, [start + count for start, count in zip(before, counts, strict=True)])
        if self.stopping.out_of_time():
            finished = [True] * len(finished)
        state.commit(tokens, counts)
        self.plan.commit(rows, _last_positions(counts, path if isinstance(drafts, TreeBatch) else None))
        self._stream(tokens, counts)
        self._show(output)
        self.session.commit(state, accepted, scores, path)
        self.schedule.commit(state)
        if any(finished):
            self._leave(finished)
        return accepted, counts

    def _show(self, output: ForwardOutput) -> None:
        """Let drafter and companion see the target's hidden states, if one of them asked for some."""
        flags, prompt = self.target.flags, self.target.prompt_outputs
        if not flags.layers or output.hidden_states is None:
            return
        read = [flags.for_drafter(part.hidden_states) for part in prompt if part.hidden_states is not None]
        states = flags.for_drafter(output.hidden_states)
        self.session.see(states, read)
        self.schedule.see(states, read)
        if not self.recorder.is_active:
            prompt.clear()

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
            self.schedule.select(places)

    def _stream(self, tokens: Tensor, counts: list[int]) -> None:
        if self.streamer is not None:
            for token in tokens[0, : counts[0]].cpu():
                self.streamer.put(token[None])


def _first(stops: list[bool]) -> int:
    """How many tokens are committed: up to and including the first that stops the row."""
    return stops.index(True) + 1 if True in stops else len(stops)


def _texts(tokens: list[int], parents: list[int]) -> list[list[int]]:
    """The draft tokens up to each position of a scored tree, from its nodes' tokens and its positions' parents."""
    texts: list[list[int]] = []
    for position, parent in enumerate(parents):
        texts.append([] if parent < 0 else [*texts[parent], tokens[position - 1]])
    return texts


def _last_positions(counts: list[int], path: Tensor | None) -> list[int]:
    """The position of the scored block that gave the last of counts[i] committed tokens."""
    if path is None:
        return [count - 1 for count in counts]
    return [0 if count == 1 else row[count - 2] + 1 for count, row in zip(counts, path.tolist(), strict=True)]
