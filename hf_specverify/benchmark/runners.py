"""Runs one cell on one batch: the three ways of calling `generate`, and what is measured of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import hf_specverify as sv
from hf_specverify.benchmark.cells import OURS, PLAIN, Cell
from hf_specverify.benchmark.sampling import fixed_draft_length
from hf_specverify.benchmark.settings import LOOKUP
from hf_specverify.benchmark.timing import Commit, CommitStamps, wait_for

MAX_MATCHING_NGRAM_SIZE = 2
"""Longest n-gram that prompt lookup matches, for stock and ours alike."""


@dataclass(frozen=True)
class Outcome:
    """What one call of `generate` gave.

    Attributes:
        new_ids: ids after the prompt, (B, T), with padding.
        wall_seconds: of the whole call.
        commits: when tokens appeared.
        report: ours only; the SpeculationReport.
    """

    new_ids: torch.Tensor
    wall_seconds: float
    commits: Sequence[Commit]
    report: Any = None


def run_cell(
    cell: Cell, target: Any, draft: Any, inputs: Mapping[str, torch.Tensor], options: dict[str, Any]
) -> Outcome:
    """Run a cell.

    Args:
        cell: what to run.
        target: the target model.
        draft: the draft model, or "lookup".
        inputs: `input_ids` and `attention_mask`, (B, T), left-padded.
        options: further arguments of `generate`.
    """
    if cell.method == OURS:
        return _ours(cell, target, draft, inputs, options)
    if cell.method == PLAIN:
        return _host(target, inputs, options)
    if draft == LOOKUP:
        lookup = {"prompt_lookup_num_tokens": cell.draft_length, "max_matching_ngram_size": MAX_MATCHING_NGRAM_SIZE}
        return _host(target, inputs, options | lookup)
    with fixed_draft_length(draft, cell.draft_length or 0):
        return _host(target, inputs, options | {"assistant_model": draft})


def _host(target: Any, inputs: Mapping[str, torch.Tensor], options: dict[str, Any]) -> Outcome:
    """Call Transformers' own `generate`, even where `enable` has put ours on the instance."""
    prompt_length = inputs["input_ids"].shape[1]
    start = time.perf_counter()
    stamps = CommitStamps(prompt_length, start)
    sequences = type(target).generate(target, **inputs, stopping_criteria=[stamps], **options)
    wait_for(sequences.device)
    return Outcome(sequences[:, prompt_length:], time.perf_counter() - start, stamps.commits)


def _ours(cell: Cell, target: Any, draft: Any, inputs: Mapping[str, torch.Tensor], options: dict[str, Any]) -> Outcome:
    """Call ours; times come from its report, for a custom criterion would slow it down."""
    drafter = sv.PromptLookup(max_matching_ngram_size=MAX_MATCHING_NGRAM_SIZE) if draft == LOOKUP else draft
    start = time.perf_counter()
    with sv.enabled(target):
        output = target.generate(
            **inputs,
            assistant_model=drafter,
            verification="token",
            verify_length="fixed",
            num_draft_tokens=cell.draft_length,
            return_dict_in_generate=True,
            **options,
        )
    wait_for(output.sequences.device)
    wall_seconds = time.perf_counter() - start
    steps = output.speculation.steps
    commits = [Commit(step.elapsed, dict(zip(step.rows, step.committed, strict=True))) for step in steps]
    return Outcome(output.sequences[:, inputs["input_ids"].shape[1] :], wall_seconds, commits, output.speculation)
