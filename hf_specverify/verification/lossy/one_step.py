"""What a lossy rule does at one position: whom it accepts, what it samples instead, and the law that this makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_specverify.verification.base import acceptance_probability

from .checks import check_number


@dataclass(frozen=True, kw_only=True)
class OneStepRule(ABC):
    """Accept a drafted token with probability a, else sample a residual r: law q·a + (1 - Σ q·a)·norm(r).

    A rule says a and r elementwise, by p, q and a few numbers per position (`statistics`), so that one text gives the
    law, the readable form and the batched one. Where r is zero everywhere, p is taken for it.

    Attributes:
        max_overshoot: ρ > 0, or None for the rule's own a and r. With ρ a token is accepted with min(a, ρ·p/q), and
            after a rejection norm((p - q·a)_+) is sampled, with this smaller a. Then the law is at most max(ρ, 1)·p at
            every token: what is accepted is at most ρ·p, and the residual weighs at least the 1 - Σ q·a that it is
            scaled to, so that where q·a < p the law is at most p. For ρ ≤ 1 the law therefore is p.

    Raises:
        TypeError, ValueError: for a parameter that is not allowed.
    """

    max_overshoot: float | None = None

    has_statistics: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.max_overshoot is not None:
            check_number("max_overshoot", self.max_overshoot, 0, low_allowed=False)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name, `max_overshoot` among them."""
        return asdict(self)

    def statistics(self, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        """What a and r need to know of whole laws p and q (…, V): (…, 1) each; only if `has_statistics`."""
        return ()

    @abstractmethod
    def acceptance_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The rule's own a of some tokens (…, n) of laws with these statistics."""

    @abstractmethod
    def residual_given(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The rule's own r of some tokens (…, n), unnormalised."""

    def acceptance(self, p: Tensor, q: Tensor) -> Tensor:
        """(…, V) the probability that each token is accepted where it was drafted; laws p and q (…, V) sum to 1."""
        return self._acceptance(p, q, self.statistics(p, q))

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        """(…, V) the law of a token at a position that was drafted; arguments as `acceptance`."""
        accepted, rejected = self._parts(p, q)
        return accepted.add_(rejected)

    def next_weights(self, p: Tensor, q: Tensor, admitted: Tensor | None = None) -> Tensor:
        """(…, V) unnormalised, the law of the token after a rejection; or, with v (…, V) bool, a rejection or a cut."""
        if admitted is None:
            return self._residual(p, q, self.statistics(p, q))
        accepted, rejected = self._parts(p, q)
        return _or_target(accepted.masked_fill_(admitted, 0).add_(rejected), p)

    def _acceptance(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The rule's a, less what `max_overshoot` takes from it."""
        own = self.acceptance_given(p, q, statistics)
        return own if self.max_overshoot is None else own.minimum(acceptance_probability(self.max_overshoot * p, q))

    def _residual(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The rule's r, or with `max_overshoot` what is not accepted of p; p where nothing is left."""
        if self.max_overshoot is None:
            return _or_target(self.residual_given(p, q, statistics), p)
        return _or_target((p - q * self._acceptance(p, q, statistics)).clamp_(min=0), p)

    def _parts(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """(…, V) each, of the law: the part from accepted tokens, q·a, and the one from rejections."""
        statistics = self.statistics(p, q)
        accepted = q * self._acceptance(p, q, statistics)
        residual = self._residual(p, q, statistics)
        rejected = (1 - accepted.sum(dim=-1, keepdim=True)).clamp_(min=0)
        return accepted, residual.div_(residual.sum(dim=-1, keepdim=True)).mul_(rejected)


def _or_target(weights: Tensor, p: Tensor) -> Tensor:
    """A copy of weights (…, V); p where they are zero everywhere."""
    return torch.where(weights.amax(dim=-1, keepdim=True) > 0, weights, p)
