"""The figures of the table: what each way of generating gave, over prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .bootstrap import Array, Ratio
from .samples import SequenceSample
from .text_metrics import ENDINGS

Part = Callable[[SequenceSample], float]


@dataclass(frozen=True)
class Figure:
    """A ratio of sums over sequences.

    Attributes:
        name, label: for code and for people.
        above, below: what each sequence adds to the sums.
        transform: applied to the ratio.
        relative: whether two ways are compared by their ratio; else by the difference.
    """

    name: str
    label: str
    above: Part
    below: Part
    transform: Callable[[Array], Array] | None = None
    relative: bool = False

    def ratio(self, sequences: Sequence[SequenceSample], prompts: int) -> Ratio:
        """The sums by prompt, of which there are `prompts`: a prompt's sequences are drawn together."""
        numbers = [sequence.prompt for sequence in sequences]
        return Ratio(
            by_prompt(numbers, [self.above(sequence) for sequence in sequences], prompts),
            by_prompt(numbers, [self.below(sequence) for sequence in sequences], prompts),
            self.transform,
        )


def by_prompt(numbers: Sequence[int], values: Sequence[float], prompts: int) -> Array:
    """(prompts,) sums of values by the number of their prompt."""
    sums: Any = np.bincount(np.asarray(numbers, dtype=np.int64), weights=values, minlength=prompts)
    return np.asarray(sums, dtype=np.float64)


def _one(sequence: SequenceSample) -> float:
    return 1.0


def _ending(kind: str) -> Part:
    return lambda sequence: float(sequence.ending == kind)


FIGURES = (
    Figure("tokens_per_second", "tokens/s", lambda s: s.tokens, lambda s: s.seconds, relative=True),
    Figure("acceptance", "acceptance", lambda s: s.accepted, lambda s: s.verified),
    Figure("block_efficiency", "tokens per target pass", lambda s: s.tokens, lambda s: s.passes),
    Figure("perplexity", "perplexity under the target", lambda s: -s.log_likelihood, lambda s: s.tokens, np.exp),
    Figure("length", "length (tokens)", lambda s: s.tokens, _one),
    *(Figure(f"ended_by_{kind}", f"ended by: {kind}", _ending(kind), _one) for kind in ENDINGS),
    Figure("distinct_1", "distinct-1", lambda s: s.distinct_1, _one),
    Figure("distinct_2", "distinct-2", lambda s: s.distinct_2, _one),
    Figure("repetition", "repetition (4-grams)", lambda s: s.repetition, _one),
)


def score_figure(task: str) -> Figure:
    """The mean score of the sequences that have a task of that name."""

    def score(sequence: SequenceSample) -> float:
        return sequence.score if sequence.task == task and sequence.score is not None else 0.0

    return Figure(f"score_{task}", f"score: {task}", score, lambda sequence: float(sequence.task == task))
