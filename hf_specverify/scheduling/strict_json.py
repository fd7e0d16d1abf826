"""JSON files that are read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

LARGEST = 1 << 20  # bytes


def read_object(path: Path, required: Iterable[str]) -> dict[str, Any]:
    """Read a JSON object that has exactly the given keys.

    Raises:
        ValueError: naming the file, and the field that is unknown, missing or not finite.
    """
    try:
        if path.exists() and not path.is_file():  # a device would have no end
            raise ValueError("it is no file")
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"{path.name} has {size} bytes; allowed are up to {LARGEST}")
        data = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
        )
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} can't be read: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} must hold an object, got {type(data).__name__}")
    unknown, missing = sorted(set(data) - set(required)), sorted(set(required) - set(data))
    for kind, names in (("unknown", unknown), ("missing", missing)):
        if names:
            raise ValueError(f"{path.name} has {kind} fields: {', '.join(names)}")
    return data


def write_object(path: Path, data: dict[str, Any]) -> None:
    """Write an object of JSON values.

    Raises:
        ValueError: for a value that JSON does not have.
    """
    try:
        text = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} can't hold {error}; allowed are finite JSON values") from error
    path.write_text(text + "\n", encoding="utf-8")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a field stands twice")
    return data
