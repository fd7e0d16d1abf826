"""Token verification: each draft token stands or falls by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_specverify.verification.base import (
    BatchVerdict,
    Verdict,
    Verifier,
    VerifierInfo,
    check_batch,
    check_chain,
    leading_run,
)

if TYPE_CHECKING:  # the drafting package imports the draws of this one
    from hf_specverify.drafting.tree import DraftBatch, DraftTree
    from hf_specverify.verification.draws import Draws


class TokenVerification(Verifier):
    """Speculative sampling as first described: Leviathan et al. 2211.17192, alg. 1; Chen et al. 2302.01318, alg. 2.

    Token x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)). At the first rejection the next token comes from
    norm((p_i - q_i)_+), the part of the target that the draft does not cover; after a full acceptance from p.
    One position is accepted with probability Σ min(p, q) = 1 - TV(p, q). The output has the target's law for every q.

    A cut is the draw of a null token with p = 0: it is always rejected, so a row of q that sums to less than 1 needs no
    case of its own. After the last token the same residual is taken: (p - 0)_+ = p where the block simply ended,
    (p - q·v)_+ where it was cut.
    """

    info = VerifierInfo(
        name="token",
        lossless=True,
        structure="chain",
        paper="Leviathan et al. 2211.17192; Chen et al. 2302.01318",
        summary="Accept each draft token with probability min(1, p/q); at the first rejection sample norm((p - q)_+).",
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one chain, see `Verifier.verify`."""
        check_chain(tree, p, self.info.name)
        p, q, tokens = _wide(p), _wide(tree.q), tree.tokens[:, None]
        probabilities = acceptance_probability(p[:-1].gather(1, tokens), q[:-1].gather(1, tokens))
        accepted = int(leading_run(draws.accept(probabilities.squeeze(1))))
        residual = (p[accepted] - q[accepted]).clamp(min=0)
        next_token = draws.sample(residual if bool(residual.any()) else p[accepted])
        return Verdict(torch.arange(accepted, device=tree.tokens.device), next_token)

    def verify_batch(self, drafts: DraftBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on a batch of chains, see `Verifier.verify_batch`; only one row of p and q is built per sequence."""
        check_batch(drafts, p)
        exists, tokens = drafts.exists, drafts.tokens[..., None]
        p_drafted = _wide(p[:, :-1].gather(2, tokens).squeeze(2))
        if drafts.q is None:
            probabilities = p_drafted
        else:
            probabilities = acceptance_probability(p_drafted, _wide(drafts.q.gather(2, tokens).squeeze(2)))
        accepted = leading_run(draws.accept(torch.where(exists, probabilities, 0)))
        weights = _next_weights(drafts, p, accepted, exists)
        return BatchVerdict(accepted, draws.sample(weights))


def acceptance_probability(p: Tensor, q: Tensor) -> Tensor:
    """Return min(1, p / q), elementwise; 1 where only q is 0, and 0 where both are."""
    return torch.where(p >= q, (p > 0).to(p.dtype), p / q)


def _next_weights(drafts: DraftBatch, p: Tensor, accepted: Tensor, exists: Tensor) -> Tensor:
    """Return the weights (B, V) of the next token: the residual after a rejection, p after a full acceptance."""
    rows = torch.arange(p.shape[0], device=p.device)
    p_row = _wide(p[rows, accepted])
    length = exists.shape[1]
    if length == 0:
        return p_row
    place = accepted.clamp(max=length - 1)
    rejected = (accepted < length) & exists[rows, place]
    if drafts.q is None:
        return _without_token(p_row, drafts.tokens[rows, place], rejected)
    q_row = _wide(drafts.q[rows, place]).to(p_row.dtype).masked_fill_(~rejected[:, None], 0)
    # In place: every further buffer of (B, V) costs more than the arithmetic on it.
    residual = torch.sub(p_row, q_row, out=q_row).clamp_(min=0)
    # p = q to rounding leaves nothing; the rejection itself had a probability of that size, and p is as good a law.
    nothing_left = residual.amax(dim=-1, keepdim=True) <= 0
    return residual.addcmul_(p_row, nothing_left.to(p_row.dtype))


def _without_token(p_row: Tensor, token: Tensor, rejected: Tensor) -> Tensor:
    """Return p with the rejected token's entry zeroed, in place, unless nothing else is left: the one-hot residual."""
    token = token[:, None]
    kept = p_row.gather(1, token)
    p_row.scatter_(1, token, kept.masked_fill(rejected[:, None], 0))
    something_left = p_row.amax(dim=-1, keepdim=True) > 0
    return p_row.scatter_(1, token, torch.where(something_left & rejected[:, None], 0, kept))


def _wide(values: Tensor) -> Tensor:
    """Return half precision values as float32, others as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
