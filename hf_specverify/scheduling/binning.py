"""Bins of a signal: narrow where its values are dense, and one of their own for values that occur again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Signals that end at 1, a value that often occurs exactly (up to the rounding of a sum over a vocabulary).
AT_MOST_ONE = ("S", "A", "c")
ONE = 1 - 1e-6
MOST_BINS = {1: 64, 2: 32, 3: 16}
SAMPLES_PER_CELL = 128
UNIT = 1 << 24  # outcomes are counted in multiples of 2^-24, so that their sums are exact and add in any order


def default_bins(samples: int, dimensions: int) -> int:
    """Bins per dimension, so that a cell holds some 128 samples on average; 2 to 64, 32 or 16 in 1, 2 or 3."""
    wanted: float = (samples / SAMPLES_PER_CELL) ** (1 / dimensions)
    return max(2, min(MOST_BINS[dimensions], round(wanted)))


def distinct(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different values of (n,), ascending, the place of each entry among them, and how often each occurs."""
    found: tuple[Tensor, Tensor, Tensor] = torch.unique(values, return_inverse=True, return_counts=True)
    return found


def make_edges(name: str, values: Tensor, bins: int) -> Tensor:
    """Choose the inner edges of the bins of a signal: (n,) float32 values -> (K - 1,) float32, ascending.

    Bin k holds edges[k - 1] ≤ value < edges[k]. With no more than `bins` different values each has its own bin. Else a
    value that makes up a bin by itself gets one (an atom), the others are divided at their quantiles. S, A and c always
    have a bin for 1. So K may exceed `bins` by a few.
    """
    different, _, counts = distinct(values)
    if len(different) <= bins:
        edges = (different[1:] + different[:-1]) / 2
    else:
        atoms = different[counts * bins >= len(values)]
        others = values[~torch.isin(values, atoms)].sort().values
        left = max(2, bins - len(atoms))
        places = (torch.arange(1, left) * len(others)) // left
        edges = torch.cat([others[places] if len(others) else others, atoms, atoms.nextafter(atoms + 1)])
        edges = edges[(edges > different[0]) & (edges <= different[-1])]
    if name in AT_MOST_ONE:
        edges = torch.cat([edges[edges < ONE], torch.tensor([ONE], device=edges.device)])
    return distinct(edges.float())[0]


def cell_indices(names: Sequence[str], edges: Mapping[str, Tensor], signals: Mapping[str, Tensor]) -> Tensor:
    """Find the cell of every sample in the flattened grid (last signal fastest): long, in the signals' shape."""
    cells: Tensor | None = None
    for name in names:
        value = signals[name].float()
        places = torch.bucketize(value.contiguous(), edges[name].to(value.device), right=True)
        cells = places if cells is None else cells * (len(edges[name]) + 1) + places
    assert cells is not None
    return cells


def count(
    names: Sequence[str], edges: Mapping[str, Tensor], values: Mapping[str, Tensor], outcome: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Number, sum of outcomes and sum of their squares for every cell of a grid."""
    shape = [len(edges[name]) + 1 for name in names]
    cells = cell_indices(names, edges, values)
    number = torch.zeros(shape, dtype=torch.long, device=cells.device)
    number.view(-1).scatter_add_(0, cells, torch.ones_like(cells))
    sums = []
    for values_ in (outcome.double(), outcome.double() ** 2):
        exact = (values_ * UNIT).round() / UNIT
        grid = torch.zeros(shape, dtype=torch.float64, device=cells.device)
        grid.view(-1).scatter_add_(0, cells, exact)
        sums.append(grid)
    return number, sums[0], sums[1]
