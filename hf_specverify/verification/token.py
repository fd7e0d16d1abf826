"""Token verification: each draft token stands or falls by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.verification.base import (
    BatchVerdict,
    Verdict,
    Verifier,
    VerifierInfo,
    acceptance_probability,
    check_batch,
    check_chain,
    leading_run,
    wide,
)
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import as_path, law_of_child
from hf_specverify.verification.residual import residual, residual_in_place, without_token


class TokenVerification(Verifier):
    """Speculative sampling as first described: Leviathan et al. 2211.17192, alg. 1; Chen et al. 2302.01318, alg. 2.

    Token x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)). At the first rejection the next token comes from
    norm((p_i - q_i)_+), the part of the target that the draft does not cover; after a full acceptance from p.
    One position is accepted with probability Σ min(p, q) = 1 - TV(p, q). The output has the target's law for every q.

    A cut is the draw of a null token with p = 0: it is always rejected, so a row of q that sums to less than 1 needs no
    case of its own. After the last token the same residual is taken where the block was cut, (p - q·v)_+; where it
    simply ended nothing was drawn and p is left whole.
    """

    info = VerifierInfo(
        name="token",
        lossless=True,
        structure="chain",
        paper="Leviathan et al. 2211.17192, alg. 1; Chen et al. 2302.01318, alg. 2",
        summary="Accept each draft token with probability min(1, p/q); at the first rejection sample norm((p - q)_+).",
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one chain, see `Verifier.verify`."""
        check_chain(tree, p, self.info.name)
        path: list[int] = []
        for node in range(tree.num_nodes):
            p_row, token = wide(p[node]), tree.tokens[node]
            q_row = law_of_child(tree, node - 1, node, p_row)
            if not bool(draws.accept(acceptance_probability(p_row[token], q_row[token]))):
                return Verdict(as_path(path, tree), draws.sample(residual(p_row, q_row)))
            path.append(node)
        p_row, last = wide(p[-1]), tree.num_nodes - 1
        weights = p_row if tree.law(last) is None else residual(p_row, law_of_child(tree, last, NULL, p_row))
        return Verdict(as_path(path, tree), draws.sample(weights))

    def verify_batch(self, drafts: DraftBatch | TreeBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on a batch of chains, see `Verifier.verify_batch`; only one row of p and q is built per sequence."""
        if isinstance(drafts, TreeBatch):
            return super().verify_batch(drafts, p, draws)
        check_batch(drafts, p)
        tokens = drafts.tokens[..., None]
        p_drafted = wide(p[:, :-1].gather(2, tokens).squeeze(2))
        if drafts.q is None:
            probabilities = p_drafted
        else:
            probabilities = acceptance_probability(p_drafted, wide(drafts.q.gather(2, tokens).squeeze(2)))
        accepted = leading_run(draws.accept(torch.where(drafts.exists, probabilities, 0)))
        return BatchVerdict(accepted, draws.sample(_next_weights(drafts, p, accepted)))


def _next_weights(drafts: DraftBatch, p: Tensor, accepted: Tensor) -> Tensor:
    """(B, V) weights of the next token: the residual where a law stands behind the accepted tokens, else p."""
    rows = torch.arange(p.shape[0], device=p.device)
    p_row = wide(p[rows, accepted])
    laws = drafts.tokens.shape[1] if drafts.q is None else drafts.q.shape[1]
    if laws == 0:
        return p_row
    place, drawn = accepted.clamp(max=laws - 1), accepted < drafts.law_rows
    if drafts.q is None:
        return without_token(p_row, drafts.tokens[rows, place], drawn)
    q_row = wide(drafts.law(rows, place)).to(p_row.dtype).masked_fill_(~drawn[:, None], 0)
    return residual_in_place(p_row, q_row)[0]
