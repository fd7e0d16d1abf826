"""Verification of a target that decodes greedily: compare tokens, draw nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_specverify.verification.base import BatchVerdict, leading_run

if TYPE_CHECKING:  # the drafting package imports the draws of this one
    from hf_specverify.drafting.batch import DraftBatch
    from hf_specverify.drafting.tree_batch import TreeBatch


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


def verify_greedy_trees(trees: TreeBatch, best: Tensor) -> BatchVerdict:
    """Follow the target's own choices through trees, as far as they were drafted.

    Siblings are different tokens, so at most one child of a node agrees; every lossless verifier does the same where p
    is one-hot.

    Args:
        trees: the proposals; laws are not looked at.
        best: (B, N + 1) long, the target's choice at the root and after every node.

    Raises:
        ValueError: if best does not have the shape (B, N + 1).
    """
    rows, size = trees.tokens.shape
    if best.shape != (rows, size + 1):
        raise ValueError(f"best must have the shape ({rows}, {size + 1}), got {tuple(best.shape)}")
    agrees = greedy_children(trees, best)
    stands = (agrees[:, None] | ~trees.ancestors).all(dim=-1)
    accepted = stands.sum(dim=1)
    # A parent comes before its children, so the nodes that stand are in order; the others sort behind them.
    path = torch.where(stands, torch.arange(size, device=best.device), size).sort(dim=1).values
    last = torch.nn.functional.pad(path + 1, (1, 0)).gather(1, accepted[:, None])
    return BatchVerdict(accepted, best.gather(1, last).squeeze(1), path.clamp(max=max(size - 1, 0)))


def greedy_children(trees: TreeBatch, best: Tensor) -> Tensor:
    """(B, N) bool, which nodes are the target's choice after their parent; `best` as for `verify_greedy_trees`."""
    return (trees.tokens == best.gather(1, trees.parents + 1)) & trees.exists
