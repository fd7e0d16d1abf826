"""The draft chains of a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check_ids
from .tree import DraftTree


@dataclass(frozen=True, eq=False)
class DraftBatch:
    """One chain of draft tokens for each of the B rows of a step, padded on the right.

    Attributes:
        tokens: (B, L) long; any valid id beyond a row's length.
        lengths: the number of tokens of each row, 0 to L.
        q: (B, M, V) float32, M ≥ L, the law that each token was drawn from, ignored beyond a row's length (but see
            `cut`); or None where every draft is deterministic (its law is one-hot on the token).
        cut: for each row, whether a schedule cut it after its last token: then the law q·v there counts too, see
            `DraftTree`. None: no row was. Without q there is nothing to correct.
        admitted: from rows (m,) and places (m,) to v, (m, V) bool: which tokens a schedule that looked at the drawn
            ones would have let through there; every law is then q·v. None: all, or the laws hold v already.
        signals: (B, L) float32 each, what the drafter says of its tokens, by name (`scheduling.signals`).

    Raises:
        ValueError: if the shapes disagree or a length is out of range.
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    q: Tensor | None
    cut: tuple[bool, ...] | None = None
    admitted: Callable[[Tensor, Tensor], Tensor] | None = None
    signals: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2:
            raise ValueError(f"tokens must have the shape (B, L), got {tuple(self.tokens.shape)}")
        rows, longest = self.tokens.shape
        if len(self.lengths) != rows or not all(0 <= length <= longest for length in self.lengths):
            raise ValueError(f"lengths must be {rows} numbers from 0 to {longest}, got {self.lengths}")
        if self.q is not None and (self.q.ndim != 3 or self.q.shape[0] != rows or self.q.shape[1] < longest):
            raise ValueError(f"q must have the shape ({rows}, {longest}, V) or more rows, got {tuple(self.q.shape)}")
        if self.cut is not None:
            self._check_cut(self.cut)

    def _check_cut(self, cut: tuple[bool, ...]) -> None:
        if len(cut) != len(self.lengths) or self.q is None:
            raise ValueError(f"cut must have one flag for each of {len(self.lengths)} rows that have a q, got {cut}")
        for length, flag in zip(self.lengths, cut, strict=True):
            if flag and length >= self.q.shape[1]:
                raise ValueError(f"q must have a row for the cut after {length} tokens, got {tuple(self.q.shape)}")

    @property
    def exists(self) -> Tensor:
        """(B, L) bool: which positions hold a draft token. Built without waiting for the device."""
        lengths = torch.tensor(self.lengths, dtype=torch.long).to(self.tokens.device, non_blocking=True)
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < lengths[:, None]

    @property
    def law_rows(self) -> Tensor:
        """(B,) long: how many rows of q count for each row: one for every token, and one more where it was cut."""
        counts = [length + bool(self.cut and self.cut[row]) for row, length in enumerate(self.lengths)]
        return torch.tensor(counts, dtype=torch.long).to(self.tokens.device, non_blocking=True)

    @property
    def depths(self) -> tuple[int, ...]:
        """Length of the longest path of each row: that of its chain."""
        return self.lengths

    def law(self, rows: Tensor, places: Tensor) -> Tensor:
        """(m, V) a copy of the laws at some places (m,) of some rows (m,): q, or q·v.

        Raises:
            ValueError: if every draft is deterministic.
        """
        if self.q is None:
            raise ValueError("law: deterministic drafts have one-hot laws, which are not written out")
        law = self.q[rows, places]
        return law if self.admitted is None else law.mul_(self.admitted(rows, places))

    def part(self, places: slice) -> DraftBatch:
        """Some of the rows; no copy."""
        whole, first = self.admitted, places.indices(len(self.lengths))[0]
        return DraftBatch(
            self.tokens[places],
            self.lengths[places],
            None if self.q is None else self.q[places],
            None if self.cut is None else self.cut[places],
            None if whole is None else lambda rows, at: whole(rows + first, at),
            None if self.signals is None else {name: value[places] for name, value in self.signals.items()},
        )

    def shortened(self, lengths: Sequence[int]) -> DraftBatch:
        """Keep the first `lengths[b]` tokens of each row, without a correction for the cut.

        The output stays lossless if the lengths were chosen without looking at a token that is cut off (or if q is
        None): a cut that looks at the token biases the next one unless its law says so, see `DraftTree.law_of`.

        Raises:
            ValueError: if a length is missing, negative or longer than the row.
        """
        if len(lengths) != len(self.lengths) or any(
            not 0 <= new <= old for new, old in zip(lengths, self.lengths, strict=True)
        ):
            raise ValueError(f"lengths must be {len(self.lengths)} numbers from 0 up to {self.lengths}, got {lengths}")
        longest = max(lengths, default=0)
        q = None if self.q is None else self.q[:, :longest]
        return DraftBatch(self.tokens[:, :longest], tuple(lengths), q, signals=self._signals_until(longest))

    def corrected(
        self, lengths: Sequence[int], cut: Sequence[bool], admitted: Callable[[Tensor, Tensor], Tensor]
    ) -> DraftBatch:
        """Keep the first `lengths[b]` tokens of each row, chosen by looking at the tokens: laws become q·v.

        Raises:
            ValueError: as the class.
        """
        longest = max(lengths, default=0)
        return DraftBatch(
            self.tokens[:, :longest], tuple(lengths), self.q, tuple(cut), admitted, self._signals_until(longest)
        )

    def _signals_until(self, longest: int) -> dict[str, Tensor] | None:
        return None if self.signals is None else {name: value[:, :longest] for name, value in self.signals.items()}

    def tree(self, row: int, vocabulary_size: int) -> DraftTree:
        """One row as a tree; no copy of its laws, unless v has to be taken into them.

        Raises:
            ValueError: if q is given for another vocabulary, or a token is outside it.
        """
        length = self.lengths[row]
        tokens = self.tokens[row, :length]
        check_ids(tokens, vocabulary_size)
        if self.q is not None and self.q.shape[2] != vocabulary_size:
            raise ValueError(f"vocabulary_size must be the V of q, {self.q.shape[2]}, got {vocabulary_size}")
        nodes = torch.arange(length, device=tokens.device)
        law_of = torch.arange(length + 1, device=tokens.device)
        if not (self.cut and self.cut[row]):
            law_of[-1] = -1
        laws = None if self.q is None else self._laws_of(row, length)
        return DraftTree(tokens, nodes - 1, nodes[None], laws, law_of)

    def _laws_of(self, row: int, length: int) -> Tensor:
        """(M, V) the laws of one row; copied only where v is not in them yet."""
        assert self.q is not None
        if self.admitted is None:
            return self.q[row]
        places = torch.arange(min(length + 1, self.q.shape[1]), device=self.tokens.device)
        return self.law(torch.full_like(places, row), places)
