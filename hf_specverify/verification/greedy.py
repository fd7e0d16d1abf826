"""Verification of a target that decodes greedily: compare tokens, draw nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from hf_specverify.verification.base import BatchVerdict, leading_run

if TYPE_CHECKING:  # the drafting package imports the draws of this one
    from hf_specverify.drafting.tree import DraftBatch


def verify_greedy(drafts: DraftBatch, best: Tensor) -> BatchVerdict:
    """Accept draft tokens as long as they are the target's own choice.

    A greedy target is one whose p is one-hot. A lossless verifier can then emit nothing but the target's choices, and
    min(1, p/q) is 1 for a draft token that agrees and 0 for one that does not: token verification becomes this
    comparison, for every q. (Leviathan et al. 2211.17192, §2.2.)

    Args:
        drafts: the proposals; q is not looked at.
        best: (B, L + 1) long, the target's choice at every position, the one after the last draft token included.

    Returns:
        The length of each row's leading run of agreeing tokens, and the target's choice at the place after it.

    Raises:
        ValueError: if best does not have the shape (B, L + 1).
    """
    rows, length = drafts.tokens.shape
    if best.shape != (rows, length + 1):
        raise ValueError(f"best must have the shape ({rows}, {length + 1}), got {tuple(best.shape)}")
    accepted = leading_run((drafts.tokens == best[:, :-1]) & drafts.exists)
    return BatchVerdict(accepted, best.gather(1, accepted[:, None]).squeeze(1))
