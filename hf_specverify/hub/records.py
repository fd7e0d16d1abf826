"""Checks of what a record says about itself; every error names the field."""

from __future__ import annotations

import math
import re
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

Settings = dict[str, str | int | float | bool | None]
"""Flat JSON: names, and values that are no containers."""

LONGEST_TEXT = 4096
MOST_SETTINGS = 64
LARGEST_INTEGER = 1 << 63
HASH = re.compile(r"[0-9a-f]{64}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def refuse(field: str, allowed: str, value: object) -> ValueError:
    """The error for a field that is not as it must be."""
    shown = repr(value)
    return ValueError(f"{field} must be {allowed}, got {shown if len(shown) <= 200 else shown[:200] + '…'}")


def is_text(value: object) -> bool:
    """Whether it is one line of text that a terminal or a card can show as it stands: no control characters."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()


def printable(value: str) -> str:
    """The text as a line that `is_text`: other characters are replaced, and what is too long is cut."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in value)[:LONGEST_TEXT]


def text(field: str, value: Any, pattern: re.Pattern[str] | None = None) -> str | None:
    """A line of text, of the pattern if one is given, or None."""
    if value is None:
        return None
    if not is_text(value) or (pattern is not None and (not pattern.fullmatch(value) or ".." in value)):
        form = f"of the form {pattern.pattern} without '..'" if pattern is not None else "of printable characters"
        raise refuse(field, f"null or a line of text {form}", value)
    return str(value)


def needed_text(field: str, value: Any) -> str:
    """A line of text."""
    found = text(field, value)
    if found is None:
        raise refuse(field, "a line of text", value)
    return found


def hub_id(field: str, value: Any) -> str | None:
    """A name on the Hub, or None."""
    if value is None or (isinstance(value, str) and is_hub_id(value)):
        return value
    raise refuse(field, "null or a name on the Hub (user/name)", value)


def is_hub_id(name: str) -> bool:
    """Whether the Hub could have a repository of that name."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return bool(name)


def integer(field: str, value: Any, least: int = 0) -> int:
    """An integer from `least` on."""
    if type(value) is not int or not least <= value < LARGEST_INTEGER:
        raise refuse(field, f"an integer of at least {least}", value)
    return value


def number(field: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number."""
    if type(value) not in (int, float) or not low <= value <= high or abs(value) >= LARGEST_INTEGER:
        raise refuse(field, f"a finite number in {low} … {high}", value)
    return float(value)


def settings(field: str, value: Any) -> Settings | None:
    """A flat object, or None."""
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MOST_SETTINGS:
        raise refuse(field, f"null or an object of up to {MOST_SETTINGS} fields", value)
    for key, entry in value.items():
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise refuse(field, "an object with names of letters, digits and _", key)
        if isinstance(entry, float) or type(entry) is int:
            number(f"{field}.{key}", entry)
        elif entry is not None and not isinstance(entry, bool) and not is_text(entry):
            raise refuse(f"{field}.{key}", "null, true, false, a number or a line of text", entry)
    return dict(value)


def fields(field: str, value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """An object with exactly the given fields."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise refuse(field, f"an object with the fields {', '.join(names)}", value)
    return value
