"""The bounds α and β of mentored decoding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_specverify.verification.residual import precise

_STEPS = 60  # halvings: α to the last bits of float64


def mentored_bounds(p: Tensor, q: Tensor, divergence: float) -> tuple[Tensor, Tensor]:
    """Solve for α ≤ 1 ≤ β such that q clamped between p/β and p/α is a law m with KL(p‖m) ≤ D, α as small as it gets.

    Args:
        p: (…, V), the target's laws.
        q: (…, V), the draft's.
        divergence: D ≥ 0, in nats.

    Returns:
        α and β, (…, 1) each, in the dtype of p.
    """
    if divergence == 0:
        return torch.ones_like(p[..., :1]), torch.ones_like(p[..., :1])
    ranked = _Ranked(precise(p).reshape(-1, p.shape[-1]), precise(q).reshape(-1, q.shape[-1]))
    smallest = ranked.smallest_ratio()
    low, high = smallest.log(), torch.zeros_like(smallest)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        allowed = ranked.clamped(middle.exp())[1] <= divergence
        low, high = torch.where(allowed, low, middle), torch.where(allowed, middle, high)
    alpha = high.exp()
    shape = (*p.shape[:-1], 1)
    return alpha.to(p.dtype).reshape(shape), ranked.clamped(alpha)[0].to(p.dtype).reshape(shape)


class _Ranked:
    """Tokens in the order of p/q, with sums of p, q and p·log(p/q) over every prefix of that order.

    A token with p = 0 has the ratio 0; one with q = 0 < p an infinite one, and stands in no sum of logarithms: it is
    always above β.

    Args:
        p: (R, V) float64.
        q: (R, V) float64.
    """

    def __init__(self, p: Tensor, q: Tensor) -> None:
        self.ratio, order = torch.where(p > 0, p / q, 0).sort(dim=-1)
        p, q = p.gather(1, order), q.gather(1, order)
        logs = torch.where((p > 0) & (q > 0), p * self.ratio.log(), 0)
        self._p, self._q, self._logs = (pad(values.cumsum(dim=-1), (1, 0)) for values in (p, q, logs))
        # -Σ (p/β - q)_+ for β at every token's ratio: rises along the order.
        above_p, above_q = self._p[:, -1:] - self._p[:, 1:], self._q[:, -1:] - self._q[:, 1:]
        self._lacking = -torch.where(self.ratio > 0, above_p / self.ratio - above_q, torch.inf)

    def smallest_ratio(self) -> Tensor:
        """(R, 1) the smallest positive p/q, at most 1: an α below it changes nothing."""
        return torch.where(self.ratio > 0, self.ratio, 1).amin(dim=-1, keepdim=True).clamp_(max=1)

    def clamped(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The law m that q becomes with the upper bound p/α (R, 1): its β ≥ 1, and KL(p‖m), (R, 1) each.

        β gives the tokens above it what the others lose: Σ (p/β - q)_+ = Σ (q - p/α)_+, in closed form between two
        ratios.
        """
        below = torch.searchsorted(self.ratio, alpha)  # tokens with p/q < α
        below_p = self._p.gather(1, below)
        surplus = (self._q.gather(1, below) - below_p / alpha).clamp_(min=0)
        above = torch.searchsorted(self._lacking, -surplus)  # the first token with p/q ≥ β
        above_p, above_q = _from(self._p, above), _from(self._q, above)
        beta = (above_p / (surplus + above_q).clamp_(min=torch.finfo(surplus.dtype).tiny)).clamp_(min=1)
        between = self._logs.gather(1, above) - self._logs.gather(1, below)
        return beta, alpha.log() * below_p + between + above_p * beta.log()


def _from(sums: Tensor, first: Tensor) -> Tensor:
    """(R, 1) the sum over the tokens from `first` on."""
    return sums[:, -1:] - sums.gather(1, first)
