"""How far two laws of the next token are from each other."""

from __future__ import annotations

import torch
from torch import Tensor

LAW_METRICS = ("tv", "kl_target_law", "kl_law_target", "overshoot", "max_ratio")
"""Of a law against the target's p: TV(law, p), KL(p‖law), KL(law‖p), Σ(law - p)_+ and max law/p."""

MATCHED_METRICS = ("tv_matched", "kl_matched_law", "kl_law_matched")
"""Of a law against that of its matched baseline m: TV(law, m), KL(m‖law), KL(law‖m)."""


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """(…) half the sum of the differences of laws (…, V)."""
    return (first - second).abs().sum(dim=-1) / 2


def kl_divergence(first: Tensor, second: Tensor) -> Tensor:
    """(…) KL(first‖second) of laws (…, V) in nats; infinite where `second` excludes a token that `first` does not."""
    terms: Tensor = torch.special.xlogy(first, first) - torch.special.xlogy(first, second)
    return terms.sum(dim=-1).clamp(min=0)


def overshoot_mass(law: Tensor, p: Tensor) -> Tensor:
    """(…) the probability that a law (…, V) adds to tokens beyond p: Σ(law - p)_+, which is TV(law, p)."""
    return (law - p).clamp(min=0).sum(dim=-1)


def largest_ratio(law: Tensor, p: Tensor) -> Tensor:
    """(…) max law/p over the tokens of laws (…, V) that the law allows; infinite where p excludes one of them."""
    return torch.where(law > 0, law / p, 0).amax(dim=-1)


def entropy(p: Tensor) -> Tensor:
    """(…) entropy of laws (…, V) in nats."""
    terms: Tensor = torch.special.xlogy(p, p)
    return -terms.sum(dim=-1)


def position_metrics(p: Tensor, law: Tensor, matched: Tensor | None = None) -> dict[str, Tensor]:
    """All metrics of some positions, in float64.

    Args:
        p: (n, V), the target's laws.
        law: (n, V), the laws that were sampled from.
        matched: (n, V), the laws of the matched baseline, or None where they are not known.

    Returns:
        (n,) each: `entropy` of p, `LAW_METRICS`, and `MATCHED_METRICS` unless `matched` is None.
    """
    p, law = p.double(), law.double()
    found = {
        "entropy": entropy(p),
        "tv": total_variation(law, p),
        "kl_target_law": kl_divergence(p, law),
        "kl_law_target": kl_divergence(law, p),
        "overshoot": overshoot_mass(law, p),
        "max_ratio": largest_ratio(law, p),
    }
    if matched is None:
        return found
    matched = matched.double()
    return found | {
        "tv_matched": total_variation(law, matched),
        "kl_matched_law": kl_divergence(matched, law),
        "kl_law_matched": kl_divergence(law, matched),
    }
