"""Trees that grow where the draft is sure (EAGLE-2, 2406.16858, section 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..decoding.masks import TreeRegion
from ..decoding.processors import Block
from ..decoding.state import BatchState
from .drafter import DraftingCall
from .model_chains import ModelSession
from .model_trees import representatives
from .node_signals import signals_of_children
from .reader import Reader
from .tree_batch import TreeBatch

# Log probability of what can't be drafted: tokens without a score, and nodes deeper than a row wants.
IMPOSSIBLE = -1e20


@dataclass(frozen=True)
class DynamicTree:
    """How a dynamic tree grows; how deep it may get is `num_draft_tokens`.

    Attributes:
        width: nodes of each level that are expanded, the most likely ones, and the children that each of them gets.
        nodes: draft tokens that the target scores per row, at most: the most likely ones of the whole tree.

    Raises:
        ValueError: for values that are not allowed.
    """

    width: int = 4
    nodes: int = 12

    def __post_init__(self) -> None:
        for name in ("width", "nodes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: allowed are integers from 1")


class DynamicTreeSession(ModelSession):
    """Expands, level by level, the nodes that the target will most likely get to, then keeps the best of all.

    That a node is reached is as likely as the product of the draft's probabilities on the way to it. The tree follows
    from the draft's laws alone, no token of it is drawn: q is one-hot, and verifiers for deterministic drafts are
    exact.

    Args:
        reader: of the draft model, or the head.
        call: the call.
        tree: how it grows.
    """

    def __init__(self, reader: Reader, call: DraftingCall, tree: DynamicTree) -> None:
        super().__init__(reader, call, "deterministic")
        self.reader: Reader = reader
        self.tree, self.base = tree, [0]

    def propose(self, state: BatchState, lengths: list[int]) -> TreeBatch:
        """Grow a tree for each active row, up to lengths[i] levels."""
        lengths = self.possible(lengths)
        self.base = list(state.lengths)
        if not max(lengths):
            return _trees([[[]] for _ in lengths]).to(state.ids.device)
        pool = self._grow(state, lengths)
        numbers = pool.best(self.tree.nodes)
        tokens = pool.tokens.tolist()
        trees = _trees(
            [[[row[node] for node in walk] for walk in drawn] for row, drawn in zip(tokens, numbers, strict=True)]
        )
        return replace(trees, signals=self._signals_of(pool, numbers, trees)).to(state.ids.device)

    def _signals_of(self, pool: _Pool, numbers: list[list[list[int]]], trees: TreeBatch) -> dict[str, Tensor]:
        """(A, N) each, of the nodes as the merged trees number them; anything beyond a row's own."""
        if not self.signals:
            return {}
        paths, size = trees.paths.tolist(), trees.tokens.shape[1]
        nodes = [representatives(drawn, merged) for drawn, merged in zip(numbers, paths, strict=True)]
        places = torch.tensor([row + [0] * (size - len(row)) for row in nodes], device=self.device)
        return {name: value.gather(1, places) for name, value in pool.signals.items()}

    def _grow(self, state: BatchState, lengths: list[int]) -> _Pool:
        logits = self.reader.catch_up(state)[:, None]
        pool = _Pool(torch.tensor(lengths, device=self.device), self.signals)
        for level in range(max(lengths)):
            if level:
                tokens, parents = pool.tokens_of_last(), pool.parents_of_last()
                logits = self.reader.feed_nodes(tokens, parents, pool.region())
            law = self._level_scores(logits, state, pool).float().log_softmax(dim=-1).clamp_(max=0)
            pool.expand(law, self.tree.width)
        return pool

    def _level_scores(self, logits: Tensor, state: BatchState, pool: _Pool) -> Tensor:
        """(A, F, V) processed scores of the children of the nodes fed last."""
        block = None
        if self.plan.needs_history:
            texts = pool.texts_of_last()
            deepest, counts = max(len(text) for row in texts for text in row), [len(row) for row in texts]
            ids = state.with_block(state.ids.new_zeros(len(texts), deepest), [0] * len(texts))
            block = Block(ids, state.rows, state.lengths, counts, texts)
        return self.plan(logits, block)

    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Forget the tree: the accepted tokens are read as a chain with the next proposal."""
        self.reader.forget(self.base)
        super().commit(state, accepted, scores, path)


class _Pool:
    """The nodes of growing trees, A rows at once, numbered as they came; and those of them that were fed."""

    def __init__(self, depths: Tensor, signals: tuple[str, ...]) -> None:
        self.depths = depths  # (A,) levels that each row wants
        rows, device = len(depths), depths.device
        self.tokens = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.parents = torch.zeros(rows, 0, dtype=torch.long, device=device)  # node numbers, -1 the root
        self.scores = torch.zeros(rows, 0, device=device)  # log probability of being reached
        self.signals = {name: torch.zeros(rows, 0, device=device) for name in signals}
        self.level = 0
        self.last = torch.full((rows, 1), -1, dtype=torch.long, device=device)  # nodes to be expanded next
        self.before = self.last  # those expanded before them
        self.fed = torch.zeros(rows, 0, dtype=torch.long, device=device)  # nodes in the order in which they were fed
        self.fed_depths: list[int] = []  # of each of them, 0 for the root's children

    def expand(self, law: Tensor, width: int) -> None:
        """Give the last nodes children, from (A, F, V) log probabilities; the best of these are the last ones then."""
        self.level += 1
        parents, vocabulary = law.shape[1:]
        chances, tokens = law.topk(min(width, vocabulary), dim=-1)
        above = torch.zeros_like(self.last, dtype=law.dtype)
        if self.level > 1:
            above = self.scores.gather(1, self.last)
        reached = above[:, :, None] + chances
        reached = reached.masked_fill((self.level > self.depths)[:, None, None], float("-inf")).flatten(1)
        begin, children = self.tokens.shape[1], tokens.shape[2]
        self.tokens = torch.cat([self.tokens, tokens.flatten(1)], dim=1)
        self.parents = torch.cat([self.parents, self.last.repeat_interleave(children, dim=1)], dim=1)
        self.scores = torch.cat([self.scores, reached], dim=1)
        for name, value in signals_of_children(tuple(self.signals), law, chances).items():
            self.signals[name] = torch.cat([self.signals[name], value.flatten(1)], dim=1)
        self.before = self.last
        self.last = begin + reached.topk(min(width, parents * children), dim=-1).indices.sort(dim=-1).values

    def tokens_of_last(self) -> Tensor:
        """(A, F) tokens of the nodes that are to be fed."""
        return self.tokens.gather(1, self.last)

    def parents_of_last(self) -> Tensor:
        """(A, F) places of their parents among the nodes fed before."""
        above = self.parents.gather(1, self.last)
        return (above[:, :, None] == self.before[:, None]).long().argmax(dim=-1)

    def region(self) -> TreeRegion:
        """What the last nodes see of all nodes fed, themselves included; call it once, as they are fed."""
        rows, width = self.last.shape
        self.fed = torch.cat([self.fed, self.last], dim=1)
        self.fed_depths += [self.level - 1] * width
        visible = torch.zeros(rows, width, self.fed.shape[1], dtype=torch.bool, device=self.fed.device)
        node = self.last
        for _ in range(self.level):
            visible |= node[:, :, None] == self.fed[:, None]  # never the root, -1
            node = torch.where(node < 0, node, self.parents.gather(1, node.clamp(min=0)))
        return TreeRegion(torch.tensor(self.fed_depths, device=node.device).expand(rows, -1), visible)

    def texts_of_last(self) -> list[list[list[int]]]:
        """The tokens on the way to each of the last nodes, by row."""
        tokens, parents = self.tokens.tolist(), self.parents.tolist()
        return [
            [[tokens[row][step] for step in _walk(node, parents[row])] for node in nodes]
            for row, nodes in enumerate(self.last.tolist())
        ]

    def best(self, count: int) -> list[list[list[int]]]:
        """Walks, as nodes, to the leaves of each row's `count` likeliest nodes; empty ones for rows that have fewer.

        A child is not likelier than its parent, which came before it, so with a stable order the nodes kept are a tree.
        """
        order = self.scores.sort(dim=-1, descending=True, stable=True)
        nodes, scores = order.indices[:, :count].tolist(), order.values[:, :count].tolist()
        parents = self.parents.tolist()
        walks = []
        for row, chosen in enumerate(nodes):
            kept = sorted(node for node, score in zip(chosen, scores[row], strict=True) if score > IMPOSSIBLE)
            inner = {parents[row][node] for node in kept}
            walks.append([_walk(node, parents[row]) for node in kept if node not in inner])
        most = max(1, *map(len, walks))
        return [row + [[]] * (most - len(row)) for row in walks]


def _trees(walks: list[list[list[int]]]) -> TreeBatch:
    """Trees of the walks of every row, for which nothing was drawn."""
    return TreeBatch.from_walks(walks, None, [[[] for _ in row] for row in walks])


def _walk(node: int, parents: list[int]) -> list[int]:
    """The nodes from the root's child to a node; none for the root, -1."""
    walk: list[int] = []
    while node >= 0:
        walk.append(node)
        node = parents[node]
    return walk[::-1]
