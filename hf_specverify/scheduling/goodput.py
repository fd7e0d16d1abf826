"""How many draft tokens are worth their place in the target's forward.

Goodput is the expected number of tokens that a step commits, per second (2509.24328, section 4). Positions are added
while it rises and adding ends at its first fall, so that whether a position is verified depends on nothing behind it. A
global maximum over a jagged latency does not have that property and biases sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Latency = Tensor | Sequence[float] | Callable[[Tensor], Tensor]
"""Seconds of the target's forward by the number of draft tokens in it: a table from 0 on, or a function of counts."""


def expected_accepted(acceptance: Tensor | Sequence[float]) -> Tensor:
    """E[N | γ] = Σ_{j ≤ γ} Π_{i ≤ j} P_i for γ = 0 … L: (L,) predicted acceptances -> (L + 1,) float64.

    Raises:
        ValueError: if `acceptance` is not (L,) with entries in [0, 1].
    """
    values = torch.as_tensor(acceptance, dtype=torch.float64)
    if values.ndim != 1 or not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"acceptance must have the shape (L,) and entries in [0, 1], got {acceptance}")
    return torch.nn.functional.pad(values.cumprod(dim=0).cumsum(dim=0), (1, 0))


def goodput_by_length(acceptance: Tensor | Sequence[float], latency: Tensor | Sequence[float]) -> Tensor:
    """(E[N | γ] + 1) / latency(γ) for γ = 0 … L: (L + 1,) float64; arguments as `goodput_length`."""
    expected = expected_accepted(acceptance)
    return (expected + 1) / latency_table(latency, len(expected) - 1, exactly=True).to(expected.device)


def goodput_length(acceptance: Tensor | Sequence[float], latency: Tensor | Sequence[float]) -> int:
    """Return the number γ of draft tokens of one row to verify: it is raised from 0 while goodput rises.

    Args:
        acceptance: (L,) predicted acceptance of each position, given that it is reached.
        latency: (L + 1,) seconds of a step that verifies γ = 0 … L draft tokens.

    Raises:
        ValueError: if an argument is not as described.
    """
    values = goodput_by_length(acceptance, latency)
    return int((values[1:] > values[:-1]).long().cumprod(dim=0).sum())


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """What the batch verifies.

    Attributes:
        lengths: (B,) long, draft tokens of each row to verify.
        threshold: (B, L) float64, the weighted survival above which a position was admitted when it was considered;
            infinite where it was not considered any more.
    """

    lengths: Tensor
    threshold: Tensor


def schedule_batch(
    survival: Tensor, latency: Latency, drafted: Tensor | None = None, weights: Tensor | None = None
) -> BatchSchedule:
    """Add, across rows, the position with the largest survival as long as the batch's goodput rises.

    Goodput is (B + Σ w·survival) / latency(tokens), w the weight of the row's tokens. With k positions admitted and
    τ = B + Σ of their weighted survivals, one more of weighted survival s raises it if and only if
    s > θ = τ·(latency(k + 1) / latency(k) - 1). Survivals fall along a row, so the order of the greedy rule is the
    sorted order; ties go by row, then by position.

    Sampling stays exact, jointly over rows, if survival[b, i] depends on nothing drawn from position i on (or the draft
    is deterministic): then every decision is taken before the token that it is about is looked at. For predictions that
    look at the drawn token use `schedule_drawn`: in this order even a token that is never admitted decides when others
    are considered, and no correction row by row undoes that.

    Args:
        survival: (B, L), Π_{j ≤ i} of the predicted acceptances of each row.
        latency: seconds of the forward by the number of draft tokens in it, over all rows: 0 … B·L.
        drafted: (B,) long, how many positions each row has, not chosen by looking at tokens of other rows in this step;
            None means L.
        weights: (B,) positive, what the tokens of each row are worth, B in all, from earlier steps; None means 1.

    Raises:
        ValueError: if an argument is not as described.
    """
    rows, longest = _check_positions("survival", survival, drafted)
    weights = row_weights(weights, rows).to(survival.device)
    values = (
        (weights[:, None] * survival.double())
        .cummin(dim=1)
        .values.masked_fill(~existing(survival, drafted), -torch.inf)
        .flatten()
    )
    ranked, order = values.sort(descending=True, stable=True)
    table = latency_table(latency, rows * longest).to(values.device)
    expected = rows + torch.nn.functional.pad(ranked.clamp(min=0).cumsum(dim=0), (1, 0))[:-1]
    needed = expected * (table[1:] / table[:-1] - 1)
    admitted = ((ranked > needed) & (ranked >= 0)).long().cumprod(dim=0)
    considered = torch.nn.functional.pad(admitted, (1, 0), value=1)[:-1].bool() & (ranked >= 0)
    threshold = torch.full_like(values, torch.inf)
    threshold[order] = torch.where(considered, needed, torch.inf)
    lengths = torch.zeros_like(order).scatter_(0, order, admitted).view(rows, longest).sum(dim=1)
    return BatchSchedule(lengths, threshold.view(rows, longest))


def latency_table(latency: Latency, most: int, exactly: bool = False) -> Tensor:
    """(most + 1,) float64 seconds for 0 … `most` draft tokens.

    Raises:
        ValueError: if there are too few entries (or, if `exactly`, too many), or one is not positive and finite.
    """
    table = (latency(torch.arange(most + 1)) if callable(latency) else torch.as_tensor(latency)).double()
    if table.ndim != 1 or len(table) < most + 1 or (exactly and len(table) > most + 1):
        raise ValueError(f"latency must have {most + 1} entries, for 0 to {most} tokens, got {tuple(table.shape)}")
    table = table[: most + 1]
    if not bool(((table > 0) & table.isfinite()).all()):
        raise ValueError(f"latency must be positive and finite, got {table.tolist()}")
    return table


def row_weights(weights: Tensor | None, rows: int) -> Tensor:
    """(B,) float64, checked; ones for None.

    Raises:
        ValueError: if they are not (B,) positive numbers.
    """
    if weights is None:
        return torch.ones(rows, dtype=torch.float64)
    if weights.shape != (rows,) or not bool(((weights > 0) & weights.isfinite()).all()):
        raise ValueError(f"weights must be {rows} positive numbers, got {weights.tolist()}")
    return weights.double()


def existing(positions: Tensor, drafted: Tensor | None) -> Tensor:
    """(B, L) bool, which positions of (B, L) hold a draft token, given the (B,) numbers drafted (None: all)."""
    if drafted is None:
        return torch.ones_like(positions, dtype=torch.bool)
    return torch.arange(positions.shape[1], device=positions.device) < drafted.to(positions.device)[:, None]


def _check_positions(name: str, values: Tensor, drafted: Tensor | None) -> tuple[int, int]:
    if values.ndim != 2 or not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"{name} must have the shape (B, L) and entries in [0, 1], got {tuple(values.shape)}")
    if drafted is not None and drafted.shape != values.shape[:1]:
        raise ValueError(f"drafted must have the shape ({values.shape[0]},), got {tuple(drafted.shape)}")
    return values.shape[0], values.shape[1]
