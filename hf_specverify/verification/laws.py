"""The draft's laws as a rule meets them while it walks down a tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.verification.base import Verdict, acceptance_probability, wide
from hf_specverify.verification.draws import Draws

Choice = tuple[int | None, Tensor]
"""The accepted child of a node and weights that nobody needs, or None and the weights (V,) of the token there."""


def law_of_child(tree: DraftTree, node: int, child: int, p: Tensor) -> Tensor:
    """(V,) the law that a child of a node was drawn from, in the dtype of p: one-hot where the tree is deterministic.

    Args:
        tree: the tree.
        node: the parent; -1 is the root.
        child: a node, or `NULL` in a tree that has laws.
        p: (V,) the target's law there.
    """
    law = tree.law(node)
    if law is not None:
        return wide(law).to(p.dtype)
    return torch.zeros_like(p).index_fill_(0, tree.tokens[child].reshape(1), 1 if tree.laws is None else 0)


class RemainingLaw:
    """The law of the next different child of a node: without the children that are known already.

    The mass of the null token is one more entry of it. In a deterministic tree each child has its own one-hot law.

    Args:
        tree: the tree.
        node: the parent; -1 is the root.
        p: (V,) the target's law there, for its dtype.
    """

    def __init__(self, tree: DraftTree, node: int, p: Tensor) -> None:
        self._tree, self._node, self._p = tree, node, p
        law = tree.law(node)
        self._values = None if law is None else wide(law).to(p.dtype)
        self._null = torch.zeros(()) if self._values is None else _null_mass(self._values)

    def of(self, child: int) -> Tensor:
        """(V,) the law that the next child was drawn from."""
        return law_of_child(self._tree, self._node, child, self._p) if self._values is None else self._values

    def remove(self, child: int) -> None:
        """Zero a child's entry and renormalise, the null token's mass included."""
        if self._values is None:
            return
        if child == NULL:
            values, null = self._values, torch.zeros_like(self._null)
        else:
            values, null = self._values.index_fill(0, self._tree.tokens[child].reshape(1), 0), self._null
        total = values.sum() + null
        if bool(total > 0):
            values, null = values / total, null / total
        self._values, self._null = values, null


def _null_mass(law: Tensor) -> Tensor:
    """() what a law lacks to 1; 0 where that is rounding, which would weigh once a likely token is taken out."""
    lacking = 1 - law.sum(dtype=torch.float64 if law.device.type != "mps" else None)
    return torch.where(lacking > (1e-5 if law.dtype == torch.float32 else 1e-12), lacking, 0).to(law.dtype)


def descend(tree: DraftTree, p: Tensor, choose: Callable[[int, Tensor], Choice], draws: Draws) -> Verdict:
    """Go down from the root as long as a child is chosen, then sample the next token.

    Args:
        tree: the tree.
        p: (N + 1, V), the target's laws.
        choose: from a node and the target's law (V,) there to a child, or to the weights of the next token.
        draws: the source of the next token.
    """
    path: list[int] = []
    node = -1
    while True:
        child, weights = choose(node, wide(p[node + 1]))
        if child is None:
            return Verdict(as_path(path, tree), draws.sample(weights))
        path.append(child)
        node = child


def accepts(tree: DraftTree, child: int, p: Tensor, q: Tensor, draws: Draws) -> bool:
    """Flip with min(1, p/q) of a child's token, given laws (V,); a null token has p = 0 and is never accepted."""
    if child == NULL:
        return False
    token = tree.tokens[child]
    return bool(draws.accept(acceptance_probability(p[token], q[token])))


def as_path(nodes: list[int], tree: DraftTree) -> Tensor:
    """(a,) long, on the tree's device."""
    return torch.tensor(nodes, dtype=torch.long, device=tree.tokens.device)


def check_walks_share_laws(tree: DraftTree, name: str) -> None:
    """Refuse several deterministic walks for a rule that needs one law for all children of a node.

    Raises:
        ValueError: naming `tree`.
    """
    if tree.laws is None and not tree.is_chain:
        raise ValueError(f"tree must have laws or be a chain for the verifier {name!r}, got a deterministic tree")
