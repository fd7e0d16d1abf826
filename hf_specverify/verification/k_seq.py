"""K-SEQ: independent candidates against one inflated draft."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_specverify.drafting.tree import DraftTree
from hf_specverify.verification.base import Verdict, Verifier, VerifierInfo, check_target
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import Choice, accepts, check_walks_share_laws, descend, law_of_child
from hf_specverify.verification.residual import residual


class KSeqVerification(Verifier):
    """SpecTr's k-sequential selection, Sun et al. 2310.15141, §5.

    K candidates at a node, β(ρ) = Σ min(p/ρ, q), ρ the smallest number in [1, K] with 1 - (1-β)^K ≤ ρβ. Accept each
    candidate in turn with probability min(1, p/(ρq)). If none is accepted the next token comes from
    norm((p - min(p/ρ, q)·(1-(1-β)^K)/β)_+). The output has the target's law for candidates drawn independently from q.

    A cut is the draw of a null token with p = 0: one of the K candidates, never accepted; β has no share of it.
    """

    info = VerifierInfo(
        name="k_seq",
        lossless=True,
        structure="paths",
        paper="SpecTr, Sun et al. 2310.15141, §5",
        summary="At each node test K candidates in turn, each with probability min(1, p/(ρq)) for one ρ that fits all.",
        drafts=("independent",),
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree, see `Verifier.verify`."""
        check_target(tree, p)
        check_walks_share_laws(tree, self.info.name)

        def choose(node: int, p_row: Tensor) -> Choice:
            candidates = tree.draws(node)
            if not candidates:
                return None, p_row
            law = law_of_child(tree, node, candidates[0], p_row)
            rho = inflation(p_row, law, len(candidates))
            inflated = rho * law
            for child in candidates:
                if accepts(tree, child, p_row, inflated, draws):
                    return child, p_row
            share = torch.minimum(p_row / rho, law)
            return None, residual(p_row, share * _rounds(float(share.sum()), len(candidates)))

        return descend(tree, p, choose, draws)


def inflation(p: Tensor, q: Tensor, count: int, steps: int = 25) -> float:
    """ρ by bisection: the smallest number in [1, K] with Σ_{i<K} (1-β)^i ≤ ρ, which is 1 - (1-β)^K ≤ ρβ.

    It is too large by up to (K-1)/2^steps: that keeps the law exact and accepts that much less.

    Args:
        p: (V,), the target's law.
        q: (V,), the draft's.
        count: K.
        steps: halvings of [1, K].
    """
    low, width = 1.0, count - 1.0
    for _ in range(steps if count > 1 else 0):
        width /= 2
        if _rounds(_overlap(p, q, low + width), count) > low + width:
            low += width
    return low + width


def _overlap(p: Tensor, q: Tensor, rho: float) -> float:
    """β(ρ)."""
    return float(torch.minimum(p / rho, q).sum())


def _rounds(accepted: float, count: int) -> float:
    """The expected number of rounds out of K that are played, each ending the game with probability β."""
    total = 0.0
    for _ in range(count):
        total = total * (1 - accepted) + 1
    return total
