"""Diagnosis of a lossy rule: generate four ways, read the texts again, and measure what the rule did to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from .arms import ARMS
from .calls import plan_calls
from .diagnosis import Diagnosis
from .samples import DiagnosisSamples
from .tasks import Task


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
    calls = plan_calls(
        target, draft, prompts, rule=rule, options=options, tokenizer=tokenizer, batch_size=batch_size, tasks=tasks,
        matched=matched, repeats=repeats, seed=seed, max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens, draft_temperature=draft_temperature, **generate_options,
    )  # fmt: skip
    found = DiagnosisSamples() if samples is None else samples
    found.match(calls.settings)
    with calls.own_randomness():
        if len(found.runs) < len(calls):
            calls.warm_up()
        for index in range(len(found.runs), len(calls)):
            found.runs.append(calls.make(index))
            if on_batch is not None:
                on_batch(found)
    return Diagnosis(found, dict(metadata or {}))


def num_calls(batches: int, repeats: int = 1, matched: bool = True) -> int:
    """How many calls of `generate` a diagnosis measures."""
    return batches * repeats * (len(ARMS) - (not matched))
