"""Speculative cascades: a rule says whose token is wanted, and exactly that law is sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hf_specverify.verification.base import VerifierInfo

from .checks import check_choice, check_number
from .mixture import MixtureRule
from .truncation import min_p_threshold, typical_threshold


def _chow(p: Tensor, q: Tensor, threshold: float) -> Tensor:
    return _best(q) < 1 - threshold


def _diff(p: Tensor, q: Tensor, threshold: float) -> Tensor:
    return _best(q) < _best(p) - threshold


def _opt(p: Tensor, q: Tensor, threshold: float) -> Tensor:
    return _best(q) < _best(p) - threshold * (p - q).clamp_(min=0).sum(dim=-1, keepdim=True)


DEFERRALS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"chow": _chow, "diff": _diff, "opt": _opt}
"""By kind: whether a position is left to the target, (…, 1) bool from p and q (…, V) and the threshold."""

SETS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "token_min_p": min_p_threshold,
    "token_typical": lambda p, epsilon: typical_threshold(p, epsilon, epsilon**0.5),
}
"""By kind: the least probability (…, 1) of a token that is left to the draft, from p (…, V) and the threshold."""


@dataclass(frozen=True, kw_only=True)
class Cascade(MixtureRule):
    """Exact speculative sampling of a law π that is q where the draft may decide, and p where the target must.

    Narasimhan et al. 2405.19261 (speculative cascades); 2607.26627. The law is π, with the threshold t:

    * token-specific: π = q·1_set + (1 - q(set))·p, the set {v : p(v) ≥ t·max p} for `token_min_p`, the typical set with
      ε = t, δ = √t for `token_typical`. The law is that of the truncation rule of the same set; more is accepted, for a
      token outside the set has a chance here as well. t in (0, 1].
    * by thresholds: π = p where the position is deferred to the target, else q, so that every drafted token stands.
      Deferred is where max q < 1 - t (`chow`); max q < max p - t (`diff`); max q < max p - t·TV(p, q) (`opt`). t in
      [-1, 1]; t = -1 defers every position with `diff`, and is token verification.

    The sets leave a one-hot p nothing but its own token, so a greedy target compares tokens; the thresholds do not, and
    are refused for greedy targets unless `max_overshoot` is given. A deterministic draft has max q = 1 and would never
    be deferred: refused with thresholds.

    Attributes:
        kind: one of the five.
        threshold: t.
    """

    kind: str = "token_min_p"
    threshold: float = 0.1

    info = VerifierInfo(
        name="cascade",
        lossless=False,
        structure="chain",
        paper="Speculative cascades, Narasimhan et al. 2405.19261; 2607.26627",
        summary="Sample π, q where the draft may decide and p elsewhere: accept with probability min(1, π/q), else "
        "sample norm((π - q)_+).",
    )

    has_statistics: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("kind", self.kind, [*SETS, *DEFERRALS])
        if self.kind in SETS:
            check_number("threshold", self.threshold, 0, 1, low_allowed=False)
        else:
            check_number("threshold", self.threshold, -1, 1)
            object.__setattr__(self, "info", replace(self.info, drafts=("independent",)))

    def _matches_greedy(self) -> bool:
        return self.kind in SETS

    def statistics(self, p: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        """The set's threshold and its share of q; or whether the position is deferred."""
        if self.kind in DEFERRALS:
            return (DEFERRALS[self.kind](p, q, self.threshold),)
        least = SETS[self.kind](p, self.threshold)
        return least, (q * (p >= least)).sum(dim=-1, keepdim=True)

    def mixture(self, p: Tensor, q: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """The law π."""
        if self.kind in DEFERRALS:
            (deferred,) = statistics
            return torch.where(deferred, p, q)
        least, share = statistics
        return q * (p >= least) + (1 - share).clamp(min=0) * p


def _best(law: Tensor) -> Tensor:
    return law.amax(dim=-1, keepdim=True)
