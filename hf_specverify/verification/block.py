"""Block verification: the draft tokens of a chain stand or fall together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import DraftTree
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.verification.base import (
    BatchVerdict,
    Verdict,
    Verifier,
    VerifierInfo,
    acceptance_probability,
    check_batch,
    check_chain,
    wide,
)
from hf_specverify.verification.block_rounds import ChosenPaths, decide_deterministic, decide_paths
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import as_path, law_of_child
from hf_specverify.verification.residual import kept_weight, precise, residual


class BlockVerification(Verifier):
    """Sun et al. 2403.10444, alg. 2: never accepts fewer tokens than token verification, in expectation.

    Weights w_0 = 1, w_i = min(1, w_{i-1}·p(x_i)/q(x_i)). With D_i = Σ_v (w_i·p(v|x_≤i) - q(v|x_≤i))_+ prefix i is
    accepted with probability h_i = D_i / (D_i + 1 - w_i), 1 where that is 0/0. The longest accepted prefix τ stays (0
    if there is none) and the next token comes from norm((w_τ·p - q)_+). Where the block simply ended no q stands behind
    it: D = w and h = w, the next token comes from p. The output has the target's law for every q.

    A cut is the draw of a null token with p = 0: the last token of a cut block is an inner one, with the admitted part
    q·v in its D, and prefixes longer than it have weight 0.
    """

    info = VerifierInfo(
        name="block",
        lossless=True,
        structure="chain",
        paper="Sun et al. 2403.10444, alg. 2",
        summary="Accept the longest prefix whose weight, the running product of p/q capped at 1, passes its own test.",
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one chain, see `Verifier.verify`."""
        check_chain(tree, p, self.info.name)
        laws = chain_laws(tree, p)
        return decide(tree, range(tree.num_nodes), self.weights(tree, p, laws), p, laws, draws)

    def weights(self, tree: DraftTree, p: Tensor, laws: Sequence[Tensor | None]) -> list[Tensor]:
        """The weights w_0 … w_L of the prefixes of a chain; () each."""
        weights = [precise(torch.ones((), device=p.device))]
        for token, p_row, q_row in zip(tree.tokens, p, laws, strict=False):
            assert q_row is not None
            weights.append(acceptance_probability(weights[-1] * precise(p_row[token]), precise(q_row[token])))
        return weights

    def verify_batch(self, drafts: DraftBatch | TreeBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on a batch of chains, see `Verifier.verify_batch`; D only for prefixes that need it."""
        if isinstance(drafts, TreeBatch):
            return super().verify_batch(drafts, p, draws)
        check_batch(drafts, p)
        weights = _chain_weights(drafts, p)
        if drafts.q is None:
            return decide_deterministic(drafts, weights, p, draws)
        paths = ChosenPaths(
            weights=weights,
            drawn=torch.arange(weights.shape[1], device=p.device) < drafts.law_rows[:, None],
            target=lambda rows, lengths: wide(p[rows, lengths]),
            law=lambda rows, lengths, p_rows: wide(drafts.law(rows, lengths)).to(p_rows.dtype),
        )
        accepted, next_weights = decide_paths(paths, draws)
        return BatchVerdict(accepted, draws.sample(next_weights))


def decide(
    tree: DraftTree,
    path: Sequence[int],
    weights: Sequence[Tensor],
    p: Tensor,
    laws: Sequence[Tensor | None],
    draws: Draws,
) -> Verdict:
    """Find the longest accepted prefix of a path, from its end upwards.

    Args:
        tree: the tree that the path is in.
        path: its n nodes.
        weights: w_0 … w_n.
        p: (N + 1, V), the target's laws of the tree.
        laws: the draft's law (V,) after each prefix, None where the path simply ended.
        draws: the source of randomness.
    """
    for length in range(len(path), -1, -1):
        weight, q_row = weights[length], laws[length]
        p_row = wide(p[path[length - 1] + 1 if length else 0])
        if q_row is None:
            chance, next_weights = weight, p_row
        else:
            chance = kept_weight(precise((weight * p_row - q_row).clamp(min=0).sum()), weight)
            next_weights = residual(weight * p_row, q_row)
        if length == 0 or bool(draws.accept(chance)):
            break
    return Verdict(as_path(list(path[:length]), tree), draws.sample(next_weights))


def chain_laws(tree: DraftTree, p: Tensor) -> list[Tensor | None]:
    """The draft's law after every prefix of a chain, the one at its end None where it simply ended."""
    size, p_row = tree.num_nodes, wide(p[0])
    laws: list[Tensor | None] = [law_of_child(tree, node - 1, node, p_row) for node in range(size)]
    return [*laws, None if tree.law(size - 1) is None else law_of_child(tree, size - 1, -1, p_row)]


def _chain_weights(drafts: DraftBatch, p: Tensor) -> Tensor:
    """(B, L + 1) the weights of all prefixes; 0 beyond a row's length."""
    tokens, exists = drafts.tokens[..., None], drafts.exists
    p_drafted = precise(p[:, :-1].gather(2, tokens).squeeze(2))
    q_drafted = torch.ones_like(p_drafted) if drafts.q is None else precise(drafts.q.gather(2, tokens).squeeze(2))
    weights = [precise(p.new_ones(p.shape[0]))]
    for place in range(tokens.shape[1]):
        weight = acceptance_probability(weights[-1] * p_drafted[:, place], q_drafted[:, place])
        weights.append(torch.where(exists[:, place], weight, 0))
    return torch.stack(weights, dim=1)
