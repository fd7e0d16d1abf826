"""Rules that let a drafted token through up to a ceiling above p."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_specverify.verification.base import VerifierInfo, acceptance_probability

from .checks import check_number
from .rule import LossyRule


@dataclass(frozen=True, kw_only=True)
class CeilingRule(LossyRule):
    """Accept with probability min(1, c/q), c ≥ p a ceiling for each token; else sample norm((p - q)_+).

    Law: with Δ = Σ(q - c)_+ / TV(p, q), at most 1: where q ≤ p it is Δ·p + (1 - Δ)·q; where p < q it is min(q, c). So
    no token ends above max(p, c), and every token that gains has q > p. Where p = q nothing is rejected, and it is q.
    """

    @abstractmethod
    def ceiling(self, p: Tensor) -> Tensor:
        """The ceiling c of some tokens (…, n): at least p, and 0 where p is."""

    def acceptance_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """min(1, c/q)."""
        return acceptance_probability(self.ceiling(p), q)

    def residual_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """(p - q)_+."""
        return (p - q).clamp_(min=0)


@dataclass(frozen=True, kw_only=True)
class Lenience(CeilingRule):
    """The ceiling c = p/ℓ: accept with probability min(1, p/(ℓ·q)); the law is said in `CeilingRule`.

    Leviathan et al. 2211.17192 (lenience); studied in 2607.26627. ℓ = 1 is token verification. No token ends above p/ℓ:
    that is `max_overshoot` = 1/ℓ by construction. A one-hot p has a one-hot ceiling, so a greedy target compares
    tokens.

    Attributes:
        leniency: ℓ in (0, 1].
    """

    leniency: float = 0.5

    info = VerifierInfo(
        name="lenience",
        lossless=False,
        structure="chain",
        paper="Leviathan et al. 2211.17192, lenience; 2607.26627",
        summary="Accept with probability min(1, p/(ℓ·q)); at the first rejection sample norm((p - q)_+).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("leniency", self.leniency, 0, 1, low_allowed=False)

    def ceiling(self, p: Tensor) -> Tensor:
        """p/ℓ."""
        return p / self.leniency


@dataclass(frozen=True, kw_only=True)
class Cactus(CeilingRule):
    """The ceiling c = γ = min(1, p + √(2·δ·p·(1 - p))), about what a divergence of δ allows a single token to gain.

    Cactus, constrained acceptance speculative sampling, as in 2607.26627. Sources give the acceptance min(1, γ/q); the
    residual here is that of token verification, norm((p - q)_+), which leaves the rest of the law closest to p. The law
    is said in `CeilingRule`. δ = 0 is token verification. γ is one-hot where p is, so a greedy target compares tokens.

    Attributes:
        delta: δ ≥ 0, in nats.
    """

    delta: float = 0.1

    info = VerifierInfo(
        name="cactus",
        lossless=False,
        structure="chain",
        paper="Cactus (constrained acceptance speculative sampling), as in 2607.26627",
        summary="Accept with probability min(1, γ/q), γ = p + √(2δp(1 - p)); at the first rejection sample "
        "norm((p - q)_+).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("delta", self.delta, 0)

    def ceiling(self, p: Tensor) -> Tensor:
        """The ceiling γ."""
        return (p + torch.sqrt((2 * self.delta * p * (1 - p)).clamp_(min=0))).clamp_(max=1)
