"""Is it worth asking the companion? A first, free filter in front of its pass."""

from __future__ import annotations

import torch
from torch import Tensor

from .binning import cell_indices
from .calibration import CalibrationTable
from .goodput import row_weights
from .signals import own_signals

SCENARIOS = 32  # answers of the companion that are thought through


class CompanionValue:
    """What the companion's answers about a block are expected to be worth, before it is asked.

    A calibration whose signals are the drafter's own and the companion's says how likely each answer is, given the
    drafter's signals, and what it would mean. A row that is verified up to position γ brings Σ_{j ≤ γ} (survival_j -
    price) tokens, a slot in the target's pass being worth `price` of them. Asked, the row takes the best γ for the
    answers it gets; not asked, the best for their mean. The difference of the two expectations is what asking is worth.

    Args:
        table: with at least one signal of the companion, and at least one of the drafter's.
    """

    def __init__(self, table: CalibrationTable) -> None:
        own = own_signals(table.names)
        self.names, self.edges = own, {name: table.edges[name] for name in own}
        axes = [table.names.index(name) for name in own]
        order = [*axes, *(axis for axis in range(len(table.names)) if axis not in axes)]
        cells = int(torch.tensor([table.number.shape[axis] for axis in axes]).prod())
        chances = table.probabilities.permute(order).reshape(cells, -1).double()
        weights = table.number.permute(order).reshape(cells, -1).double()
        # Cells that nobody has seen get what is seen of all.
        weights = weights + weights.sum(0) / weights.sum().clamp(min=1)
        self.answers = _quantiles(chances, weights)
        generator = torch.Generator().manual_seed(0)
        self._orders = [torch.randperm(SCENARIOS, generator=generator) for _ in range(64)]

    def worth(
        self, signals: dict[str, Tensor], drafted: Tensor, price: float, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Tokens that asking about each row is worth, and about how many of its positions.

        Args:
            signals: (B, L), the drafter's own.
            drafted: (B,) long.
            price: tokens that a slot in the target's pass is worth.
            weights: (B,) positive, what the tokens of each row are worth; None means 1.

        Returns:
            (B,) float64, and (B,) long: the longest that any answer would let the row be verified.
        """
        cells = cell_indices(self.names, self.edges, signals).cpu()
        width = cells.shape[1]
        answers = torch.stack([self.answers[cells[:, at]][:, self._orders[at % 64]] for at in range(width)], dim=1)
        exists = torch.arange(width) < drafted.cpu()[:, None]
        survival = answers.masked_fill(~exists[..., None], 0).cumprod(dim=1)  # (B, L, S)
        survival = row_weights(weights, len(cells))[:, None, None] * survival
        known, reach = _best(survival - price)
        mean, _ = _best(survival.mean(dim=-1, keepdim=True) - price)
        return (known.mean(dim=-1) - mean[:, 0]).clamp(min=0), reach.amax(dim=-1)


def _best(gains: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L, S) gains -> (B, S) the largest sum over a prefix, at least 0, and the length of that prefix."""
    sums = torch.nn.functional.pad(gains.cumsum(dim=1), (0, 0, 1, 0))
    best = sums.max(dim=1)
    return best.values, best.indices


def _quantiles(chances: Tensor, weights: Tensor) -> Tensor:
    """(F, S) predictions at evenly spaced quantiles of each row's weighted (F, C) predictions, ascending."""
    ranked, order = chances.sort(dim=1)
    reached = weights.gather(1, order).cumsum(dim=1)
    reached = reached / reached[:, -1:]
    marks = ((torch.arange(SCENARIOS, dtype=torch.float64) + 0.5) / SCENARIOS).expand(len(ranked), -1).contiguous()
    places = torch.searchsorted(reached.contiguous(), marks).clamp(max=ranked.shape[1] - 1)
    return ranked.gather(1, places)
