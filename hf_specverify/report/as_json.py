"""The report as JSON types, and fields that are read back with suspicion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from .steps import StepRecord


def as_json(value: Any) -> Any:
    """The value in JSON types: keys become strings, tuples lists."""
    if isinstance(value, dict):
        return {str(key): as_json(inner) for key, inner in value.items()}
    return [as_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def read_step(data: Mapping[str, Any]) -> StepRecord:
    """A step from its JSON types.

    Raises:
        TypeError, ValueError: naming the field that is unknown, missing or wrong.
    """
    match_fields("step", data, [f.name for f in fields(StepRecord)])
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    return StepRecord(**values)


def match_fields(where: str, data: object, required: Iterable[str] = (), optional: Iterable[str] = ()) -> None:
    """Refuse all but a mapping that has the required keys and no others than these and the optional ones.

    Raises:
        TypeError, ValueError: naming the keys.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{where} is {data!r}; allowed is a mapping")
    required = set(required)
    unknown, missing = set(data) - {*required, *optional}, required - set(data)
    for kind, names in (("unknown", unknown), ("missing", missing)):
        if names:
            raise ValueError(f"{where} has {kind} fields: {', '.join(sorted(map(str, names)))}")
