"""What a session draws from: a small model or a head, its cache in step with what the rows have committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..decoding.masks import TreeRegion
from ..decoding.state import BatchState


class ChainReader(Protocol):
    """Reads along, and scores what may follow.

    Attributes:
        device: where logits and drafted tokens are.
        vocabulary: V, the target's.
        is_ready: whether it can draft; a head can't before the target has read the prompt.
    """

    device: torch.device
    vocabulary: int

    @property
    def is_ready(self) -> bool:
        """See above."""

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """See `DraftSession.see`."""

    def catch_up(self, state: BatchState) -> Tensor:
        """Read what was committed since the last time; (A, V) logits of the next token."""

    def feed(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row, (A, 1); (A, V) logits."""

    def signals(self, names: Sequence[str]) -> dict[str, Tensor]:
        """(A,) each: of the signals named those that the reader gives itself, at the place scored last."""

    def take_back(self, state: BatchState) -> None:
        """Take back what was not committed."""

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""


class Reader(ChainReader, Protocol):
    """A reader that may take trees too.

    Attributes:
        takes_trees: whether nodes of trees can be fed.
    """

    @property
    def takes_trees(self) -> bool:
        """See above."""

    def feed_nodes(self, tokens: Tensor, parents: Tensor, region: TreeRegion) -> Tensor:
        """Read nodes of a tree, (A, F), behind the nodes read before.

        Args:
            tokens: (A, F) long.
            parents: (A or 1, F) long, the parent of each among the nodes read last; the last committed token is 0.
            region: what they see.

        Returns:
            (A, F, V) logits of their children.
        """

    def keep(self, base: list[int], chosen: list[list[int]]) -> None:
        """Of a tree that begins behind base[b] tokens of row b, keep the nodes chosen[b], which are a path."""

    def forget(self, base: list[int]) -> None:
        """Take everything back that was read behind base[b] tokens of row b."""
