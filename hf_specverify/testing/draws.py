"""Draws that follow a script, so that every way a verifier can decide is walked once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from hf_specverify.verification.draws import Draws

Result = TypeVar("Result")


class ScriptedDraws:
    """Draws that follow a script and add up the probability of what happened.

    The k-th draw takes the outcome number `script[k]` among those with a positive probability; beyond the end of the
    script, number 0. An `accept` call of n entries has up to 2^n outcomes, a `sample` call one per token of positive
    weight (over several rows: their product).

    Attributes:
        choices: the number of the outcome taken at each draw so far.
        counts: how many outcomes each of those draws had.
        probability: the probability of everything drawn so far.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.choices: list[int] = list(script)
        self.counts: list[int] = []
        self.probability = 1.0

    def accept(self, probabilities: Tensor) -> Tensor:
        """As `Draws.accept`."""
        chances = [min(max(chance, 0.0), 1.0) for chance in probabilities.double().flatten().tolist()]
        flags = self._choose([[(True, chance), (False, 1 - chance)] for chance in chances])
        return torch.tensor(flags, dtype=torch.bool, device=probabilities.device).reshape(probabilities.shape)

    def sample(self, weights: Tensor) -> Tensor:
        """As `Draws.sample`."""
        rows = weights.double().reshape(-1, weights.shape[-1]).tolist()
        if not all(0 < sum(row) < float("inf") for row in rows):
            raise ValueError(f"weights must be finite, with at least one positive weight in every row, got {rows}")
        tokens = self._choose([[(token, weight / sum(row)) for token, weight in enumerate(row)] for row in rows])
        return torch.tensor(tokens, dtype=torch.long, device=weights.device).reshape(weights.shape[:-1])

    def _choose(self, options: list[list[tuple[Result, float]]]) -> list[Result]:
        """Make one draw of independent parts, given the values of each part with their probabilities."""
        outcomes = list(itertools.product(*([option for option in part if option[1] > 0] for part in options)))
        draw = len(self.counts)
        if draw == len(self.choices):
            self.choices.append(0)
        self.counts.append(len(outcomes))
        chosen = outcomes[self.choices[draw]]
        for _, chance in chosen:
            self.probability *= chance
        return [value for value, _ in chosen]


def enumerate_outcomes(function: Callable[[Draws], Result]) -> Iterator[tuple[float, Result]]:
    """Run `function` once for every way that its draws can turn out.

    `function` must do the same thing whenever its draws turn out the same.

    Yields:
        The probability of each way, and what `function` returned; the probabilities add up to 1.
    """
    script: list[int] = []
    while True:
        draws = ScriptedDraws(script)
        result = function(draws)
        yield draws.probability, result
        script = draws.choices
        while script and script[-1] == draws.counts[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1
