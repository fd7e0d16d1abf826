"""Grade-school mathematics: the last number counts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal

_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
# In order: the data set's own mark, TeX, words.
_MARKS = (re.compile(r"####(.*)"), re.compile(r"\\boxed\{([^{}]*)\}"), re.compile(r"answer is(.*)", re.IGNORECASE))


@dataclass(frozen=True)
class MathAnswer:
    """Exact answer, as for GSM8K (Cobbe et al. 2110.14168): 1 if the number that a text gives is the reference's.

    Attributes:
        reference: a solution that ends in "#### 18", or the number alone.

    Raises:
        ValueError: if the reference holds no number.
    """

    reference: str
    name: str = field(default="gsm8k", init=False)

    def __post_init__(self) -> None:
        if final_number(self.reference) is None:
            raise ValueError(f"reference={self.reference!r} holds no number; allowed: a text that ends in '#### 18'")

    def score(self, text: str) -> float:
        """1 or 0."""
        return float(final_number(text) == final_number(self.reference))


def final_number(text: str) -> Decimal | None:
    """The number that a solution ends in: the one behind the last mark (####, boxed, "answer is"), or the last one."""
    for mark in _MARKS:
        for marked in reversed(mark.findall(text)):
            if numbers := _NUMBER.findall(marked):
                return _value(numbers[0])
    numbers = _NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))
