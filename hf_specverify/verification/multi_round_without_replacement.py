"""Recursive rejection: candidates drawn without replacement, one after the other."""

from __future__ import annotations

from torch import Tensor

from hf_specverify.drafting.tree import DraftTree
from hf_specverify.verification.base import Verdict, Verifier, VerifierInfo, check_target
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import Choice, RemainingLaw, accepts, descend
from hf_specverify.verification.residual import residual


class MultiRoundWithoutReplacementVerification(Verifier):
    """Recursive rejection sampling without replacement (Jeon et al. 2402.14160; Yang et al. 2401.06706).

    As `MultiRoundVerification`, over the different children in the order drawn; after a rejection also the token's
    entry in q is zeroed and q renormalised, the law that the next one was drawn from. The output has the target's law
    for children drawn without replacement, for independent ones (the first draws of different tokens are draws without
    replacement), and for deterministic ones, each with a one-hot q of its own.

    A cut is the draw of a null token with P = 0: always rejected; its mass counts in the total of q until then.
    """

    info = VerifierInfo(
        name="multi_round_without_replacement",
        lossless=True,
        structure="tree",
        paper="Recursive speculative decoding, Jeon et al. 2402.14160; Yang et al. 2401.06706",
        summary="Test different candidates in turn, with what was rejected taken out of both the target and the draft.",
        drafts=("without_replacement", "independent", "deterministic"),
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree, see `Verifier.verify`."""
        check_target(tree, p)

        def choose(node: int, left: Tensor) -> Choice:
            remaining = RemainingLaw(tree, node, left)
            for child in tree.children(node):
                law = remaining.of(child)
                if accepts(tree, child, left, law, draws):
                    return child, left
                left = residual(left, law)
                left = left / left.sum()
                remaining.remove(child)
            return None, left

        return descend(tree, p, choose, draws)
