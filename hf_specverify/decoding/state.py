"""The batch while it is being generated."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

INITIAL_ROOM = 256  # columns behind the prompt


class BatchState:
    """Committed tokens of every row, and which rows are still at work.

    Rows keep the index that they have in the batch as generate expanded it; `rows` lists the active ones, and every
    list or tensor "by active row" is in that order.

    Attributes:
        ids: (B, capacity) on the target's device: the left-padded prompts and the committed tokens; behind them filler.
            The capacity grows with the rows.
        host_ids: the same committed tokens in host memory, for drafters that search text.
        prompt_valid: (B, T) bool, False for padding.
        lengths: tokens (padding included) by active row.
        ends: final lengths of finished rows.
    """

    def __init__(self, prompt: Tensor, prompt_valid: Tensor, max_length: int, pad_token: int) -> None:
        batch, self.prompt_length = prompt.shape
        self.max_length, self.pad_token = max_length, pad_token
        self.ids = prompt
        self.host_ids: np.ndarray[tuple[int, int], np.dtype[np.int64]] = prompt.cpu().numpy()
        self._grow(self.prompt_length + INITIAL_ROOM)
        self.prompt_valid = prompt_valid
        self.host_padding = [int(count) for count in (~prompt_valid).sum(1)]
        self.rows = list(range(batch))
        self.lengths = [self.prompt_length] * batch
        self.ends: dict[int, int] = {}

    @property
    def batch_size(self) -> int:
        """Rows of the batch, finished ones included."""
        return int(self.ids.shape[0])

    @property
    def row_index(self) -> Tensor:
        """(A,) the active rows."""
        return torch.tensor(self.rows, device=self.ids.device)

    @property
    def starts(self) -> Tensor:
        """(A,) tokens of each active row."""
        return torch.tensor(self.lengths, device=self.ids.device)

    def room(self, positions: int | None = None) -> list[int]:
        """By active row: how many draft tokens can still be of use; the target's own token takes the last place.

        Raises:
            ValueError: if a row has used up all `positions` that the target knows (None: any number).
        """
        room = [self.max_length - length - 1 for length in self.lengths]
        if positions is None:
            return room
        left = [
            positions + self.host_padding[row] - length for row, length in zip(self.rows, self.lengths, strict=True)
        ]
        if min(left) < 0:
            raise ValueError(
                f"max_length={self.max_length}: a row has reached the {positions} positions that the target knows; "
                "allowed: prompts and answers within them"
            )
        return [min(pair) for pair in zip(room, left, strict=True)]

    def tail(self, lengths: list[int]) -> tuple[Tensor, list[int]]:
        """What was committed behind lengths[i] in active row i: (A, m) tokens, filled up, and their counts."""
        counts = [mine - theirs for mine, theirs in zip(self.lengths, lengths, strict=True)]
        offsets = torch.tensor(lengths, device=self.ids.device)[:, None] + torch.arange(
            max(counts), device=self.ids.device
        )
        return self.ids[self.row_index[:, None], offsets.clamp_(max=self.ids.shape[1] - 1)], counts

    def with_block(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """A copy of `ids` up to the longest active row; behind row i stand the first counts[i] of (A, m) tokens."""
        ids = torch.nn.functional.pad(self.ids[:, : max(self.lengths)], (0, tokens.shape[1]), value=self.pad_token)
        _write(ids, self.row_index, self.starts, tokens, torch.tensor(counts, device=ids.device))
        return ids

    def commit(self, tokens: Tensor, counts: list[int]) -> None:
        """Append the first counts[i] of (A, m) tokens to active row i."""
        if max(self.lengths) + tokens.shape[1] > self.ids.shape[1]:
            self._grow(2 * self.ids.shape[1] + tokens.shape[1])
        _write(self.ids, self.row_index, self.starts, tokens, torch.tensor(counts, device=self.ids.device))
        for row, length, count, new in zip(self.rows, self.lengths, counts, tokens.tolist(), strict=True):
            self.host_ids[row, length : length + count] = new[:count]
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def _grow(self, capacity: int) -> None:
        more = capacity - self.ids.shape[1]
        self.ids = torch.nn.functional.pad(self.ids, (0, more), value=self.pad_token)
        self.host_ids = np.pad(self.host_ids, ((0, 0), (0, more)), constant_values=self.pad_token)

    def drop(self, finished: list[bool]) -> list[int]:
        """Let finished rows leave; returns the places, among the active rows, of those that stay."""
        stay = [place for place, done in enumerate(finished) if not done]
        self.ends |= {self.rows[place]: self.lengths[place] for place, done in enumerate(finished) if done}
        self.rows = [self.rows[place] for place in stay]
        self.lengths = [self.lengths[place] for place in stay]
        return stay

    def sequences(self) -> Tensor:
        """(B, longest row) prompts and answers, padded behind their ends."""
        return self.ids[:, : max(self.ends.values())].clone()


def _write(ids: Tensor, rows: Tensor, starts: Tensor, tokens: Tensor, counts: Tensor) -> None:
    """Write the first counts[i] of tokens[i] at ids[rows[i], starts[i]:]."""
    offsets = torch.arange(tokens.shape[1], device=ids.device)
    real = offsets < counts[:, None]
    columns = starts[:, None] + offsets
    index = rows[:, None].expand_as(columns)
    ids[index[real], columns[real]] = tokens[real]
