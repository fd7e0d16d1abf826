"""Mentored decoding: as much of the draft as a divergence from the target allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_specverify.verification.base import VerifierInfo, acceptance_probability

from .checks import check_number
from .mentored_bounds import mentored_bounds
from .rule import LossyRule


@dataclass(frozen=True, kw_only=True)
class Mentored(LossyRule):
    """Accept with probability min(1, p/(α·q)), else sample norm((p/β - q)_+), with α ≤ 1 ≤ β solved per position.

    Tran-Thien, An optimal lossy variant of speculative decoding (mentored decoding); 2607.26627. The law is q clamped
    between p/β and p/α, and sums to 1; of all laws m with KL(p‖m) ≤ D, in nats, that are 0 where p is, it is the one
    with the largest acceptance Σ min(q, m). α is the smallest that keeps to D; where it is as small as every p/q > 0,
    all tokens with p > 0 are accepted. D = 0 is token verification.

    Tokens with p = 0, such as those outside a top-k, are never accepted; KL(p‖m) would not see them. So a one-hot p
    makes the rule compare tokens.

    α and β come from one sort of p/q per position and a bisection on its prefix sums: the dearest of these rules.

    Attributes:
        divergence: D ≥ 0, in nats.
    """

    divergence: float = 0.1

    info = VerifierInfo(
        name="mentored",
        lossless=False,
        structure="chain",
        paper="Mentored decoding, Tran-Thien 2023; 2607.26627",
        summary="Accept with probability min(1, p/(α·q)), else sample norm((p/β - q)_+); α, β such that KL(p‖law) ≤ D.",
    )

    has_statistics: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("divergence", self.divergence, 0)

    def statistics(self, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        """α and β."""
        return mentored_bounds(p, q, self.divergence)

    def acceptance_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """min(1, p/(α·q))."""
        return acceptance_probability(p / statistics[0], q)

    def residual_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """(p/β - q)_+."""
        return (p / statistics[1] - q).clamp_(min=0)
