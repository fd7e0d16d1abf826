"""The draft trees of a whole batch, merged and numbered for one pass of the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check_ids
from .tree import DraftTree, merge_walks


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """One tree of draft tokens for each of the B rows of a step, padded on the right with nodes that don't count.

    Attributes:
        tokens: (B, N) long, the token of every node; any valid id beyond a row's number of nodes.
        parents: (B, N) long, the parent of every node, which comes before it; -1 is the root.
        lengths: the number of nodes of each row, 0 to N.
        depths: the length of each row's longest path.
        paths: (B, K, L) long, the nodes of the K walks of each row; -1 behind the end of a walk.
        ancestors: (B, N, N) bool, whether node j is node i or stands above it.
        laws: (B, M, V) float32, the draft's laws; None where every token is deterministic (one-hot on itself).
        law_of: (B, N + 1) long, the row of `laws` after the root (entry 0) and after node i (entry i + 1); -1 where
            nothing was drawn.
        signals: (B, N) float32 each, what the drafter says of its nodes, by name (`scheduling.signals`).
    """

    tokens: Tensor
    parents: Tensor
    lengths: tuple[int, ...]
    depths: tuple[int, ...]
    paths: Tensor
    ancestors: Tensor
    laws: Tensor | None
    law_of: Tensor
    signals: Mapping[str, Tensor] | None = None

    @classmethod
    def from_walks(cls, walks: list[list[list[int]]], laws: Tensor | None, rows: list[list[list[int]]]) -> TreeBatch:
        """Merge the walks of every row.

        Args:
            walks: for every row K lists of token ids, in the order drawn.
            laws: (B, M, V), or None.
            rows: for every row and walk, the row of `laws` that each token was drawn from; one entry more where the
                walk was cut behind its last token.
        """
        layouts = [merge_walks(row) for row in walks]
        size = max((layout.size for layout in layouts), default=0)
        longest = max((len(walk) for row in walks for walk in row), default=0)
        law_of = [[-1] * (size + 1) for _ in layouts]
        for place, layout in enumerate(layouts):
            for path, drawn in zip(layout.paths, rows[place], strict=True):
                for node, law in zip([-1, *path], drawn, strict=False):
                    if law_of[place][node + 1] < 0:
                        law_of[place][node + 1] = law
        tokens = _padded([layout.tokens for layout in layouts], size, 0)
        parents = _padded([layout.parents for layout in layouts], size, -1)
        paths = torch.stack([_padded(layout.paths, longest, -1) for layout in layouts])
        device = None if laws is None else laws.device
        batch = cls(
            tokens,
            parents,
            tuple(layout.size for layout in layouts),
            tuple(max(map(len, row), default=0) for row in walks),
            paths,
            _ancestors(parents),
            laws,
            torch.tensor(law_of),
        )
        return batch if device is None else batch.to(device)

    def to(self, device: torch.device) -> TreeBatch:
        """The same trees on a device."""
        moved = (part.to(device) for part in (self.tokens, self.parents, self.paths, self.ancestors, self.law_of))
        tokens, parents, paths, ancestors, law_of = moved
        laws = None if self.laws is None else self.laws.to(device)
        signals = None if self.signals is None else {name: value.to(device) for name, value in self.signals.items()}
        return TreeBatch(tokens, parents, self.lengths, self.depths, paths, ancestors, laws, law_of, signals)

    @property
    def exists(self) -> Tensor:
        """(B, N) bool: which nodes count."""
        lengths = torch.tensor(self.lengths, dtype=torch.long).to(self.tokens.device, non_blocking=True)
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < lengths[:, None]

    @property
    def levels(self) -> Tensor:
        """(B, N) long: steps of every node from the root, 1 for its children."""
        return self.ancestors.sum(dim=-1)

    def part(self, places: slice) -> TreeBatch:
        """Some of the rows; no copy."""
        return TreeBatch(
            self.tokens[places],
            self.parents[places],
            self.lengths[places],
            self.depths[places],
            self.paths[places],
            self.ancestors[places],
            None if self.laws is None else self.laws[places],
            self.law_of[places],
            None if self.signals is None else {name: value[places] for name, value in self.signals.items()},
        )

    def tree(self, row: int, vocabulary_size: int) -> DraftTree:
        """One row as a tree; no copy of its laws.

        Raises:
            ValueError: if the laws are of another vocabulary, or a token is outside it.
        """
        size = self.lengths[row]
        tokens = self.tokens[row, :size]
        check_ids(tokens, vocabulary_size)
        if self.laws is not None and self.laws.shape[2] != vocabulary_size:
            raise ValueError(f"vocabulary_size must be the V of laws, {self.laws.shape[2]}, got {vocabulary_size}")
        laws = None if self.laws is None else self.laws[row]
        return DraftTree(tokens, self.parents[row, :size], self.paths[row], laws, self.law_of[row, : size + 1])


def _padded(rows: list[list[int]], width: int, filler: int) -> Tensor:
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows], dtype=torch.long).reshape(
        len(rows), width
    )


def _ancestors(parents: Tensor) -> Tensor:
    """(B, N, N) bool from (B, N) parents."""
    count, size = parents.shape
    ancestors = torch.eye(size, dtype=torch.bool).repeat(count, 1, 1)
    for row, above in zip(ancestors, parents.tolist(), strict=True):
        for node, parent in enumerate(above):
            if parent >= 0:
                row[node] |= row[parent]
    return ancestors
