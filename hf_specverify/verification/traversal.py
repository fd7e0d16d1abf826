"""Traversal verification: a tree from its leaves to its root."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.verification.base import (
    Verdict,
    Verifier,
    VerifierInfo,
    acceptance_probability,
    check_target,
    wide,
)
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import RemainingLaw, as_path
from hf_specverify.verification.residual import kept_weight


class TraversalVerification(Verifier):
    """Traversal verification, 2505.12398; on a chain it is block verification.

    The root has weight 1, a node w = min(1, w_parent·p(x)/q(x)). The first leaf in depth-first order is accepted with
    probability w, the next token then comes from p there. After a rejection the leaf goes, and its parent is left with
    D = Σ(w·p - q)_+; p ← norm((w·p - q)_+); w ← D/(D + 1 - w), 1 where that is 0/0; q ← q without the token,
    renormalised. A node without children left is a leaf; the root is always accepted. The output has the target's law
    for children drawn without replacement, for independent ones (equal ones are one node), and for deterministic ones,
    each with a one-hot q of its own.

    A cut is the draw of a null token with p = 0: a leaf of weight 0, always rejected, whose mass then leaves q.
    """

    info = VerifierInfo(
        name="traversal",
        lossless=True,
        structure="tree",
        paper="Traversal verification 2505.12398, the main algorithm",
        summary="Test the leaves of a tree in depth-first order; after a rejection go on with the corrected parent.",
        drafts=("independent", "without_replacement", "deterministic"),
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one tree, see `Verifier.verify`."""
        check_target(tree, p)
        path = [_Visit(tree, p, -1, wide(p[:1, 0]).new_ones(()))]
        while True:
            visit = path[-1]
            if visit.children:
                child = visit.children[0]
                if child == NULL:
                    visit.reject_first()
                else:
                    path.append(_Visit(tree, p, child, visit.weight_of_first()))
            elif len(path) == 1 or bool(draws.accept(visit.weight)):
                return Verdict(as_path([passed.node for passed in path[1:]], tree), draws.sample(visit.p))
            else:
                path.pop()
                path[-1].reject_first()


class _Visit:
    """A node on the way down, with what the rejected ones among its children have left of it.

    Attributes:
        node: its index. weight: (), its weight w. p: (V,), the target's law that is left.
        children: those not yet rejected, in the order drawn.
    """

    def __init__(self, tree: DraftTree, p: Tensor, node: int, weight: Tensor) -> None:
        self.tree, self.node, self.weight = tree, node, weight
        self.p = wide(p[node + 1])
        self.children = tree.children(node)
        self.law = RemainingLaw(tree, node, self.p)

    def weight_of_first(self) -> Tensor:
        """The weight () of the first child."""
        token = self.tree.tokens[self.children[0]]
        return acceptance_probability(self.weight * self.p[token], self.law.of(self.children[0])[token])

    def reject_first(self) -> None:
        """Remove the first child, and its share from weight, p and q."""
        child = self.children.pop(0)
        left = (self.weight * self.p - self.law.of(child)).clamp(min=0)
        mass = left.sum()
        self.weight = kept_weight(mass, self.weight)
        self.p = torch.where(mass > 0, left / mass, self.p)
        self.law.remove(child)
