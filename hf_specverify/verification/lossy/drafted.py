"""What a lossy rule reads of a batch of chains, and the drafts that it can't take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import DraftTree
from hf_specverify.verification.base import VerifierInfo, wide

_HINT = "a lossy rule needs the law and v apart, as in DraftBatch.corrected"


def check_drafts(drafts: DraftBatch, info: VerifierInfo) -> None:
    """Refuse chains whose laws hold a schedule's v, and deterministic ones where a rule does not take them.

    Raises:
        ValueError: naming `drafts`.
    """
    if drafts.cut is not None and any(drafts.cut) and drafts.admitted is None:
        raise ValueError(f"drafts: rows were cut and their laws hold v already; {_HINT}")
    if drafts.q is None and max(drafts.lengths, default=0):
        _check_kind(info)


def check_whole_laws(tree: DraftTree, info: VerifierInfo) -> None:
    """Refuse a chain as `check_drafts` does, by its laws: those that hold a v sum to less than 1.

    Raises:
        ValueError: naming `tree`.
    """
    if tree.laws is None:
        if tree.num_nodes:
            _check_kind(info)
        return
    if tree.law(tree.num_nodes - 1) is not None:
        raise ValueError(f"tree: the chain was cut and its laws hold v already; {_HINT}")
    lacking = 1 - wide(tree.q[:-1]).sum(dim=-1)
    if bool((lacking > max(1e-4, 8 * torch.finfo(tree.laws.dtype).eps)).any()):
        raise ValueError(f"tree: laws sum to less than 1, by {lacking.tolist()}; {_HINT}")


def draft_law(drafts: DraftBatch, rows: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """(m, V) the draft's whole laws, without v, at some places (m,) of some rows (m,); one-hot without q.

    Args:
        drafts: the chains.
        rows: (m,) long.
        places: (m,) long.
        like: (m, V), for the dtype and the vocabulary.
    """
    if drafts.q is None:
        return torch.zeros_like(like).scatter_(1, drafts.tokens[rows, places][:, None], 1)
    return wide(drafts.q[rows, places]).to(like.dtype)


def drafted_probabilities(drafts: DraftBatch, p: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L, 1) each: p and q of every drafted token, from the target's laws (B, L + 1, V)."""
    tokens = drafts.tokens[..., None]
    p_drafted = wide(p[:, :-1].gather(2, tokens))
    if drafts.q is None:
        return p_drafted, torch.ones_like(p_drafted)
    return p_drafted, wide(drafts.q.gather(2, tokens)).to(p_drafted.dtype)


def gather_statistics(
    statistics: Callable[[Tensor, Tensor], tuple[Tensor, ...]], drafts: DraftBatch, p: Tensor
) -> tuple[Tensor, ...]:
    """(B, L, 1) each: a rule's statistics at every drafted position.

    One position after the other, so that what they need in between has the size of one law per row.

    Args:
        statistics: of a rule: from p and q (B, V) to (B, 1) each.
        drafts: the chains, L ≥ 1.
        p: (B, L + 1, V), the target's laws.
    """
    columns = []
    for place in range(drafts.tokens.shape[1]):
        p_row = wide(p[:, place])
        if drafts.q is None:
            q_row = torch.zeros_like(p_row).scatter_(1, drafts.tokens[:, place : place + 1], 1)
        else:
            q_row = wide(drafts.q[:, place]).to(p_row.dtype)
        columns.append(statistics(p_row, q_row))
    return tuple(torch.stack(values, dim=1) for values in zip(*columns, strict=True))


def _check_kind(info: VerifierInfo) -> None:
    if "deterministic" not in info.drafts:
        raise ValueError(
            f"drafts: verification={info.name!r} needs drafts that are drawn from a law, not deterministic ones"
        )
