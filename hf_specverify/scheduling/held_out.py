"""Predictions of sequences that were not learnt from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .binning import cell_indices, count, default_bins, make_edges
from .isotonic import SIGNS, monotone, shrunken
from .samples import Names, Samples
from .signals import Direction

FOLDS = 5
Predictor = Callable[[Samples], Tensor]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions (n,) of every sample from the other folds, and the bias-corrected log loss in bits."""

    predicted: Tensor
    loss: float


def held_out(samples: Samples, names: Names, directions: Mapping[str, Direction]) -> HeldOut:
    """Cross-validate over groups, in five folds.

    Models of four fifths of the data lose a little more than one of all of them; Burman's correction (Biometrika 76,
    1989) adds what the full model loses on all samples, less the mean of what the folds' models lose on all of them.
    """
    fold = _folds(samples.groups)
    predicted = torch.empty_like(samples.outcome)
    on_all = []
    for number in range(int(fold.max()) + 1):
        test = fold == number
        train = samples.part(~test) if not bool(test.all()) else samples
        everywhere = _fitted(train, names, directions)(samples)
        predicted[test] = everywhere[test]
        on_all.append(_log_loss(everywhere, samples.outcome))
    full = _log_loss(_fitted(samples, names, directions)(samples), samples.outcome)
    correction = full - sum(on_all) / len(on_all)
    return HeldOut(predicted, _log_loss(predicted, samples.outcome) + correction)


def _fitted(samples: Samples, names: Names, directions: Mapping[str, Direction]) -> Predictor:
    """A table of its own for these samples: from samples to predictions (n,) float64."""
    if not names:
        constant = (float(samples.outcome.sum()) + 0.5) / (len(samples.outcome) + 1)
        return lambda others: torch.full_like(others.outcome, constant)
    width = default_bins(len(samples.outcome), len(names))
    edges = {name: make_edges(name, samples.signals[name], width) for name in names}
    number, outcome, squares = count(names, edges, samples.signals, samples.outcome)
    signs = [SIGNS[directions[name]] for name in names]
    table = monotone(shrunken(number, outcome, squares), number, signs).flatten()
    return lambda others: table[cell_indices(names, edges, others.signals)]


def _folds(groups: Tensor) -> Tensor:
    """(n,) the fold of every sample: the groups in a fixed random order, dealt out in turn."""
    number = int(groups.max()) + 1
    order = torch.randperm(number, generator=torch.Generator().manual_seed(0))
    return (order % min(FOLDS, number))[groups]


def _log_loss(predicted: Tensor, outcome: Tensor) -> float:
    """Mean cross-entropy in bits, with outcomes in [0, 1] as soft labels."""
    sure = predicted.clamp(1e-9, 1 - 1e-9)
    return -float((outcome * sure.log2() + (1 - outcome) * (1 - sure).log2()).mean())
