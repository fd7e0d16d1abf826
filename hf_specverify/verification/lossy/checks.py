"""Checks of the parameters of lossy rules."""

from __future__ import annotations

from collections.abc import Collection
from math import inf


def check_number(name: str, value: object, low: float, high: float = inf, low_allowed: bool = True) -> None:
    """Refuse what is no finite number from `low` to `high`.

    Args:
        name: of the parameter.
        value: what was given.
        low: the smallest value.
        high: the largest value, allowed where it is finite.
        low_allowed: whether `low` itself is allowed.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is out of range.
    """
    above = f"from {low:g}" if low_allowed else f"above {low:g}"
    allowed = f"finite numbers {above}" + ("" if high == inf else f" to {high:g}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: allowed are {allowed}")
    if not (low <= value <= high and abs(value) < inf and (low_allowed or value > low)):
        raise ValueError(f"{name}={value!r}: allowed are {allowed}")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse what is none of some words.

    Raises:
        ValueError: naming the parameter and the words.
    """
    if value not in choices:
        raise ValueError(f"{name}={value!r}: allowed are {', '.join(map(repr, choices))}")
