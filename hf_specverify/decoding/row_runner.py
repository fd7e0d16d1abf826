"""The usual runner: one forward for all rows, each row at its own length in a `RowCache`."""

from __future__ import annotations

from dataclasses import replace
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

    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> None:
        """Feed all chunks but the last, which goes with the first block: one pass of the model less."""
        self.prompt_valid = prompt_valid.to(self.device)
        self.padding = self.prompt_valid.shape[1] - self.prompt_valid.sum(1)
        self.cache = RowCache(prompt_valid.shape[1] + INITIAL_ROOM)
        tokens, valid = tokens.to(self.device), valid.to(self.device)
        self.lengths = [tokens.shape[1]] * tokens.shape[0]
        *first, last = spans(tokens.shape[1], chunk) or [(0, 0)]
        for start, stop in first:
            raw = self._uniform(tokens[:, start:stop], valid[:, :stop], 1)
            self.prompt_outputs.append(ForwardOutput(raw.logits, raw.hidden_states, raw.attentions))
        self.waiting: Tensor | None = tokens[:, slice(*last)] if last[1] else None
        self.valid = valid

    def forward(self, tokens: Tensor, counts: list[int], last_only: bool = False) -> ForwardOutput:
        """Feed a block; filler behind counts[b] lands in slots that the row overwrites before it can see them."""
        tokens = tokens.to(self.device)
        width = tokens.shape[1]
        keep = self.last_positions(counts, width) if last_only else width
        if self.waiting is not None:
            output = self._with_prompt(self.waiting, tokens, keep)
            self.waiting = None
        else:
            raw = self._ragged(tokens, keep)
            output = ForwardOutput(raw.logits, raw.hidden_states, raw.attentions)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        if not last_only or self.traits.takes_logits_to_keep:
            return output
        return replace(output, logits=self.pick_last(output.logits, keep))

    def _uniform(self, tokens: Tensor, valid: Tensor, keep: int | Tensor) -> Any:
        """All rows append the same number of tokens, so the host's own masks are right; `valid` covers the past too."""
        start, stop = valid.shape[1] - tokens.shape[1], valid.shape[1]
        self.cache.plan.uniform(stop - start)
        arguments: dict[str, Any] = {self.traits.cache_keyword: self.cache}
        arguments |= self.optional_arguments(self.within_table(prefill_positions(valid)[:, start:]), keep)
        mask = None if bool(valid.all()) else valid.long()
        raw = self.call(input_ids=tokens, attention_mask=mask, **arguments)
        self.cache.plan.past = stop
        return raw

    def _with_prompt(self, prompt: Tensor, block: Tensor, keep: int | Tensor) -> ForwardOutput:
        """The rest of the prompt and the first block in one pass; only the block's outputs are returned."""
        together = torch.cat([prompt, block], dim=1)
        cached = self.lengths[0]
        valid = torch.nn.functional.pad(self.valid, (0, block.shape[1]), value=True)
        count = prompt.shape[1]
        raw = self._uniform(together, valid, keep if isinstance(keep, int) else keep + count)
        logits = raw.logits if self.traits.takes_logits_to_keep else raw.logits[:, count:]
        hidden, attentions = raw.hidden_states, raw.attentions
        if not self.flags.any:
            return ForwardOutput(logits)
        self.prompt_outputs.append(
            ForwardOutput(
                logits,
                hidden and tuple(layer[:, :count] for layer in hidden),
                attentions and tuple(layer[:, :, :count, :cached] for layer in attentions),
            )
        )
        return ForwardOutput(
            logits,
            hidden and tuple(layer[:, count:] for layer in hidden),
            attentions and tuple(layer[:, :, count:] for layer in attentions),
        )

    def _ragged(self, tokens: Tensor, keep: int | Tensor) -> Any:
        width = tokens.shape[1]
        starts = torch.tensor(self.lengths, device=self.device)
        total = max(self.lengths) + width
        self.cache.plan.ragged(starts[:, None] + torch.arange(width, device=self.device), total)
        arguments: dict[str, Any] = {self.traits.cache_keyword: self.cache}
        arguments |= self.optional_arguments(self.positions(starts, self.padding, width), keep)
        mask = attention_mask(self.traits, self.prompt_valid, starts, width, total, self.model.dtype)
        return self.call(input_ids=tokens, attention_mask=mask, **arguments)

    def rewind(self, lengths: list[int]) -> None:
        """A smaller length is enough: what lies behind it is masked, and written over."""
        self.lengths = list(lengths)

    def select(self, rows: list[int]) -> None:
        """Keep the given rows."""
        index = torch.tensor(rows, device=self.device)
        self.cache.select(index)
        self.prompt_valid, self.padding = self.prompt_valid[index], self.padding[index]
        self.lengths = [self.lengths[row] for row in rows]
