"""Stopping criteria at every committed token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as host


class Stopping:
    """Finds, in the tokens that a step is about to commit, the first at which a row stops.

    The end tokens, the maximum length and the maximum time are looked up for all rows at once. Stop strings are
    checked by the host's own criterion. Any other criterion (or a subclass of these) is called itself, once per row
    and committed token, in order, with the whole batch; in a batch of several rows it is called more often than plain
    generation would, and what it says counts for the row that stands at that length.

    Args:
        criteria: the host's prepared list.
    """

    def __init__(self, criteria: list[Any]) -> None:
        def of(kind: type) -> list[Any]:
            # Exact types: a subclass may decide otherwise.
            return [item for item in criteria if type(item) is kind]

        self.eos = [item.eos_token_id for item in of(host.EosTokenCriteria)]
        self.max_length: int = min(item.max_length for item in of(host.MaxLengthCriteria))
        self.times, self.strings = of(host.MaxTimeCriteria), of(host.StopStringCriteria)
        known = (host.EosTokenCriteria, host.MaxLengthCriteria, host.MaxTimeCriteria, host.StopStringCriteria)
        self.others = [item for item in criteria if type(item) not in known]

    @property
    def needs_text(self) -> bool:
        """Whether a criterion looks at more than the new tokens."""
        return bool(self.strings or self.others)

    def stops(self, tokens: Tensor, starts: Tensor) -> Tensor:
        """(A, m) bool: row a would stop at new token i by an end token or the maximum length.

        Args:
            tokens: (A, m) new tokens.
            starts: (A,) tokens before them.
        """
        after = starts[:, None] + torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        stop = after >= self.max_length
        for eos in self.eos:
            stop |= torch.isin(tokens, eos.to(tokens.device))
        return stop

    def out_of_time(self) -> bool:
        """Whether a maximum time is over; the tokens of the step that passed it stay."""
        dummy = torch.zeros(1, 1, dtype=torch.long)
        return any(bool(item(dummy, None).any()) for item in self.times)

    def stops_by_text(
        self, ids: Tensor, rows: list[int], starts: list[int], counts: list[int], scores: Callable[[int], Any]
    ) -> list[int | None]:
        """For each active row the first of its new tokens at which stop strings or custom criteria stop it.

        Args:
            ids: (B, T) the whole batch with the new tokens written behind `starts`.
            rows: the active rows.
            starts: tokens before the new ones, by active row.
            counts: new tokens, by active row.
            scores: gives what criteria get as their second argument after n tokens of a row.
        """
        first: list[int | None] = [self._first_string(ids, *row) for row in zip(rows, starts, counts, strict=True)]
        for place, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            limit = count if (found := first[place]) is None else found + 1
            for position in range(limit if self.others else 0):
                if self._other(row, ids[:, : start + position + 1], scores(start + position + 1)):
                    first[place] = position
                    break
        return first

    def _first_string(self, ids: Tensor, row: int, start: int, count: int) -> int | None:
        for position in range(count if self.strings else 0):
            prefix = ids[row : row + 1, : start + position + 1]
            if any(bool(item(prefix, None).any()) for item in self.strings):
                return position
        return None

    def _other(self, row: int, ids: Tensor, scores: Any) -> bool:
        # Every criterion is called, as the host does, even where an earlier one has decided.
        results = [torch.as_tensor(item(ids, scores)).expand(len(ids)) for item in self.others]
        return any(bool(result[row]) for result in results)
