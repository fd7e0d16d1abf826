"""What a task is."""

from __future__ import annotations

from typing import Protocol


class Task(Protocol):
    """What a right answer to one prompt is; `name` names the kind of score, such as "gsm8k"."""

    @property
    def name(self) -> str:
        """The kind of score."""

    def score(self, text: str) -> float:
        """From 0 to 1: how good an answer is."""
