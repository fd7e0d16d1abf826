"""Files of JSON that are whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Write a file of JSON; the old one stays whole until the new one is."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n", encoding="utf-8")
    unfinished.replace(path)


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        ValueError: if it is none.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None
