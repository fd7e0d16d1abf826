"""Greedy multi-path block verification: follow the best of K paths, then verify it as a block."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.verification.base import (
    BatchVerdict,
    Verdict,
    VerifierInfo,
    acceptance_probability,
    check_target,
    wide,
)
from hf_specverify.verification.block import BlockVerification, decide
from hf_specverify.verification.block_rounds import decide_paths
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.greedy_walk import check_tree_batch, walk_batch
from hf_specverify.verification.laws import check_walks_share_laws
from hf_specverify.verification.ranking import Rank, masses_below
from hf_specverify.verification.residual import precise


class GreedyMultipathBlockVerification(BlockVerification):
    """Greedy multi-path block verification (GBV), 2602.16961.

    K paths are drawn independently from q. After every node the vocabulary is ordered by p/q, ties by token id; the
    walk goes to the drafted child of the highest rank. The next token of that path has the law q_Γ (see `Rank.law`).
    Block verification is then run on the path with q_Γ in place of q: in weights, h and residual. With K = 1 q_Γ = q.
    The output has the target's law for every q and K. The expected number of accepted tokens may fall as K grows.

    A cut is the draw of a null token of target mass 0, below all others in rank: its mass counts in what ranks below a
    token, and it is followed only where every path through the node drew it. The chosen path then ends there, with the
    q_Γ of the admitted tokens in its D.
    """

    info = VerifierInfo(
        name="greedy_multipath_block",
        lossless=True,
        structure="paths",
        paper="Greedy multi-path block verification 2602.16961, the main algorithm",
        summary="Of K independent paths follow the drafted child of the largest p/q, then verify that path as a block.",
        drafts=("independent",),
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree, see `Verifier.verify`."""
        check_target(tree, p)
        check_walks_share_laws(tree, self.info.name)
        if len(tree.paths) == 1:
            return super().verify(tree, p, draws)
        rank = Rank.root((), len(tree.paths), p.device)
        node, weights = -1, [precise(torch.ones((), device=p.device))]
        path: list[int] = []
        laws: list[Tensor | None] = []
        while True:
            law = tree.law(node)
            if law is None:
                return decide(tree, path, weights, p, [*laws, None], draws)
            p_row = wide(p[node + 1])
            q_row = wide(law).to(p_row.dtype)
            below = masses_below(p_row, q_row)
            laws.append(rank.law(precise(q_row), below).to(p_row.dtype))
            child = self.highest_child(tree, node, p_row / q_row)
            if child == NULL:
                return decide(tree, path, weights, p, laws, draws)
            token = tree.tokens[child]
            chosen = rank.law(precise(q_row[token]), below[token])
            weights.append(acceptance_probability(weights[-1] * precise(p_row[token]), chosen))
            rank = rank.then(precise(q_row[token]), below[token])
            path.append(child)
            node = child

    def highest_child(self, tree: DraftTree, node: int, ratio: Tensor) -> int:
        """The drafted child of the highest rank, `NULL` where every path through the node drew that.

        Args:
            tree: the tree.
            node: the parent; -1 is the root.
            ratio: (V,) p/q there.
        """
        children = [child for child in tree.children(node) if child != NULL]
        ranks = {child: (float(ratio[tree.tokens[child]]), int(tree.tokens[child])) for child in children}
        return max(children, key=lambda child: ranks[child], default=NULL)

    def verify_batch(self, drafts: DraftBatch | TreeBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on a batch, see `Verifier.verify_batch`; the vocabulary is sorted only where D is asked for."""
        if isinstance(drafts, DraftBatch) or drafts.paths.shape[1] == 1 or drafts.laws is None:
            return super().verify_batch(drafts, p, draws)
        check_tree_batch(drafts, p)
        walk = walk_batch(drafts, p)
        accepted, next_weights = decide_paths(walk.as_chosen_paths(drafts, p), draws)
        return BatchVerdict(accepted, draws.sample(next_weights), walk.nodes[:, 1:].clamp(min=0))
