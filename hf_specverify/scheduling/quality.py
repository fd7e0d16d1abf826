"""How good predictions of acceptance are, on sequences that were not learnt from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .binning import distinct
from .held_out import held_out
from .samples import Names, Samples
from .signals import Direction


@dataclass(frozen=True)
class Quality:
    """How good predictions are.

    Attributes:
        samples: how many.
        ece: expected calibration error, mean |predicted - observed| over ten bins of equal width.
        brier: mean squared error against the outcome.
        auc: the chance that an accepted token was predicted higher than a rejected one, ties half; ½ where there are
            none of a kind.
    """

    samples: int
    ece: float
    brier: float
    auc: float


@dataclass(frozen=True)
class CalibrationError:
    """Quality of held-out predictions: of all samples, and by position where that is one of the signals given."""

    overall: Quality
    by_position: dict[int, Quality]


@dataclass(frozen=True, eq=False)
class Reliability:
    """Predicted against observed acceptance in K bins of equal width: (K,) float64 each, empty bins left out."""

    predicted: Tensor
    observed: Tensor
    number: Tensor


def calibration_error(samples: Samples, names: Names, directions: Mapping[str, Direction]) -> CalibrationError:
    """Judge the held-out predictions of one signal set."""
    predicted = held_out(samples, names, directions).predicted
    by_position = {}
    if "position" in samples.signals:
        position = samples.signals["position"].round().long()
        for place in distinct(position)[0].tolist():
            here = position == place
            by_position[place] = quality(predicted[here], samples.outcome[here])
    return CalibrationError(quality(predicted, samples.outcome), by_position)


def quality(predicted: Tensor, outcome: Tensor) -> Quality:
    """ECE, Brier score and AUC of (n,) predictions, for outcomes in [0, 1]."""
    bins = reliability(predicted, outcome, torch.ones_like(predicted), 10)
    ece = float(((bins.predicted - bins.observed).abs() * bins.number).sum() / bins.number.sum())
    brier = float(((predicted - outcome) ** 2).mean())
    return Quality(len(predicted), ece, brier, _area(predicted, outcome))


def reliability(predicted: Tensor, observed: Tensor, number: Tensor, bins: int) -> Reliability:
    """Gather (n,) predictions with their observed means and weights in bins of equal width."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    place = (predicted * bins).long().clamp(max=bins - 1)
    sums = [
        torch.zeros(bins, dtype=torch.float64).scatter_add_(0, place, values.double())
        for values in (predicted * number, observed * number, number)
    ]
    full = sums[2] > 0
    mass = sums[2][full]
    return Reliability(sums[0][full] / mass, sums[1][full] / mass, mass)


def _area(predicted: Tensor, outcome: Tensor) -> float:
    """The area under the ROC curve, each sample an accepted one of weight o and a rejected one of 1 - o."""
    different, place, _ = distinct(predicted)
    accepted, rejected = (
        torch.zeros(len(different), dtype=torch.float64).scatter_add_(0, place, weights.double())
        for weights in (outcome, 1 - outcome)
    )
    pairs = float(accepted.sum() * rejected.sum())
    below = rejected.cumsum(0) - rejected / 2
    return float((accepted * below).sum()) / pairs if pairs > 0 else 0.5
