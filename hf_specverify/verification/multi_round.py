"""Multi-round rejection: independent candidates, one after the other."""

from __future__ import annotations

from torch import Tensor

from hf_specverify.drafting.tree import DraftTree
from hf_specverify.verification.base import Verdict, Verifier, VerifierInfo, check_target
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import Choice, accepts, check_walks_share_laws, descend, law_of_child
from hf_specverify.verification.residual import residual


class MultiRoundVerification(Verifier):
    """Multi-step speculative sampling of SpecInfer, Miao et al. 2305.09781, alg. 2.

    At a node, with P = p at first: take the candidates in the order drawn, which is random, equal ones as often as they
    were drawn. Accept x with probability min(1, P(x)/q(x)) and go down to it, else P ← norm((P - q)_+). If none is
    accepted the next token comes from P. The output has the target's law for candidates drawn independently from q.

    A cut is the draw of a null token with P = 0: always rejected, P ← norm((P - q)_+) with the admitted part of q.
    """

    info = VerifierInfo(
        name="multi_round",
        lossless=True,
        structure="paths",
        paper="SpecInfer, Miao et al. 2305.09781, alg. 2",
        summary="At each node test the candidates in turn, each against what the ones before it left of the target.",
        drafts=("independent",),
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree, see `Verifier.verify`."""
        check_target(tree, p)
        check_walks_share_laws(tree, self.info.name)

        def choose(node: int, left: Tensor) -> Choice:
            for child in tree.draws(node):
                law = law_of_child(tree, node, child, left)
                if accepts(tree, child, left, law, draws):
                    return child, left
                left = residual(left, law)
                left = left / left.sum()
            return None, left

        return descend(tree, p, choose, draws)
