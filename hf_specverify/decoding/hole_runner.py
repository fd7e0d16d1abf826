"""For models that build positions from a 2D mask (alibi) or take no other: rejected tokens stay as masked holes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from .masks import TreeRegion
from .runner import ForwardOutput, Runner, prefill_positions, spans


class HoleRunner(Runner):
    """Appends every block of all rows to the host's cache and masks what was rejected.

    Exact only where attention has no window (`ModelTraits.sees_everything`), since a hole widens physical distances.
    """

    layout = "masked holes"

    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> None:
        """Cache the prompt."""
        self.cache = DynamicCache()
        self.mask = valid.to(self.device)
        self.padding = (~prompt_valid).sum(1).to(self.device)
        self.lengths = [tokens.shape[1]] * tokens.shape[0]
        # columns[b][j]: the cache column of token j of row b.
        self.columns = [list(range(tokens.shape[1])) for _ in self.lengths]
        tokens = tokens.to(self.device)
        positions = prefill_positions(self.mask)
        for start, stop in spans(tokens.shape[1], chunk):
            arguments: dict[str, Any] = {self.traits.cache_keyword: self.cache}
            arguments |= self.optional_arguments(positions[:, start:stop], 1)
            mask = self.mask[:, :stop].long()
            raw = self.call(input_ids=tokens[:, start:stop], attention_mask=mask, **arguments)
            self.prompt_outputs.append(ForwardOutput(raw.logits[:, -1:], raw.hidden_states, raw.attentions))

    def forward(
        self, tokens: Tensor, counts: list[int], last_only: bool = False, region: TreeRegion | None = None
    ) -> ForwardOutput:
        """Feed a block behind everything that any row ever fed."""
        tokens = tokens.to(self.device)
        width, past = tokens.shape[1], self.mask.shape[1]
        starts = torch.tensor(self.lengths, device=self.device)
        real = torch.arange(width, device=self.device) < torch.tensor(counts, device=self.device)[:, None]
        self.mask = torch.cat([self.mask, real], dim=1)
        for columns, count in zip(self.columns, counts, strict=True):
            columns.extend(range(past, past + count))
        keep = self.last_positions(counts, width) if last_only else 0
        arguments: dict[str, Any] = {self.traits.cache_keyword: self.cache}
        arguments |= self.optional_arguments(self.positions(starts, self.padding, width), keep)
        raw = self.call(input_ids=tokens, attention_mask=self.mask.long(), **arguments)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        logits = self.pick_last(raw.logits, keep) if last_only else raw.logits
        return ForwardOutput(logits, raw.hidden_states, self._by_token(raw.attentions))

    def _by_token(self, attentions: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """Attention weights by token of the row instead of by cache column."""
        if attentions is None:
            return None
        longest = max(self.lengths)
        index = torch.tensor([columns + [0] * (longest - len(columns)) for columns in self.columns], device=self.device)
        real = torch.arange(longest, device=self.device) < torch.tensor(self.lengths, device=self.device)[:, None]
        return tuple(
            torch.take_along_dim(layer, index[:, None, None].to(layer.device), dim=-1) * real[:, None, None]
            for layer in attentions
        )

    def rewind(self, lengths: list[int]) -> None:
        """Mask the columns of what is taken back."""
        for row, (columns, length) in enumerate(zip(self.columns, lengths, strict=True)):
            self.mask[row, columns[length:]] = False
            del columns[length:]
        self.lengths = list(lengths)

    def select(self, rows: list[int]) -> None:
        """Keep the given rows."""
        index = torch.tensor(rows, device=self.device)
        self.cache.batch_select_indices(index)
        self.mask, self.padding = self.mask[index], self.padding[index]
        self.columns = [self.columns[row] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
