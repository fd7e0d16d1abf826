"""Smoothing of a grid of counts: sparse cells lean on coarser ones, and probabilities rise where they must."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .signals import Direction

SIGNS: dict[Direction, int] = {"increasing": 1, "decreasing": -1, "none": 0}
STRONGEST = 1000.0  # the weight of a coarser estimate, in samples, where nothing speaks for the finer one
ROUNDS = 50
EMPTY = 1e-3  # samples that an empty cell counts for


def shrunken(number: Tensor, outcome: Tensor, squares: Tensor) -> Tensor:
    """Estimate the mean outcome of every cell of a grid, empty ones included.

    A cell of n samples with sum s gets (s + m·prior) / (n + m). Its prior is a mean of its marginals: the same estimate
    for the grid with one dimension summed out, for each dimension; a single number gets (s + ½) / (n + 1). Marginals
    count by how well they fit, with weights 1 / τ_k², and m = σ²/τ² within 1 … 1000 (empirical Bayes, by moments): σ²
    is the variance of outcomes within cells, τ² that of the cells' true means about the prior, τ_k² about a marginal.

    Args:
        number: (K_1, …, K_d) counts.
        outcome: the sums of the outcomes.
        squares: the sums of their squares.

    Returns:
        The estimates, a float64 grid.
    """
    if number.ndim == 0:
        return ((outcome + 0.5) / (number + 1)).double()
    full = number > 0
    mean = outcome / number.clamp(min=1)
    freedom = float((number - 1).clamp(min=0).sum())
    within = max(0.0, float((squares - outcome * mean)[full].sum()) / freedom) if freedom else 0.25
    noise = within * float(full.sum()) / max(1.0, float(number.sum()))

    def spread(prior: Tensor) -> float:
        """τ² about a prior; what chance alone gives is the least that is taken as seen."""
        seen = float((number * (mean - prior) ** 2)[full].sum()) / max(1.0, float(number.sum()))
        return max(seen - noise, noise / STRONGEST, 1e-12)

    priors = []
    for axis in range(number.ndim):
        marginal = shrunken(number.sum(axis), outcome.sum(axis), squares.sum(axis))
        priors.append(marginal.unsqueeze(axis).expand(number.shape))
    shares = [1 / spread(prior) for prior in priors]
    prior = torch.stack([share * prior for share, prior in zip(shares, priors, strict=True)]).sum(dim=0) / sum(shares)
    m = min(STRONGEST, max(1.0, within / spread(prior)))
    return (outcome + m * prior) / (number + m)


def monotone(values: Tensor, number: Tensor, signs: Sequence[int]) -> Tensor:
    """Make a grid rise (sign 1) or fall (-1) along axes; sign 0 leaves an axis alone.

    One axis is the exact weighted least-squares fit (pool adjacent violators). Several take turns until nothing moves
    by 1e-9, and at most 50 times; what is left to the last digits is lifted. Cells weigh as many samples as they have:
    what an empty one was given by `shrunken` must not move its neighbours, but gives way to them.
    """
    if not any(signs):
        return values
    weights = number + EMPTY
    axes = [axis for axis, sign in enumerate(signs) if sign]
    for _ in range(ROUNDS):
        before = values
        for axis in axes:
            values = _along(values, weights, axis, signs[axis])
        if len(axes) == 1 or float((values - before).abs().max()) < 1e-9:
            break
    for axis in axes:
        values = _lifted(values, axis, signs[axis])
    return values


def _along(values: Tensor, weights: Tensor, axis: int, sign: int) -> Tensor:
    shape = values.movedim(axis, -1).shape
    lines, mass = (grid.movedim(axis, -1).reshape(-1, shape[-1]) for grid in (sign * values, weights))
    return sign * _pooled(lines, mass).reshape(shape).movedim(-1, axis)


def _pooled(values: Tensor, weights: Tensor) -> Tensor:
    """Isotonic fit of lines (R, K) in closed form: g_i = max_{a ≤ i} min_{b ≥ i} mean(a … b)."""
    size = values.shape[1]
    total = torch.nn.functional.pad((values * weights).cumsum(1), (1, 0))
    mass = torch.nn.functional.pad(weights.cumsum(1), (1, 0))
    # [r, a, b]: the mean over a … b.
    mean = (total[:, None, 1:] - total[:, :-1, None]) / (mass[:, None, 1:] - mass[:, :-1, None])
    lower = torch.ones(size, size, dtype=torch.bool, device=values.device).tril(-1)
    mean = mean.masked_fill(lower, torch.inf).flip(2).cummin(2).values.flip(2)
    return mean.masked_fill(lower, -torch.inf).amax(dim=1)


def _lifted(values: Tensor, axis: int, sign: int) -> Tensor:
    if sign > 0:
        return values.cummax(axis).values
    return values.flip(axis).cummax(axis).values.flip(axis)
