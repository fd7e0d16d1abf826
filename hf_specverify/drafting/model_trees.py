"""A draft model that draws trees: several paths, or several tokens after a node, in one forward per level."""

from __future__ import annotations

import torch
from torch import Tensor

from ..decoding.processors import Block
from ..decoding.state import BatchState
from ..verification.base import DraftKind
from ..verification.draws import Draws
from .drafter import DraftingCall
from .model_chains import ModelSession
from .reader import Reader
from .shape import TreeShape
from .tree_batch import TreeBatch


class TreeSession(ModelSession):
    """Drafts a tree per row. All nodes of a level are read together, behind the one cached prefix.

    Args:
        reader: of the draft model, or the head.
        call: the call.
        kind: how the children of a node are drawn.
        branching: children per node at each level; the last entry holds for all levels below.
    """

    def __init__(self, reader: Reader, call: DraftingCall, kind: DraftKind, branching: tuple[int, ...]) -> None:
        super().__init__(reader, call, kind)
        self.reader: Reader = reader
        self.kind, self.branching = kind, branching
        self.shape, self.base = TreeShape(()), [0]
        self.nodes: list[list[int]] = []

    def propose(self, state: BatchState, lengths: list[int]) -> TreeBatch:
        """Draft level by level for all active rows; rows that want fewer levels ignore the surplus."""
        lengths = self.possible(lengths)
        longest = max(lengths)
        self.base = list(state.lengths)
        self.shape = TreeShape((*self.branching, *[self.branching[-1]] * longest)[:longest])
        tokens = torch.zeros(len(lengths), self.shape.offset(longest), dtype=torch.long, device=self.device)
        laws = None
        if longest:
            laws = self._law_buffer(len(lengths), 1 + self.shape.offset(longest - 1)) if self.sampling else None
            self._draw_levels(state, tokens, laws)
        return self._merge(tokens, laws, lengths, state.ids.device)

    def _draw_levels(self, state: BatchState, tokens: Tensor, laws: Tensor | None) -> None:
        logits = self.reader.catch_up(state)[:, None]
        same = torch.zeros(len(tokens), 1, dtype=torch.long, device=self.device)
        for level, count in enumerate(self.shape.branching):
            begin = self.shape.offset(level)
            if level:
                logits = self._feed_level(tokens, level - 1)
            scores = self._level_scores(logits, state, tokens, level)
            if laws is None:
                drawn = scores.topk(count, dim=-1).indices
            else:
                # Nodes with the same prefix become one, so their children must come from one law, to the last bit.
                law = scores.softmax(dim=-1)
                if level:
                    law = law[torch.arange(len(tokens), device=self.device)[:, None], same]
                first = 0 if level == 0 else 1 + self.shape.offset(level - 1)
                laws[:, first : first + law.shape[1]] = law
                drawn = draw_children(law, count, self.kind, self.draws)
            tokens[:, begin : begin + self.shape.levels[level]] = drawn.flatten(1)
            same = first_equals(same.repeat_interleave(count, dim=1), drawn.flatten(1))

    def _feed_level(self, tokens: Tensor, level: int) -> Tensor:
        """(A, F, V) logits after the F nodes of a level."""
        begin, width = self.shape.offset(level), self.shape.levels[level]
        region = self.shape.region(level, len(tokens), self.device)
        parents = torch.arange(width, device=self.device)[None] // self.shape.branching[level]
        return self.reader.feed_nodes(tokens[:, begin : begin + width], parents, region)

    def _level_scores(self, logits: Tensor, state: BatchState, tokens: Tensor, level: int) -> Tensor:
        """(A, F, V) processed scores of the children of a level's F parents."""
        block = None
        if self.plan.needs_history:
            width = logits.shape[1]
            walks = [self._parent_walk(parent, level) for parent in range(width)]
            drafted = [[[row[node] for node in walk] for walk in walks] for row in tokens.tolist()]
            ids = state.with_block(tokens[:, :level].to(state.ids.device), [0] * len(tokens))
            block = Block(ids, state.rows, state.lengths, [width] * len(tokens), drafted)
        return self.plan(logits, block)

    def _parent_walk(self, parent: int, level: int) -> list[int]:
        """The nodes from the root's child to a level's parent."""
        if not level:
            return []
        return TreeShape(self.shape.branching[:level]).walk(parent, level)

    def _merge(self, tokens: Tensor, laws: Tensor | None, lengths: list[int], device: torch.device) -> TreeBatch:
        """Walks with equal prefixes become one tree; here the drafted tokens come to the host, once a step."""
        numbers = [[self.shape.walk(walk, length) for walk in range(self.shape.walks)] for length in lengths]
        walks = [
            [[row[node] for node in walk] for walk in drawn]
            for row, drawn in zip(tokens.tolist(), numbers, strict=True)
        ]
        rows = [[self._law_rows(walk) for walk in drawn] for drawn in numbers]
        trees = TreeBatch.from_walks(walks, laws, rows)
        self.nodes = [representatives(drawn, paths) for drawn, paths in zip(numbers, trees.paths.tolist(), strict=True)]
        return trees.to(device)

    def _law_rows(self, walk: list[int]) -> list[int]:
        """The rows of the laws that the nodes of a walk were drawn from: the root's is 0, that of node n is n + 1."""
        return [0, *(node + 1 for node in walk)][: len(walk)]

    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Keep the accepted path in the cache, as far as it was fed: the last level never is."""
        fed = len(self.shape.branching) - 1
        if fed > 0 and path is not None:
            chosen = [
                [self.nodes[place][node] for node in row[: min(count, fed)]]
                for place, (row, count) in enumerate(zip(path.tolist(), accepted, strict=True))
            ]
            self.reader.keep(self.base, chosen)
        super().commit(state, accepted, scores, path)


def draw_children(law: Tensor, count: int, kind: DraftKind, draws: Draws) -> Tensor:
    """(A, F, count) tokens drawn after F nodes of A rows from their laws (A, F, V).

    Without replacement, where a law has fewer than `count` tokens the last draws repeat one: equal siblings become one
    node, so they propose nothing.
    """
    if kind == "independent" or count == 1:
        return draws.sample(law[:, :, None].expand(-1, -1, count, -1))
    left, drawn = law.clone(), []
    for _ in range(count):
        nothing_left = left.amax(dim=-1, keepdim=True) <= 0
        drawn.append(draws.sample(torch.where(nothing_left, law, left)))
        left.scatter_(-1, drawn[-1][..., None], 0)
    return torch.stack(drawn, dim=-1)


def first_equals(parents: Tensor, tokens: Tensor) -> Tensor:
    """(A, F) the first node of each level with the same parent and the same token, from (A, F) of both."""
    equal = (parents[:, :, None] == parents[:, None]) & (tokens[:, :, None] == tokens[:, None])
    return equal.long().argmax(dim=-1)


def representatives(drawn: list[list[int]], paths: list[list[int]]) -> list[int]:
    """For every node of a merged tree, a node of the drawn one that stands for it."""
    found: dict[int, int] = {}
    for walk, path in zip(drawn, paths, strict=True):
        for node, merged in zip(walk, path, strict=False):
            found.setdefault(merged, node)
    return [found[node] for node in range(len(found))]
