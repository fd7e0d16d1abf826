"""Rules that have a law of their own in mind, made of p and q, and sample it exactly."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_specverify.verification.base import VerifierInfo, acceptance_probability

from .checks import check_number
from .rule import LossyRule


@dataclass(frozen=True, kw_only=True)
class MixtureRule(LossyRule):
    """Token verification against a law π(p, q) in place of p: accept with min(1, π/q), else sample norm((π - q)_+).

    The law is π.
    """

    @abstractmethod
    def mixture(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The law π, elementwise, given the statistics of whole laws."""

    def acceptance_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """min(1, π/q)."""
        return acceptance_probability(self.mixture(p, q, statistics), q)

    def residual_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """(π - q)_+."""
        return (self.mixture(p, q, statistics) - q).clamp_(min=0)


@dataclass(frozen=True, kw_only=True)
class Collaborative(MixtureRule):
    """The weighted mean of both models: law π = λ·p + (1 - λ)·q.

    Collaborative decoding by speculation, Fu et al. 2502.01662. λ = 1 is token verification; λ = 0 accepts everything.
    With λ < 1 a one-hot p leaves the draft's tokens in the law: refused for greedy targets, unless `max_overshoot` is
    given.

    Attributes:
        weight: λ in [0, 1], on the target.
    """

    weight: float = 0.5

    info = VerifierInfo(
        name="collaborative",
        lossless=False,
        structure="chain",
        paper="Collaborative decoding, Fu et al. 2502.01662, weighted ensemble; 2607.26627",
        summary="Sample λ·p + (1 - λ)·q: accept with probability min(1, that/q), else sample norm((p - q)_+).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight", self.weight, 0, 1)

    def _matches_greedy(self) -> bool:
        return self.weight == 1

    def mixture(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """λ·p + (1 - λ)·q."""
        return self.weight * p + (1 - self.weight) * q


@dataclass(frozen=True, kw_only=True)
class Contrastive(MixtureRule):
    """The target's law, less what the draft believes too: law π = norm(p / max(q, f)^μ).

    Collaborative decoding by speculation, Fu et al. 2502.01662 (contrastive form), after Li et al. 2210.15097. μ = 0 is
    token verification. The floor f, which is not in the sources, keeps tokens that the draft all but excludes from
    taking over: none gains more than a factor of f^(-μ) on the others, q = 0 included. π is one-hot where p is, so a
    greedy target compares tokens. A deterministic draft has no opinion to contrast with, and is refused.

    Attributes:
        mu: μ in [0, 1].
        floor: f in (0, 1].
    """

    mu: float = 0.1
    floor: float = 1e-3

    info = VerifierInfo(
        name="contrastive",
        lossless=False,
        structure="chain",
        paper="Collaborative decoding, Fu et al. 2502.01662, contrastive form; 2607.26627",
        summary="Sample π = norm(p/q^μ), q at least a floor: accept with probability min(1, π/q), else sample "
        "norm((π - q)_+).",
        drafts=("independent",),
    )

    has_statistics: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("mu", self.mu, 0, 1)
        check_number("floor", self.floor, 0, 1, low_allowed=False)

    def statistics(self, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        """The sum of p / max(q, f)^μ."""
        return (self._weights(p, q).sum(dim=-1, keepdim=True),)

    def mixture(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The law norm(p / max(q, f)^μ)."""
        (total,) = statistics
        return self._weights(p, q) / total

    def _weights(self, p: Tensor, q: Tensor) -> Tensor:
        return p * q.clamp(min=self.floor).pow_(-self.mu)
