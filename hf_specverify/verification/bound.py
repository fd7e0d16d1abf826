"""How much any rule could accept."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_specverify.verification.residual import precise


def optimal_acceptance(p: Tensor, q: Tensor, num_paths: int) -> Tensor:
    """The largest probability with which the next token can be one of K candidates drawn independently from q.

    By optimal transport (2310.15141, §3; 2410.18234) it is the minimum over sets H of tokens of p(H) + 1 - q(H)^K, the
    null token counted into q(H). 1 - q^K is concave, so the minimum is at an extreme point of the (p(H), q(H)), and
    these are the prefixes of the vocabulary ordered by p/q: one sort is exact for any vocabulary.

    Args:
        p: (…, V), the target's laws.
        q: (…, V), the draft's; a row may sum to less than 1, the rest being the mass of a null token.
        num_paths: K ≥ 1.

    Returns:
        (…), in [0, 1].

    Raises:
        ValueError: if the shapes differ or num_paths is no positive integer.
    """
    if p.shape != q.shape or p.ndim == 0:
        raise ValueError(f"p and q must have the same shape (…, V), got {tuple(p.shape)} and {tuple(q.shape)}")
    if isinstance(num_paths, bool) or not isinstance(num_paths, int) or num_paths < 1:
        raise ValueError(f"num_paths must be an integer of at least 1, got {num_paths!r}")
    p, q = precise(p), precise(q)
    order = (p / q).argsort(dim=-1)
    lacking = (1 - q.sum(dim=-1, keepdim=True)).clamp(min=0)
    p_set = p.gather(-1, order).cumsum(dim=-1)
    q_set = lacking + q.gather(-1, order).cumsum(dim=-1)
    values = p_set + 1 - q_set.clamp(max=1) ** num_paths
    return torch.cat([1 - lacking**num_paths, values], dim=-1).amin(dim=-1).clamp(0, 1)
