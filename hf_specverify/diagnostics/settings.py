"""What a diagnosis was asked for, in JSON values that two runs can be compared by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

from ..drafting import Drafter
from .arms import Comparison
from .tasks import Task


def describe(
    comparison: Comparison,
    arms: Sequence[str],
    batches: Sequence[Mapping[str, Tensor]],
    tasks: Sequence[Task | None] | None,
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """The settings of a run.

    Prompts and tasks are told apart by a hash. Options of `generate` that are no JSON values go by their type.
    """
    drafter = comparison.drafter
    return {
        "target": describe_model(comparison.target),
        "draft": describe_drafter(drafter),
        "rule": comparison.rule_object.description,
        "arms": list(arms),
        "num_draft_tokens": comparison.num_draft_tokens or drafter.default_num_draft_tokens,
        "draft_temperature": comparison.temperature,
        "max_new_tokens": comparison.max_new_tokens,
        "options": {name: _plain(value) for name, value in sorted(comparison.options.items())},
        "batch_sizes": [len(inputs["input_ids"]) for inputs in batches],
        "prompts": _hash_of([{name: inputs[name].tolist() for name in sorted(inputs)} for inputs in batches]),
        "tasks": sorted({task.name for task in tasks or () if task is not None}),
        "answers": _hash_of([_content(task) for task in tasks or ()]),
        "repeats": repeats,
        "seed": seed,
    }


def describe_model(model: Any) -> str:
    """Name (or class), size and data type of a model."""
    name = getattr(model.config, "_name_or_path", "") or type(model).__name__
    return f"{name} ({model.num_parameters() / 1e6:.4g}M, {str(model.dtype).removeprefix('torch.')})"


def describe_drafter(drafter: Drafter) -> str:
    """The draft model, or the drafter's name."""
    model = getattr(drafter, "model", None)
    return drafter.name if model is None else describe_model(model)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return type(value).__name__


def _content(task: Task | None) -> str:
    return repr(task) if is_dataclass(task) else type(task).__name__


def _hash_of(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
