"""The shape of the trees that a draft model draws: fixed before a token is known, so that drafting never waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from ..decoding.masks import TreeRegion


@dataclass(frozen=True)
class TreeShape:
    """Every node of a level has the same number of children; nodes are numbered level by level.

    Attributes:
        branching: children per node at each level, the root's first. (3, 1, 1) is three paths of three tokens.
    """

    branching: tuple[int, ...]

    @cached_property
    def levels(self) -> list[int]:
        """Nodes of each level."""
        return [prod(self.branching[: level + 1]) for level in range(len(self.branching))]

    @property
    def walks(self) -> int:
        """K, the number of walks from the root to a node of the last level."""
        return self.levels[-1] if self.levels else 1

    def offset(self, level: int) -> int:
        """Number of the first node of a level."""
        return sum(self.levels[:level])

    def walk(self, number: int, length: int) -> list[int]:
        """The first `length` nodes of a walk."""
        width = self.walks
        return [self.offset(level) + number // (width // self.levels[level]) for level in range(length)]

    def region(self, level: int, rows: int, device: torch.device) -> TreeRegion:
        """What the nodes of a level see when they are fed behind all levels before them."""
        size = self.offset(level + 1)
        depths = torch.repeat_interleave(torch.arange(level + 1), torch.tensor(self.levels[: level + 1]))
        visible = torch.zeros(self.levels[level], size, dtype=torch.bool)
        nodes = torch.arange(self.levels[level])
        for above in range(level + 1):
            ancestors = nodes // (self.levels[level] // self.levels[above])
            visible[nodes, self.offset(above) + ancestors] = True
        return TreeRegion(depths.expand(rows, -1).to(device), visible.expand(rows, -1, -1).to(device))
