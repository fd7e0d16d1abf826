"""Everything that a toy draft can propose, with its probability."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import NULL, DraftTree, merge_walks
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.verification.base import DraftKind

from .cases import Case, Context

Drawn = tuple[float, tuple[Context, ...]]


@dataclass(frozen=True)
class Proposal:
    """What a draft proposes for one block.

    Attributes:
        probability: of exactly these walks, in this order.
        walks: the tokens of each; one of fewer than L tokens was cut behind its last.
        drafts: how they were drawn.
    """

    probability: float
    walks: tuple[Context, ...]
    drafts: DraftKind


class Proposer:
    """The draft and the schedule of a case.

    Args:
        case: the toy models.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._laws: dict[Context, Tensor] = {}
        self._steps: dict[Context, list[tuple[int, float]]] = {}

    def proposals(self, drafts: DraftKind, branching: Sequence[int]) -> Iterator[Proposal]:
        """Yield everything that the draft can propose; the probabilities add up to 1.

        Args:
            drafts: how the children of a node are drawn. Deterministic ones are the most likely tokens, cuts ignored.
            branching: how many children are drawn after a node of each of the L levels; (K, 1, 1 …) are K walks. Of a
                law with fewer tokens fewer are drawn where equal ones are excluded.
        """
        for probability, walks in self._draw((), drafts, branching):
            yield Proposal(probability, walks, drafts)

    def tree(self, proposal: Proposal) -> DraftTree:
        """The proposal as a tree."""
        walks = proposal.walks
        if proposal.drafts == "deterministic":
            merged = merge_walks([list(walk) for walk in walks])
            tokens, parents = (torch.tensor(values, dtype=torch.long) for values in (merged.tokens, merged.parents))
            return DraftTree.from_parents(tokens, parents, None)
        length = self.case.length
        laws = torch.stack([self._laws_along(walk) for walk in walks])
        if len(walks) == 1:
            return DraftTree.chain(torch.tensor(walks[0], dtype=torch.long), laws[0, : len(walks[0]) + 1])
        tokens = torch.tensor([[*walk, *[-1] * (length - len(walk))] for walk in walks], dtype=torch.long)
        return DraftTree.from_paths(tokens, laws)

    def batch(self, proposals: Sequence[Proposal]) -> DraftBatch | TreeBatch:
        """Proposals, all with the same number of walks, as the rows of a batch: chains where it is one walk."""
        deterministic = proposals[0].drafts == "deterministic"
        walks = [[list(walk) for walk in proposal.walks] for proposal in proposals]
        if len(walks[0]) == 1:
            return self._chains([row[0] for row in walks], deterministic)
        if deterministic:
            return TreeBatch.from_walks(walks, None, [[[] for _ in row] for row in walks])
        places = [_numbered_contexts(proposal.walks) for proposal in proposals]
        size = max(map(len, places))
        laws = [torch.stack([*map(self._law, row), *[self._law(())] * (size - len(row))]) for row in places]
        rows = [
            [[place[walk[:end]] for end in range(min(len(walk) + 1, self.case.length))] for walk in proposal.walks]
            for place, proposal in zip(places, proposals, strict=True)
        ]
        return TreeBatch.from_walks(walks, torch.stack(laws), rows)

    def target(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """(N + 1, V) the target's laws at the root and after every node of a tree."""
        contexts: list[Context] = [()]
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            contexts.append((*contexts[parent + 1], token))
        return torch.stack([self.case.p[context] for context in contexts])

    def _chains(self, chains: list[list[int]], deterministic: bool) -> DraftBatch:
        longest = max(map(len, chains))
        tokens = torch.tensor([chain + [0] * (longest - len(chain)) for chain in chains], dtype=torch.long)
        lengths = tuple(map(len, chains))
        if deterministic:
            return DraftBatch(tokens.reshape(len(chains), longest), lengths, None)
        q = torch.stack([self._laws_along(tuple(chain)) for chain in chains])
        cut = tuple(length < self.case.length for length in lengths)
        return DraftBatch(tokens.reshape(len(chains), longest), lengths, q, cut if any(cut) else None)

    def _draw(self, context: Context, drafts: DraftKind, branching: Sequence[int]) -> Iterator[Drawn]:
        """Yield every set of walks below a context."""
        if len(context) == self.case.length:
            yield 1.0, (context,)
            return
        for probability, tokens in self._children(context, drafts, branching[len(context)]):
            below = (
                [(1.0, (context,))] if token == NULL else self._draw((*context, token), drafts, branching)
                for token in tokens
            )
            for parts in itertools.product(*below):
                walks = tuple(walk for _, part in parts for walk in part)
                yield probability * prod(chance for chance, _ in parts), walks

    def _children(self, context: Context, drafts: DraftKind, count: int) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Yield every ordered choice of children after a context."""
        if drafts == "deterministic":
            best = self.case.q[context].argsort(descending=True, stable=True)[:count]
            yield 1.0, tuple(best.tolist())
            return
        steps = self._extended(context)
        if drafts == "independent":
            for drawn in itertools.product(steps, repeat=count):
                yield prod(chance for _, chance in drawn), tuple(token for token, _ in drawn)
            return
        for drawn in itertools.permutations(steps, min(count, len(steps))):
            left, probability = 1.0, 1.0
            for _, chance in drawn[:-1]:
                probability *= chance / left
                left -= chance
            if len(drawn) < len(steps):  # the last one of all has no choice
                probability *= drawn[-1][1] / left
            yield probability, tuple(token for token, _ in drawn)

    def _extended(self, context: Context) -> list[tuple[int, float]]:
        """The tokens that can be drawn and admitted, and the null token, with their probabilities."""
        if context not in self._steps:
            law = self._law(context).tolist()
            steps = [(token, chance) for token, chance in enumerate(law) if chance > 0]
            admitted = self.case.admitted.get(context)
            cut = 0.0 if admitted is None else float(self.case.q[context][~admitted].sum())
            self._steps[context] = [*steps, (NULL, cut)] if cut > 0 else steps
        return self._steps[context]

    def _law(self, context: Context) -> Tensor:
        """q·v, or zeros after L tokens, where a block simply ends."""
        if context not in self._laws:
            if len(context) == self.case.length:
                law = torch.zeros_like(self.case.p[()])
            else:
                law = self.case.q[context] * self.case.admitted.get(context, 1)
            self._laws[context] = law
        return self._laws[context]

    def _laws_along(self, walk: Context) -> Tensor:
        """(L + 1, V) the laws along a walk, as `DraftTree.from_paths` takes them."""
        rows = [self._law(walk[:end]) for end in range(len(walk) + 1)]
        return torch.stack([*rows, *[torch.zeros_like(rows[0])] * (self.case.length - len(walk))])


def draft_blocks(case: Case) -> Iterator[tuple[float, Context, Tensor]]:
    """Yield every block that the draft and the schedule can propose.

    Yields:
        The block's probability, its tokens (n of them, n ≤ L), and q (n + 1, V) as `DraftTree.chain` takes it: rows
        q·v, the last one zeros where the block was not cut.
    """
    proposer = Proposer(case)
    for proposal in proposer.proposals("independent", (1,) * case.length):
        tree = proposer.tree(proposal)
        yield proposal.probability, proposal.walks[0], tree.q


def _numbered_contexts(walks: Sequence[Context]) -> dict[Context, int]:
    """Every prefix of some walks with a number of its own."""
    prefixes = dict.fromkeys(walk[:end] for walk in walks for end in range(len(walk) + 1))
    return {prefix: number for number, prefix in enumerate(prefixes)}
