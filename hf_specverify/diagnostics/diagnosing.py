"""Diagnosis of a lossy rule: generate four ways, read the texts again, and measure what the rule did to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.traits import input_device
from .arms import ARMS, MATCHED, Comparison, Generated
from .diagnosis import Diagnosis
from .inputs import as_batches, check_arguments
from .position_reading import PositionReading
from .samples import ArmRun, DiagnosisSamples, SequenceSample, short_numbers
from .settings import describe
from .tasks import Task
from .text_metrics import distinct_share, ending, repetition


def diagnose(
    target: Any,
    draft: Any,
    prompts: Sequence[str] | Iterable[Mapping[str, Tensor]],
    *,
    rule: str = "lenience",
    options: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    batch_size: int = 1,
    tasks: Sequence[Task | None] | None = None,
    matched: bool = True,
    repeats: int = 1,
    seed: int = 0,
    max_new_tokens: int = 128,
    num_draft_tokens: int | None = None,
    draft_temperature: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    samples: DiagnosisSamples | None = None,
    on_batch: Callable[[DiagnosisSamples], None] | None = None,
    **generate_options: Any,
) -> Diagnosis:
    """Measure what a lossy rule does to the output, beside the target, the matched baseline and lossless speculation.

    Every prompt is answered by each of the four (`diagnostics.arms`). The texts of the rule are read again by target
    and draft, which gives the laws at every position; the texts of all give their perplexity under the target.

    Args:
        target: the target model.
        draft: a draft model, a `DraftModel`, or a `PromptLookup`; with other drafters no laws are measured.
        prompts: texts, or inputs of `generate`: left-padded (B, T) `input_ids` and `attention_mask` each. A text is the
            user's turn of a chat where the tokenizer has a template.
        rule: name of a lossy rule.
        options: its parameters.
        tokenizer: for texts, decoded answers and tasks.
        batch_size: rows per call, for texts.
        tasks: what a right answer is (`diagnostics.tasks`), for each prompt in order; needs the tokenizer.
        matched: also sample the matched baseline. But for the truncation rules it runs the draft model over the whole
            text for every token: slow.
        repeats: answers per prompt and way.
        seed: of all random draws.
        max_new_tokens: limit of new tokens.
        num_draft_tokens: drafted per step; None leaves it to the drafter.
        draft_temperature: as in speculation.
        metadata: kept with the diagnosis, JSON values.
        samples: those of an interrupted run with the same arguments, which goes on.
        on_batch: called after every call of `generate`, to show progress or to save; there are
            `num_calls(batches, repeats, matched)`.
        generate_options: passed to `generate`: temperature, top-k, ends; sampling is on.

    Raises:
        ValueError, TypeError: for arguments that are not allowed, or samples that were made with others.
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
    arms = [arm for arm in ARMS if matched or arm != MATCHED]
    check_arguments(tasks, tokenizer, repeats, max_new_tokens, batches)
    if matched and not comparison.has_matched_baseline:
        raise ValueError(f"matched=True: the baseline of rule={rule!r} needs a draft model; allowed is matched=False")
    found = DiagnosisSamples() if samples is None else samples
    found.match(describe(comparison, arms, batches, tasks, repeats, seed))
    calls = [(repeat, number, arm) for repeat in range(repeats) for number in range(len(batches)) for arm in arms]
    device = input_device(target)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # All of them first: what one of them refuses should not be found out after an hour.
        for arm in arms if len(found.runs) < len(calls) else ():
            comparison.warm_up(arm, batches[0])
        for index in range(len(found.runs), len(calls)):
            repeat, number, arm = calls[index]
            torch.manual_seed(seed * 1_000_003 + index)
            first = sum(len(inputs["input_ids"]) for inputs in batches[:number])
            sequences = _sequences(comparison, arm, batches[number], first, tokenizer, tasks)
            found.runs.append(ArmRun(arm, repeat, number, sequences))
            if on_batch is not None:
                on_batch(found)
    return Diagnosis(found, dict(metadata or {}))


def num_calls(batches: int, repeats: int = 1, matched: bool = True) -> int:
    """How many calls of `generate` a diagnosis measures."""
    return batches * repeats * (len(ARMS) - (not matched))


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
