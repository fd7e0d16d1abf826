"""The usual runner: one forward for all rows, each row at its own length in a `RowCache`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .masks import attention_mask
from .row_cache import RowCache
from .runner import ForwardOutput, Runner, prefill_positions, spans

INITIAL_ROOM = 256  # slots allocated behind the prompt; the cache grows by half when they are used up


class RowRunner(Runner):
    """Runs a batch through a row cache with masks built from the rows' own lengths."""

    layout = "row cache"

    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> list[ForwardOutput]:
        """Cache the prompt; all rows fill the same slots, so the host's own masks are right here."""
        self.prompt_valid = prompt_valid.to(self.device)
        self.padding = self.prompt_valid.shape[1] - self.prompt_valid.sum(1)
        self.cache = RowCache(prompt_valid.shape[1] + INITIAL_ROOM)
        self.lengths = [tokens.shape[1]] * tokens.shape[0]
        tokens, valid = tokens.to(self.device), valid.to(self.device)
        mask = None if bool(valid.all()) else valid.long()
        positions = prefill_positions(valid)
        outputs = []
        for start, stop in spans(tokens.shape[1], chunk):
            self.cache.plan.uniform(stop - start)
            arguments: dict[str, Any] = {self.traits.cache_keyword: self.cache}
            arguments |= self.optional_arguments(positions[:, start:stop], 1)
            raw = self.call(
                input_ids=tokens[:, start:stop], attention_mask=None if mask is None else mask[:, :stop], **arguments
            )
            self.cache.plan.past = stop
            outputs.append(ForwardOutput(raw.logits[:, -1:], raw.hidden_states, raw.attentions))
        return outputs

    def forward(self, tokens: Tensor, counts: list[int], last_only: bool = False) -> ForwardOutput:
        """Feed a block; filler behind counts[b] lands in slots that the row overwrites before it can see them."""
        tokens = tokens.to(self.device)
        width = tokens.shape[1]
        starts = torch.tensor(self.lengths, device=self.device)
        total = max(self.lengths) + width
        self.cache.plan.ragged(starts[:, None] + torch.arange(width, device=self.device), total)
        keep = self.last_positions(counts, width) if last_only else 0
        arguments: dict[str, Any] = {self.traits.cache_keyword: self.cache}
        arguments |= self.optional_arguments(self.positions(starts, self.padding, width), keep)
        mask = attention_mask(self.traits, self.prompt_valid, starts, width, total, self.model.dtype)
        raw = self.call(input_ids=tokens, attention_mask=mask, **arguments)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        logits = self.pick_last(raw.logits, keep) if last_only else raw.logits
        return ForwardOutput(logits, raw.hidden_states, raw.attentions)

    def rewind(self, lengths: list[int]) -> None:
        """A smaller length is enough: what lies behind it is masked, and written over."""
        self.lengths = list(lengths)

    def select(self, rows: list[int]) -> None:
        """Keep the given rows."""
        index = torch.tensor(rows, device=self.device)
        self.cache.select(index)
        self.prompt_valid, self.padding = self.prompt_valid[index], self.padding[index]
        self.lengths = [self.lengths[row] for row in rows]
