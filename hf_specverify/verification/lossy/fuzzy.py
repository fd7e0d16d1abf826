"""Fuzzy verification: where the two models hardly differ, the draft's token stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_specverify.verification.base import VerifierInfo, acceptance_probability

from .checks import check_choice, check_number
from .rule import LossyRule


def _tv(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs_().sum(dim=-1, keepdim=True) / 2


def _kl(p: Tensor, q: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(p, p) - torch.special.xlogy(p, q)
    return terms.sum(dim=-1, keepdim=True)


def _js(p: Tensor, q: Tensor) -> Tensor:
    mean = (p + q) / 2
    return (_kl(p, mean) + _kl(q, mean)) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"tv": _tv, "kl": _kl, "js": _js}
"""By name: (…, 1) from p and q (…, V); KL(p‖q) and Jensen-Shannon in nats."""


@dataclass(frozen=True, kw_only=True)
class Fuzzy(LossyRule):
    """Accept outright where a divergence between p and q is at most T, else by token verification.

    Fuzzy speculative decoding, Holsman et al. 2502.20704; 2607.26627. The law is q where D(p, q) ≤ T, else p. D is
    TV(p, q), KL(p‖q), or the Jensen-Shannon divergence, the latter two in nats. T = 0 is token verification. Greedy
    targets are refused for T > 0, unless `max_overshoot` is given: a one-hot p that is close to q would let tokens
    through that are not its own.

    Attributes:
        threshold: T ≥ 0.
        divergence: "tv", "kl" or "js".
    """

    threshold: float = 0.1
    divergence: str = "js"

    info = VerifierInfo(
        name="fuzzy",
        lossless=False,
        structure="chain",
        paper="Fuzzy speculative decoding, Holsman et al. 2502.20704; 2607.26627",
        summary="Accept outright where a divergence between p and q is at most T, elsewhere by token verification.",
    )

    has_statistics: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, 0)
        check_choice("divergence", self.divergence, DIVERGENCES)

    def _matches_greedy(self) -> bool:
        return self.threshold == 0

    def statistics(self, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        """Whether p and q are that close."""
        distance = DIVERGENCES[self.divergence](p, q)
        # At T = 0 only equal laws are close, which need no help; rounding would take others for such.
        return (distance <= self.threshold if self.threshold else torch.zeros_like(distance, dtype=torch.bool),)

    def acceptance_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """1 where p and q are close, else min(1, p/q)."""
        (close,) = statistics
        return acceptance_probability(p, q).masked_fill(close, 1)

    def residual_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """(p - q)_+."""
        return (p - q).clamp_(min=0)
