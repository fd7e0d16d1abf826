"""What the demo measures: one group of prompts, answered in three ways, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from hf_specverify.benchmark.drafts import LOOKUP
from hf_specverify.benchmark.prompts import chat_encoder, encode_chunk
from hf_specverify.benchmark.runs import count_new_tokens, eos_token_ids, pad_token_id, run_cell
from hf_specverify.benchmark.settings import OURS, PLAIN, STOCK, Cell, rotated
from hf_specverify.drafting import FeatureHead

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class DemoModels:
    """What answers; `draft` is a model, a `FeatureHead` or "lookup"."""

    target: Any
    draft: Any
    tokenizer: Any

    def inputs(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return `input_ids` and `attention_mask`, (B, T), left-padded, on the target's device.

        A prompt is the user's turn in the chat template, where the tokenizer has one.
        """
        pad = pad_token_id(self.target, self.tokenizer)
        return encode_chunk(chat_encoder(self.tokenizer), prompts, pad, self.target.device)


@dataclass
class Counts:
    """Sums over the calls of one run.

    Attributes:
        passes: rows scored by the target, summed over its forwards.
        accepted, scored: draft tokens that stand in the answer, and draft tokens that the target scored.
    """

    passes: int = 0
    accepted: int = 0
    scored: int = 0

    def add(self, passes: int, accepted: int, scored: int) -> None:
        """Add the counts of a call."""
        self.passes += passes
        self.accepted += accepted
        self.scored += scored


@dataclass(frozen=True)
class Run:
    """All prompts answered once in one way: answers as ids without padding, wall seconds, counts."""

    answers: tuple[tuple[int, ...], ...]
    seconds: float
    counts: Counts

    @property
    def tokens(self) -> int:
        """Return how many tokens the answers have together."""
        return sum(map(len, self.answers))

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens of all answers over the wall seconds of all calls."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class WayResult:
    """The runs of one way, with those of plain generation in the same repeats to compare with."""

    way: str
    batch_size: int
    runs: list[Run] = field(default_factory=list)
    plain: list[Run] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Return the median over repeats."""
        return median(run.tokens_per_second for run in self.runs)

    @property
    def ratio_to_plain(self) -> float:
        """Return the median of the ratios to plain generation in the same repeat."""
        pairs = zip(self.runs, self.plain, strict=True)
        return median(run.tokens_per_second / plain.tokens_per_second for run, plain in pairs)

    @property
    def tokens_per_target_pass(self) -> float:
        """Return tokens per row and forward of the target, over all repeats."""
        return sum(run.tokens for run in self.runs) / sum(run.counts.passes for run in self.runs)

    @property
    def acceptance(self) -> float | None:
        """Return the share of scored draft tokens that stand in the answers; None where nothing was drafted."""
        scored = sum(run.counts.scored for run in self.runs)
        return sum(run.counts.accepted for run in self.runs) / scored if scored else None

    @property
    def identical(self) -> int:
        """Return how many answers are token for token those of plain generation, in every repeat."""
        pairs = [
            [mine == plain for mine, plain in zip(run.answers, other.answers, strict=True)]
            for run, other in zip(self.runs, self.plain, strict=True)
        ]
        return sum(map(all, zip(*pairs, strict=True)))


def cells(num_draft_tokens: int) -> tuple[Cell, ...]:
    """Return the three ways."""
    return (Cell(PLAIN), Cell(STOCK, num_draft_tokens), Cell(OURS, num_draft_tokens))


def measure(
    models: DemoModels,
    prompts: Sequence[str],
    *,
    batch_size: int,
    num_draft_tokens: int,
    repeats: int,
    options: dict[str, Any],
    seed: int = 0,
    on_run: Callable[[], None] = lambda: None,
) -> list[WayResult]:
    """Answer the prompts in every way, `repeats` times in turn, after one short run of each that is not counted.

    Args:
        models: what answers.
        prompts: without chat template.
        batch_size: rows per call; stock assisted decoding takes one whatever is asked.
        num_draft_tokens: draft tokens per step, for stock and ours alike.
        repeats: counted runs of each way.
        options: arguments of `generate` that are the same in every way.
        seed: of torch's generators; the same for all ways, another in each repeat.
        on_run: called after each counted run.
    """
    batch_size = min(batch_size, len(prompts))
    ways = {cell: WayResult(cell.method, 1 if cell.method == STOCK else batch_size) for cell in cells(num_draft_tokens)}
    # Ours first: where target and draft do not go together, its message is the one to read.
    for cell, way in reversed(ways.items()):
        run_way(cell, models, prompts[:batch_size], way.batch_size, options | {"max_new_tokens": WARM_UP_TOKENS})
    for repeat in range(repeats):
        for cell in rotated(list(ways), repeat):
            torch.manual_seed(seed + repeat)
            ways[cell].runs.append(run_way(cell, models, prompts, ways[cell].batch_size, options))
            on_run()
    for way in ways.values():
        way.plain.extend(ways[Cell(PLAIN)].runs)
    return list(ways.values())


def run_way(cell: Cell, models: DemoModels, prompts: Sequence[str], batch_size: int, options: dict[str, Any]) -> Run:
    """Answer the prompts once, `batch_size` at a time; stock can't draft with a feature head, and looks up instead."""
    draft = LOOKUP if cell.method == STOCK and isinstance(models.draft, FeatureHead) else models.draft
    eos, counts, answers, seconds = eos_token_ids(models.target), Counts(), [], 0.0
    for start in range(0, len(prompts), batch_size):
        inputs = models.inputs(prompts[start : start + batch_size])
        with _target_forwards(models.target) as widths:
            outcome = run_cell(cell, models.target, draft, inputs, options)
        rows = [tuple(row[: count_new_tokens(row, eos)]) for row in outcome.new_ids.tolist()]
        new = sum(map(len, rows))
        if outcome.report is not None:
            report = outcome.report
            counts.add(report.row_passes, report.accepted, report.verified)
        elif cell.method == STOCK:
            # Each forward scores its draft tokens and one token more; the first one scores the prompt as well.
            scored = sum(widths) - inputs["input_ids"].shape[1] - (len(widths) - 1)
            counts.add(len(widths), max(0, new - len(widths)), scored)
        else:
            counts.add(new, 0, 0)
        answers += rows
        seconds += outcome.wall_seconds
    return Run(tuple(answers), seconds, counts)


@contextmanager
def _target_forwards(model: Any) -> Iterator[list[int]]:
    """Note how many positions per row each forward of the model gets."""
    widths: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        widths.append(kwargs["input_ids"].shape[1])

    handle = model.register_forward_hook(note, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()
