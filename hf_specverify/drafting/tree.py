"""What a drafter hands to a verifier: one tree of draft tokens, or the chains of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DraftTree:
    """The draft tokens of one sequence, with the laws that they were drawn from.

    Attributes:
        tokens: (N,) long, the token of every node. A parent comes before its children.
        parents: (N,) long, the index of every node's parent; -1 means the root (the last committed token).
        q: (N + 1, V), the draft's laws: row 0 is the law that the root's children were drawn from, row i + 1 the law
            that the children of node i were drawn from. On a chain, row i is the law that token i was drawn from.
            The row of a leaf says how the block ended: zeros where it simply ended (the next token is the bonus, from
            the target), or the admitted part q·v where a schedule cut it. A row may sum to less than 1; the missing
            mass is that of a null token, which the target never emits.
    """

    tokens: Tensor
    parents: Tensor
    q: Tensor

    @classmethod
    def chain(cls, tokens: Tensor, q: Tensor) -> DraftTree:
        """Build the tree of a single path.

        Args:
            tokens: (L,) integer token ids, in order; L = 0 is allowed.
            q: (L + 1, V) floating point: row i is the law that token i was drawn from, the last row as in the class.

        Raises:
            ValueError: if a shape, a dtype, a token id or a row of q is not as described.
        """
        _check_tokens(tokens)
        _check_laws(q, rows=tokens.shape[0] + 1)
        _check_ids(tokens, q.shape[1])
        parents = torch.arange(-1, tokens.shape[0] - 1, device=tokens.device)
        return cls(tokens.long(), parents, q)

    @property
    def num_nodes(self) -> int:
        """N, the number of draft tokens."""
        return self.tokens.shape[0]

    @property
    def is_chain(self) -> bool:
        """Whether every node is the only child of the one before it."""
        chain = torch.arange(-1, self.num_nodes - 1, device=self.parents.device)
        return bool(torch.equal(self.parents, chain))

    @property
    def depths(self) -> Tensor:
        """(N,) long: steps from the root, 1 for its children."""
        depths = torch.ones_like(self.parents)
        ancestors = self.parents
        while bool((ancestors >= 0).any()):
            depths = depths + (ancestors >= 0)
            ancestors = torch.where(ancestors >= 0, self.parents[ancestors.clamp(min=0)], ancestors)
        return depths


@dataclass(frozen=True, eq=False)
class DraftBatch:
    """One chain of draft tokens for each of the B rows of a step, padded on the right.

    Attributes:
        tokens: (B, L) long; any valid id beyond a row's length.
        lengths: the number of tokens of each row, 0 to L.
        q: (B, L, V) float32, the law that each token was drawn from, ignored beyond a row's length; or None where
            every draft is deterministic (its law is one-hot on the token).

    Raises:
        ValueError: if the shapes disagree or a length is out of range.
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    q: Tensor | None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2:
            raise ValueError(f"tokens must have the shape (B, L), got {tuple(self.tokens.shape)}")
        rows, longest = self.tokens.shape
        if len(self.lengths) != rows or not all(0 <= length <= longest for length in self.lengths):
            raise ValueError(f"lengths must be {rows} numbers from 0 to {longest}, got {self.lengths}")
        if self.q is not None and (self.q.ndim != 3 or self.q.shape[:2] != self.tokens.shape):
            raise ValueError(f"q must have the shape ({rows}, {longest}, V), got {tuple(self.q.shape)}")

    @property
    def exists(self) -> Tensor:
        """(B, L) bool: which positions hold a draft token. Built without waiting for the device."""
        lengths = torch.tensor(self.lengths, dtype=torch.long).to(self.tokens.device, non_blocking=True)
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < lengths[:, None]

    def cut(self, lengths: Sequence[int]) -> DraftBatch:
        """Keep the first `lengths[b]` tokens of each row.

        The output stays lossless if the lengths were chosen without looking at a token that is cut off (or if q is
        None): a cut that looks at the token biases the next one unless its law says so, see `DraftTree.q`.

        Raises:
            ValueError: if a length is missing, negative or longer than the row.
        """
        if len(lengths) != len(self.lengths) or any(
            not 0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)
        ):
            raise ValueError(f"lengths must be {len(self.lengths)} numbers from 0 up to {self.lengths}, got {lengths}")
        longest = max(lengths, default=0)
        q = None if self.q is None else self.q[:, :longest]
        return DraftBatch(self.tokens[:, :longest], tuple(lengths), q)

    def tree(self, row: int, vocabulary_size: int) -> DraftTree:
        """Return one row as a tree, with the one-hot q written out and zeros as the last row of q.

        Raises:
            ValueError: if q is given for another vocabulary, or the row is not a valid chain.
        """
        length = self.lengths[row]
        tokens = self.tokens[row, :length]
        _check_ids(tokens, vocabulary_size)
        if self.q is None:
            q = torch.nn.functional.one_hot(tokens, vocabulary_size).to(torch.float32)
        elif self.q.shape[2] == vocabulary_size:
            q = self.q[row, :length]
        else:
            raise ValueError(f"vocabulary_size must be the V of q, {self.q.shape[2]}, got {vocabulary_size}")
        return DraftTree.chain(tokens, torch.cat([q, q.new_zeros(1, vocabulary_size)]))


def _check_tokens(tokens: Tensor) -> None:
    if tokens.ndim != 1:
        raise ValueError(f"tokens must have the shape (L,), got {tuple(tokens.shape)}")
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers, got {tokens.dtype}")


def _check_ids(tokens: Tensor, vocabulary_size: int) -> None:
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        raise ValueError(f"tokens must lie in 0 … {vocabulary_size - 1}, got {tokens.tolist()}")


def _check_laws(q: Tensor, rows: int) -> None:
    if q.ndim != 2 or q.shape[0] != rows or q.shape[1] == 0:
        raise ValueError(f"q must have the shape ({rows}, V), one row more than tokens, got {tuple(q.shape)}")
    if not q.is_floating_point():
        raise ValueError(f"q must be floating point, got {q.dtype}")
    lowest, largest = float(q.min()), float(q.sum(dim=-1, dtype=torch.float32).max())
    allowed = 1 + max(1e-4, 2 * torch.finfo(q.dtype).eps)
    if not (lowest >= 0 and largest <= allowed):
        raise ValueError(
            "q must be finite and non-negative, with rows that sum to at most 1, "
            f"got a lowest entry of {lowest} and a largest sum of {largest}"
        )
