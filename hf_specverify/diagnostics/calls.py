"""The calls of `generate` that a diagnosis consists of: numbered, and each made without knowing of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..decoding.traits import input_device
from .arms import ARMS, MATCHED, Comparison, Generated
from .inputs import as_batches, check_arguments
from .position_reading import PositionReading
from .samples import ArmRun, SequenceSample, short_numbers
from .settings import describe
from .tasks import Task
from .text_metrics import distinct_share, ending, repetition


@dataclass(frozen=True)
class Calls:
    """What is to be called; `len` says how often.

    Attributes:
        comparison: models, rule and options.
        arms: the ways of generating.
        batches: inputs of `generate`.
        tokenizer, tasks, repeats, seed: as for `diagnose`.
    """

    comparison: Comparison
    arms: list[str]
    batches: list[Mapping[str, Tensor]]
    tokenizer: Any
    tasks: Sequence[Task | None] | None
    repeats: int
    seed: int

    def __len__(self) -> int:
        return self.repeats * len(self.batches) * len(self.arms)

    @property
    def settings(self) -> dict[str, Any]:
        """JSON values that decide what the calls give."""
        return describe(self.comparison, self.arms, self.batches, self.tasks, self.repeats, self.seed)

    @contextmanager
    def own_randomness(self) -> Iterator[None]:
        """Leave the caller's random generators as they are."""
        device = input_device(self.comparison.target)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield

    def warm_up(self) -> None:
        """Call every way once for a few tokens: what one of them refuses should not be found out after an hour."""
        for arm in self.arms:
            self.comparison.warm_up(arm, self.batches[0])

    def make(self, index: int) -> ArmRun:
        """Make a call: all ways of a batch one after the other, then the next batch, then the next repetition."""
        rest, place = divmod(index, len(self.arms))
        repeat, number = divmod(rest, len(self.batches))
        arm = self.arms[place]
        torch.manual_seed(self.seed * 1_000_003 + index)
        first = sum(len(inputs["input_ids"]) for inputs in self.batches[:number])
        sequences = _sequences(self.comparison, arm, self.batches[number], first, self.tokenizer, self.tasks)
        return ArmRun(arm, repeat, number, sequences)


def plan_calls(
    target: Any,
    draft: Any,
    prompts: Sequence[str] | Iterable[Mapping[str, Tensor]],
    *,
    rule: str,
    options: Mapping[str, Any] | None,
    tokenizer: Any,
    batch_size: int,
    tasks: Sequence[Task | None] | None,
    matched: bool,
    repeats: int,
    seed: int,
    max_new_tokens: int,
    num_draft_tokens: int | None,
    draft_temperature: float | None,
    **generate_options: Any,
) -> Calls:
    """Check the arguments of `diagnose` and say what is to be called.

    Raises:
        ValueError, TypeError: for arguments that are not allowed.
    """
    comparison = Comparison(
        target,
        draft,
        rule,
        dict(options or {}),
        num_draft_tokens,
        draft_temperature,
        max_new_tokens,
        dict(generate_options),
    )
    batches = as_batches(prompts, tokenizer, batch_size, comparison)
    check_arguments(tasks, tokenizer, repeats, max_new_tokens, batches)
    if matched and not comparison.has_matched_baseline:
        raise ValueError(f"matched=True: the baseline of rule={rule!r} needs a draft model; allowed is matched=False")
    arms = [arm for arm in ARMS if matched or arm != MATCHED]
    return Calls(comparison, arms, batches, tokenizer, tasks, repeats, seed)


def _sequences(
    comparison: Comparison,
    arm: str,
    inputs: Mapping[str, Tensor],
    first: int,
    tokenizer: Any,
    tasks: Sequence[Task | None] | None,
) -> list[SequenceSample]:
    """Generate for a batch whose prompts are numbered from `first`, and measure."""
    generated = comparison.generate(arm, inputs)
    reading = comparison.read(arm, inputs, generated)
    return [
        _sample(comparison, generated, reading, row, first + row, tokenizer, tasks[first + row] if tasks else None)
        for row in range(len(generated.new))
    ]


def _sample(
    comparison: Comparison,
    generated: Generated,
    reading: PositionReading,
    row: int,
    prompt: int,
    tokenizer: Any,
    task: Task | None,
) -> SequenceSample:
    tokens = generated.new[row]
    work = generated.work[row] if generated.work is not None else None
    text = None if tokenizer is None else str(tokenizer.decode(tokens, skip_special_tokens=True))
    positions = reading.positions[row]
    return SequenceSample(
        prompt=prompt,
        tokens=len(tokens),
        ending=ending(tokens, comparison.end_tokens, comparison.max_new_tokens),
        log_likelihood=reading.log_likelihoods[row],
        distinct_1=distinct_share(tokens, 1),
        distinct_2=distinct_share(tokens, 2),
        repetition=repetition(tokens),
        seconds=generated.seconds / len(generated.new),
        passes=len(tokens) if work is None else work.passes,
        verified=0 if work is None else work.verified,
        accepted=0 if work is None else work.accepted,
        score=None if task is None or text is None else task.score(text),
        task=None if task is None else task.name,
        text=text,
        positions=None if positions is None else {name: short_numbers(v) for name, v in positions.items()},
    )
