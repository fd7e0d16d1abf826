"""What the draft does not cover of the target: the law of the token after a rejection."""

from __future__ import annotations

import torch
from torch import Tensor


def precise(values: Tensor) -> Tensor:
    """Float64, where the device has it: for products and sums of scalars along a path."""
    return values.float() if values.device.type == "mps" else values.double()


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p - q)_+ along the last dimension, unnormalised; p itself where nothing is left of it.

    p = q to rounding leaves nothing; the rejection itself had a probability of that size, and p is as good a law.
    """
    left = (p - q).clamp(min=0)
    return torch.where(left.amax(dim=-1, keepdim=True) > 0, left, p)


def residual_in_place(p: Tensor, q: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`residual(weight · p, q)` for rows (R, V), in the memory of q: every further buffer costs more than arithmetic.

    Args:
        p: (R, V).
        q: (R, V) of the same dtype, which is overwritten.
        weight: (R,) in [0, 1]; None means 1.

    Returns:
        The residual (R, V), up to a factor per row, and its share (R, 1) of p: Σ(p - q/weight)_+, 0 where nothing was
        left and p stands there instead.
    """
    if weight is None:
        left = torch.sub(p, q, out=q).clamp_(min=0)
    else:
        # Dividing q once is one pass less than scaling p, which is needed as it is if nothing is left.
        factor = weight.clamp(min=1e-30).reciprocal().neg().to(p.dtype)
        left = torch.addcmul(p, q, factor[:, None], out=q).clamp_(min=0)
    share = left.sum(dim=-1, keepdim=True)
    return left.addcmul_(p, (share <= 0).to(p.dtype)), share


def without_token(p: Tensor, token: Tensor, rejected: Tensor) -> Tensor:
    """The residual of one-hot laws, in place: p (R, V) with the rejected tokens zeroed, unless that leaves nothing.

    Args:
        p: (R, V), which is overwritten.
        token: (R,) long.
        rejected: (R,) bool; the other rows stay as they are.
    """
    token = token[:, None]
    kept = p.gather(1, token)
    p.scatter_(1, token, kept.masked_fill(rejected[:, None], 0))
    something_left = p.amax(dim=-1, keepdim=True) > 0
    return p.scatter_(1, token, torch.where(something_left & rejected[:, None], 0, kept))


def kept_weight(mass: Tensor, weight: Tensor) -> Tensor:
    """D / (D + 1 - w), the chance of an inner node of weight w and residual mass D; 1 where that is 0/0."""
    total = mass + (1 - weight)
    return torch.where(total > 0, mass / total, 1.0)
