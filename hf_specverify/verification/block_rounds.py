"""Block verification of a batch: which prefix of every row's path stays, with few passes over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.verification.base import BatchVerdict, wide
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.residual import kept_weight, precise, residual_in_place, without_token


@dataclass(frozen=True, eq=False)
class ChosenPaths:
    """One path per row, as block verification needs it. Laws are asked for where they are needed only.

    Attributes:
        weights: (B, L + 1) float64, w_i of every prefix: 1 at 0, and 0 beyond a path's end.
        drawn: (B, L + 1) bool, whether a law of the draft stands after the prefix; False where the path simply ended.
        target: from rows (m,) and lengths (m,) to a copy (m, V) of the target's laws after these prefixes.
        law: from rows, lengths and those laws of the target to a copy (m, V) of the draft's, in the same dtype.
    """

    weights: Tensor
    drawn: Tensor
    target: Callable[[Tensor, Tensor], Tensor]
    law: Callable[[Tensor, Tensor, Tensor], Tensor]


def decide_paths(paths: ChosenPaths, draws: Draws) -> tuple[Tensor, Tensor]:
    """Choose the longest accepted prefix of every row.

    D ≤ w, so h = D/(D + 1 - w) ≤ w: a first flip with w for all prefixes at once, which needs no vocabulary, rules most
    of them out. Then in rounds every undecided row computes D for its longest prefix that is still in, and flips again
    with h/w. Each round waits once for the device; there are few.

    Returns:
        The accepted lengths (B,) and the weights (B, V) of the next tokens.
    """
    weights = paths.weights
    # Prefix 0 stays if nothing else does: its w is 1, and so is its h.
    standing = pad(draws.accept(weights[:, 1:]), (1, 0), value=True)
    accepted = _longest(standing)
    rows = torch.arange(len(weights), device=weights.device)
    next_weights = paths.target(rows, accepted)
    rows = rows[paths.drawn[rows, accepted]]  # where a path simply ended h = w, and p is the law that follows
    while len(rows):
        lengths = accepted[rows]
        weight = weights[rows, lengths]
        p_rows = paths.target(rows, lengths)
        left, share = residual_in_place(p_rows, paths.law(rows, lengths, p_rows), weight)
        chance = kept_weight(precise(share.squeeze(1)) * weight, weight) / weight
        kept = draws.accept(chance.clamp(max=1)) | (lengths == 0)
        next_weights[rows[kept]] = left[kept]
        standing[rows, lengths] = False
        rows = rows[~kept]
        accepted[rows] = _longest(standing[rows])
    return accepted, next_weights


def decide_deterministic(drafts: DraftBatch, weights: Tensor, p: Tensor, draws: Draws) -> BatchVerdict:
    """Decide on chains whose laws are one-hot on each token: D = w·(1 - p(x)) of the next token x, in closed form.

    Args:
        drafts: the chains, without q.
        weights: (B, L + 1), w of every prefix.
        p: (B, L + 1, V), the target's laws.
        draws: the source of randomness.
    """
    exists = pad(drafts.exists, (0, 1), value=False)
    tokens = pad(drafts.tokens, (0, 1))
    next_p = precise(p.gather(2, tokens[..., None]).squeeze(2))
    mass = weights * torch.where(exists, (1 - next_p).clamp(min=0), 1)
    standing = pad(draws.accept(kept_weight(mass, weights)[:, 1:]), (1, 0), value=True)
    accepted = _longest(standing)
    rows = torch.arange(len(weights), device=p.device)
    next_weights = without_token(wide(p[rows, accepted]), tokens[rows, accepted], exists[rows, accepted])
    return BatchVerdict(accepted, draws.sample(next_weights))


def _longest(standing: Tensor) -> Tensor:
    """(m,) the largest index of a True entry in each row of (m, L + 1), whose first entry may count as True."""
    return (standing * torch.arange(standing.shape[1], device=standing.device)).amax(dim=1)
