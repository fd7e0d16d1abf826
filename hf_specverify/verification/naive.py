"""Naive multi-draft verification: the target draws, and is lucky or not."""

from __future__ import annotations

from torch import Tensor

from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.verification.base import Verdict, Verifier, VerifierInfo, check_target, wide
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import as_path


class NaiveVerification(Verifier):
    """Node-by-node sampling of the target, Miao et al. 2305.09781, §4.3 (naive sampling).

    Sample from p and keep going as long as the token was drafted: one draw per level. One node accepts with probability
    Σ p(1-(1-q)^K) for K independent candidates. The output is a sample of the target whatever was drafted, and q is not
    looked at. A null token is no token that the target can draw, so a cut only ends the walk.
    """

    info = VerifierInfo(
        name="naive",
        lossless=True,
        structure="tree",
        paper="SpecInfer, Miao et al. 2305.09781, §4.3 (naive sampling)",
        summary="Sample from the target and go on for as long as the sampled token was drafted.",
        drafts=("independent", "without_replacement", "deterministic"),
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree, see `Verifier.verify`."""
        check_target(tree, p)
        path: list[int] = []
        while True:
            node = path[-1] if path else -1
            token = draws.sample(wide(p[node + 1]))
            drafted = [child for child in tree.children(node) if child != NULL and tree.tokens[child] == token]
            if not drafted:
                return Verdict(as_path(path, tree), token)
            path += drafted
