"""The truncation family: what the target allows is accepted outright, whatever its probability."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_specverify.verification.base import VerifierInfo

from .checks import check_choice, check_number
from .rule import LossyRule

RESIDUALS = ("target", "draft")


def min_p_threshold(p: Tensor, p_base: float) -> Tensor:
    """(…, 1) the least probability of an allowed token: p_base·max p."""
    return p_base * p.amax(dim=-1, keepdim=True)


def typical_threshold(p: Tensor, epsilon: float, delta: float) -> Tensor:
    """(…, 1) the least probability of an allowed token: min(ε, δ·e^(-H(p))), H in nats.

    For ε, δ ≤ 1 that is at most max p, which rounding of e^(-H) must not exceed.
    """
    entropy = torch.special.entr(p).sum(dim=-1, keepdim=True)
    return (delta * torch.exp(-entropy)).clamp_(max=epsilon).minimum(p.amax(dim=-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class TruncationRule(LossyRule):
    """Accept a drafted token if it lies in a set that the target defines: {v : p(v) ≥ a threshold}.

    After a rejection, p is sampled: law q·1_set + (1 - q(set))·p. The gate is the target's, the shape inside the set
    the draft's. With `residual="draft"` it is q·1_set that is sampled: law q·1_set / q(set), and p if q(set) = 0.

    A one-hot p allows its own token only, so that a greedy target makes the rule compare tokens. (Where it is used for
    greedy decoding elsewhere, p is the target's law before that; here p is what is sampled from.)

    Attributes:
        residual: see above; "draft" excludes `max_overshoot`, which has a residual of its own.
    """

    residual: str = "target"

    has_statistics: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("residual", self.residual, RESIDUALS)
        if self.residual != "target" and self.max_overshoot is not None:
            raise ValueError(
                f"residual={self.residual!r}: max_overshoot={self.max_overshoot} has a residual of its own; allowed is "
                "one of the two"
            )

    @abstractmethod
    def threshold(self, p: Tensor) -> Tensor:
        """(…, 1) the least probability of an allowed token, for laws p (…, V)."""

    def statistics(self, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        """The threshold."""
        return (self.threshold(p),)

    def acceptance_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """1 in the set, else 0."""
        (threshold,) = statistics
        return (p >= threshold).to(p.dtype)

    def residual_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The target's law p, or q·1_set."""
        return p if self.residual == "target" else q * self.acceptance_given(p, q, statistics)


@dataclass(frozen=True, kw_only=True)
class Typical(TruncationRule):
    """The typical set {v : p(v) ≥ min(ε, δ·e^(-H(p)))}, H in nats; the rest is said in `TruncationRule`.

    As in Medusa, Cai et al. 2401.10774 (typical acceptance); studied in 2607.26627.

    Attributes:
        epsilon: ε in (0, 1].
        delta: δ in (0, 1]; None is Medusa's √ε, others take 1.
    """

    epsilon: float = 0.3
    delta: float | None = None

    info = VerifierInfo(
        name="typical",
        lossless=False,
        structure="chain",
        paper="Medusa, Cai et al. 2401.10774, typical acceptance; 2607.26627",
        summary="Accept what is likely for the target, p ≥ min(ε, δ·e^(-H(p))), outright; else sample p.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon, 0, 1, low_allowed=False)
        if self.delta is not None:
            check_number("delta", self.delta, 0, 1, low_allowed=False)

    def threshold(self, p: Tensor) -> Tensor:
        """As `TruncationRule.threshold`."""
        return typical_threshold(p, self.epsilon, self.epsilon**0.5 if self.delta is None else self.delta)


@dataclass(frozen=True, kw_only=True)
class MinP(TruncationRule):
    """The min-p set {v : p(v) ≥ p_base·max p}; the rest is said in `TruncationRule`.

    The set is that of min-p sampling, Nguyen et al. 2407.01082; as a rule of acceptance in 2607.26627.

    Attributes:
        p_base: in (0, 1].
    """

    p_base: float = 0.1

    info = VerifierInfo(
        name="min_p",
        lossless=False,
        structure="chain",
        paper="2607.26627, with the set of Nguyen et al. 2407.01082",
        summary="Accept what is likely beside the target's best token, p ≥ p_base·max p, outright; else sample p.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("p_base", self.p_base, 0, 1, low_allowed=False)

    def threshold(self, p: Tensor) -> Tensor:
        """As `TruncationRule.threshold`."""
        return min_p_threshold(p, self.p_base)
