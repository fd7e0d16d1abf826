"""The three ways of calling `generate`, with the same sampling for all of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

import hf_specverify as sv
from hf_specverify.benchmark.drafts import LOOKUP
from hf_specverify.benchmark.measuring import Commit, CommitStamps, wait_for
from hf_specverify.benchmark.settings import OURS, PLAIN, SCHEDULES, BenchSettings, Cell, parse_verification

POLICY = (
    "temperature 0: greedy; otherwise sampling at that temperature with top_k=0 and top_p=1. The generation configs of "
    "target and draft are replaced while the benchmark runs by ones that hold only the special tokens, for all cells "
    "alike; 'neutralised' lists what they held otherwise."
)
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id")
_METADATA = ("transformers_version", "_from_model_config")


def token_options(settings: BenchSettings, temperature: float) -> dict[str, Any]:
    """Return the arguments of `generate` that are the same in every cell."""
    options: dict[str, Any] = {"max_new_tokens": settings.max_new_tokens}
    if settings.ignore_eos:
        options["min_new_tokens"] = settings.max_new_tokens
    if temperature == 0:
        return options | {"do_sample": False}
    return options | {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def neutralised_fields(model: Any) -> dict[str, Any]:
    """Return what a model's generation config sets besides the special tokens, against the library's defaults."""
    defaults = GenerationConfig().to_dict() | GenerationConfig._get_default_generation_params()
    fields = model.generation_config.to_dict()
    unset = (None, False)  # for a field that has no default
    return {
        name: value
        for name, value in sorted(fields.items())
        if name not in (*_KEPT, *_METADATA)
        and value is not None
        and (value not in unset if defaults.get(name) is None else value != defaults[name])
    }


@contextmanager
def neutral_generation(models: Sequence[Any], pad_token_id: int) -> Iterator[None]:
    """Give the models generation configs that hold only the special tokens; restore the old ones afterwards."""
    originals = [model.generation_config for model in models]
    try:
        for model, original in zip(models, originals, strict=True):
            kept = {name: getattr(original, name, None) for name in _KEPT}
            model.generation_config = GenerationConfig(**kept | {"pad_token_id": pad_token_id})
        yield
    finally:
        for model, original in zip(models, originals, strict=True):
            model.generation_config = original


@contextmanager
def fixed_draft_length(draft: Any, length: int, confidence: float) -> Iterator[None]:
    """Make stock assisted decoding draft `length` tokens per step, or up to it; restore the draft's config afterwards.

    Stock decoding reads these three fields from the draft's generation config only, ignores them as arguments of
    `generate`, and writes adapted values back under its "heuristic" schedule; hence a copy.
    """
    original = draft.generation_config
    draft.generation_config = copy.deepcopy(original)
    draft.generation_config.num_assistant_tokens = length
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = confidence
    try:
        yield
    finally:
        draft.generation_config = original


def eos_token_ids(model: Any) -> frozenset[int]:
    """Return the ids that end a text, of which there may be none, one or several."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset(ids) if isinstance(ids, (list, tuple)) else frozenset({ids})


def pad_token_id(model: Any, tokenizer: Any) -> int:
    """Return the id that fills up rows: the tokenizer's, else the model's, else an end-of-text id, else 0."""
    for value in (getattr(tokenizer, "pad_token_id", None), model.generation_config.pad_token_id):
        if value is not None:
            return int(value)
    return min(eos_token_ids(model), default=0)


def count_new_tokens(row: Sequence[int], eos: frozenset[int]) -> int:
    """Return how many tokens of a row are output: up to and including the first end of text; the rest is padding."""
    return next((position + 1 for position, token in enumerate(row) if token in eos), len(row))


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
    cell: Cell,
    target: Any,
    draft: Any,
    inputs: Mapping[str, torch.Tensor],
    options: dict[str, Any],
    scheduling: Mapping[str, Any] | None = None,
    lookup_ngram: int = 2,
) -> Outcome:
    """Run a cell.

    Args:
        cell: what to run.
        target: the target model.
        draft: the draft model, an `EarlyExit`, "lookup", or a `FeatureHead` (not with "stock").
        lookup_ngram: the longest that "lookup" matches.
        inputs: `input_ids` and `attention_mask`, (B, T), left-padded.
        options: further arguments of `generate`.
        scheduling: for schedules other than fixed: `companion_model`, `calibrations` by name, `costs`.
    """
    if draft == LOOKUP and cell.method == OURS:
        draft = sv.PromptLookup(max_matching_ngram_size=lookup_ngram)
    if cell.method == OURS:
        return _ours(cell, target, draft, inputs, options, _scheduling(cell, scheduling or {}))
    if cell.method == PLAIN:
        return _host(target, inputs, options)
    if draft == LOOKUP:
        lookup = {"prompt_lookup_num_tokens": cell.draft_length, "max_matching_ngram_size": lookup_ngram}
        return _host(target, inputs, options | lookup)
    if isinstance(draft, sv.EarlyExit):
        # Stock early exit scores the whole vocabulary, and reads the draft length from the target.
        with fixed_draft_length(target, cell.draft_length or 0, cell.confidence):
            return _host(target, inputs, options | {"assistant_early_exit": draft.num_layers})
    with fixed_draft_length(draft, cell.draft_length or 0, cell.confidence):
        return _host(target, inputs, options | {"assistant_model": draft})


def _scheduling(cell: Cell, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a cell's schedule; a fixed one gets the costs, if there are any, for its report."""
    kind, _, name = cell.schedule.partition(":")
    wanted = {"costs": given.get("costs")}
    if kind != "fixed":
        wanted |= {
            "calibration": given.get("calibrations", {}).get(name),
            "companion_model": given.get("companion_model"),
        }
    return SCHEDULES[kind] | {option: value for option, value in wanted.items() if value is not None}


def _host(target: Any, inputs: Mapping[str, torch.Tensor], options: dict[str, Any]) -> Outcome:
    """Call Transformers' own `generate`, even where `enable` has put ours on the instance."""
    prompt_length = inputs["input_ids"].shape[1]
    start = time.perf_counter()
    stamps = CommitStamps(prompt_length, start)
    sequences = type(target).generate(target, **inputs, stopping_criteria=[stamps], **options)
    wait_for(sequences.device)
    return Outcome(sequences[:, prompt_length:], time.perf_counter() - start, stamps.commits)


def _ours(
    cell: Cell,
    target: Any,
    draft: Any,
    inputs: Mapping[str, torch.Tensor],
    options: dict[str, Any],
    scheduling: dict[str, Any],
) -> Outcome:
    """Call ours; times come from its report, for a custom criterion would slow it down."""
    verification, paths = parse_verification(cell.verification)
    start = time.perf_counter()
    with sv.enabled(target):
        output = target.generate(
            **inputs,
            assistant_model=draft,
            verification=verification,
            num_draft_paths=paths,
            **scheduling,
            num_draft_tokens=cell.draft_length,
            return_dict_in_generate=True,
            **options,
        )
    wait_for(output.sequences.device)
    wall_seconds = time.perf_counter() - start
    steps = output.speculation.steps
    commits = [Commit(step.elapsed, dict(zip(step.rows, step.committed, strict=True))) for step in steps]
    return Outcome(output.sequences[:, inputs["input_ids"].shape[1] :], wall_seconds, commits, output.speculation)
