"""The law of the highest ranked of K independent paths, which greedy multi-path block verification follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_specverify.verification.residual import precise


@dataclass(frozen=True, eq=False)
class Rank:
    """Where a prefix stands among the K paths; entries of any one shape, up to a common factor of A and x.

    Attributes:
        below: A, the probability that one path ranks strictly below the prefix.
        here: x, the probability that one path begins with it.
        paths: K.
    """

    below: Tensor
    here: Tensor
    paths: int

    @classmethod
    def root(cls, shape: tuple[int, ...], paths: int, device: torch.device) -> Rank:
        """A = 0, x = 1."""
        here = precise(torch.ones(shape, device=device))
        return cls(torch.zeros_like(here), here, paths)

    def law(self, q: Tensor, below: Tensor) -> Tensor:
        """q_Γ of tokens after the prefix: the law of the next token of the highest ranked of the paths.

        q·Σ_i (A + y + z)^i (A + y)^(K-1-i), y = x·below, z = x·q; its sum over the vocabulary telescopes to
        ((A + x)^K - A^K)/x, the null token's share included.

        Args:
            q: the tokens' probabilities.
            below: the draft's mass that ranks below each of them.
        """
        first = self.below + self.here * below
        total = _power_sum(self.below, self.below + self.here, self.paths)
        return q * (_power_sum(first, first + self.here * q, self.paths) / total)

    def then(self, q: Tensor, below: Tensor) -> Rank:
        """The rank of the prefix with one more token; scaled, so that A + x stays away from 0."""
        first, here = self.below + self.here * below, self.here * q
        total = first + here
        scale = torch.where(total > 0, total, 1)
        return Rank(first / scale, here / scale, self.paths)


def mass_below(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    """(m,) the mass of q that ranks below one token per row: by p/q, then by token id; the null token is the lowest.

    Args:
        p: (m, V), the target's laws.
        q: (m, V), the draft's, in the same dtype.
        token: (m,) long.
    """
    ratio = p / q
    own = ratio.gather(1, token[:, None])
    above = ratio > own
    above |= (ratio == own) & (torch.arange(p.shape[1], device=p.device) >= token[:, None])
    # What is not above is below, the mass that q lacks included. Tokens of q = 0 weigh nothing, whatever their ratio.
    return (1 - torch.where(above, q, 0).sum(dim=1, dtype=precise(q[:0]).dtype)).clamp(min=0)


def masses_below(p: Tensor, q: Tensor) -> Tensor:
    """(…, V) the mass of q that ranks below each token, as `mass_below`; one stable sort."""
    order = _ascending(p / q)
    mass = precise(q).gather(-1, order)
    lacking = (1 - mass.sum(dim=-1, keepdim=True)).clamp(min=0)
    return torch.zeros_like(mass).scatter_(-1, order, mass.cumsum(dim=-1) - mass + lacking)


def _ascending(ratio: Tensor) -> Tensor:
    """(…, V) the order of non-negative numbers, ties by index; where there is nan its place is any.

    The bits of non-negative floats are in the order of the numbers, and one row of integers is sorted by radix on a
    CPU: .9 ms against 12 ms for 151,936 tokens.
    """
    if ratio.device.type != "cpu":
        return ratio.sort(dim=-1, stable=True).indices
    bits = ratio.view(torch.int64 if ratio.dtype == torch.float64 else torch.int32)
    rows = [row.sort(stable=True).indices for row in bits.reshape(-1, ratio.shape[-1])]
    return torch.stack(rows).reshape(ratio.shape)


def highest(ratio: Tensor, tokens: Tensor, drawn: Tensor) -> Tensor:
    """(m,) the place of the highest ranked of some tokens, any place where none was drawn.

    Args:
        ratio: (m, K) p/q.
        tokens: (m, K) long.
        drawn: (m, K) bool, which places count.
    """
    ratio = ratio.nan_to_num(nan=0, posinf=float("inf")).masked_fill(~drawn, -1)
    return tokens.masked_fill(ratio < ratio.amax(dim=1, keepdim=True), -1).argmax(dim=1)


def _power_sum(low: Tensor, high: Tensor, count: int) -> Tensor:
    """Σ_{i < K} high^i · low^(K-1-i), which is (high^K - low^K)/(high - low)."""
    total, power = torch.ones_like(high), torch.ones_like(low)
    for _ in range(count - 1):
        power = power * low
        total = total * high + power
    return total
