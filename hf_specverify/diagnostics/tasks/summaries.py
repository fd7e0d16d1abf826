"""Summaries, by the longest common subsequence with a reference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Summary:
    """ROUGE-L against one reference (Lin 2004).

    Attributes:
        reference: a summary.

    Raises:
        ValueError: if the reference holds no word.
    """

    reference: str
    name: str = field(default="rouge_l", init=False)

    def __post_init__(self) -> None:
        if not words(self.reference):
            raise ValueError(f"reference={self.reference!r} holds no word; allowed: a summary")

    def score(self, text: str) -> float:
        """The F-measure."""
        return rouge_l(text, self.reference)


def rouge_l(text: str, reference: str) -> float:
    """F1 of precision and recall of the longest common subsequence of words; 0 where nothing is common."""
    first, second = words(text), words(reference)
    common = longest_common(first, second)
    return 2 * common / (len(first) + len(second)) if common else 0.0


def words(text: str) -> list[str]:
    """The runs of letters and digits in lower case, without stemming."""
    return re.findall(r"[^\W_]+", text.lower())


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        above = 0  # of the row before, one column to the left
        for column, other in enumerate(second, 1):
            above, row[column] = row[column], above + 1 if word == other else max(row[column], row[column - 1])
    return row[-1]
