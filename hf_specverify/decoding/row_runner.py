"""The usual runner: one forward for all rows, each row at its own length in a `RowCache`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .masks import TreeRegion, attention_mask
from .packed import PackedAttention, Packing
from .row_cache import RowCache
from .runner import ForwardOutput, Runner, prefill_positions, spans

INITIAL_ROOM = 256  # slots allocated behind the prompt; the cache grows by half when they are used up
# Below this share of real tokens in a padded block, packing them is faster (docs/benchmarks.md).
PACK_BELOW = 0.8


class RowRunner(Runner):
    """Runs a batch through a row cache with masks built from the rows' own lengths."""

    layout = "row cache"

    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> None:
        """Feed all chunks but the last, which goes with the first block: one pass of the model less."""
        self.prompt_valid = prompt_valid.to(self.device)
        self.padding = self.prompt_valid.shape[1] - self.prompt_valid.sum(1)
        self.cache = RowCache(prompt_valid.shape[1] + INITIAL_ROOM, prompt_valid.shape[0])
        tokens, valid = tokens.to(self.device), valid.to(self.device)
        self.lengths = [tokens.shape[1]] * tokens.shape[0]
        *first, last = spans(tokens.shape[1], chunk) or [(0, 0)]
        for start, stop in first:
            raw = self._uniform(tokens[:, start:stop], valid[:, :stop], 1)
            self.prompt_outputs.append(ForwardOutput(raw.logits, raw.hidden_states, raw.attentions))
        self.waiting: Tensor | None = tokens[:, slice(*last)] if last[1] else None
        self.valid = valid

    def forward(
        self, tokens: Tensor, counts: list[int], last_only: bool = False, region: TreeRegion | None = None
    ) -> ForwardOutput:
        """Feed a block; filler behind counts[b] lands in slots that the row overwrites before it can see them."""
        tokens = tokens.to(self.device)
        width = tokens.shape[1]
        keep = self.last_positions(counts, width) if last_only else width
        if self.waiting is not None and region is not None:
            self._feed_waiting()
        if self.waiting is not None:
            output = self._with_prompt(self.waiting, tokens, keep)
            self.waiting = None
        elif self._should_pack(counts, width) and not last_only:
            output = self._packed(tokens, counts, region)
        else:
            raw = self._ragged(tokens, keep, region)
            output = ForwardOutput(raw.logits, raw.hidden_states, raw.attentions)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        if not last_only or self.traits.takes_logits_to_keep:
            return output
        return replace(output, logits=self.pick_last(output.logits, keep))

    def _should_pack(self, counts: list[int], width: int) -> bool:
        if not self.packs or self.flags.attentions or len(counts) == 1:
            return False
        return sum(counts) <= PACK_BELOW * len(counts) * width

    def _feed_waiting(self) -> None:
        """A tree has a mask of its own, so the rest of the prompt goes before it."""
        assert self.waiting is not None
        raw = self._uniform(self.waiting, self.valid, 1)
        self.prompt_outputs.append(ForwardOutput(raw.logits, raw.hidden_states, raw.attentions))
        self.waiting = None

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

    def _ragged(self, tokens: Tensor, keep: int | Tensor, region: TreeRegion | None) -> Any:
        width = tokens.shape[1]
        starts = torch.tensor(self.lengths, device=self.device)
        total = max(self.lengths) + width
        self.cache.plan.ragged(starts[:, None] + torch.arange(width, device=self.device), total)
        arguments = self._arguments(starts, width, total, region)
        arguments |= self.optional_arguments(self.positions(starts, self.padding, width, region), keep)
        return self.call(input_ids=tokens, **arguments)

    def _packed(self, tokens: Tensor, counts: list[int], region: TreeRegion | None) -> ForwardOutput:
        """Only the real tokens, in one sequence; logits and states come back by row."""
        packing, width = Packing(counts, self.device), max(counts)
        starts = torch.tensor(self.lengths, device=self.device)
        total = max(self.lengths) + width
        self.cache.plan.ragged(starts[packing.rows] + packing.places, total, packing.rows)
        if region is not None:
            slots = region.before + width
            region = TreeRegion(region.depths[:, :slots], region.visible[:, :width, :slots])
        arguments = self._arguments(starts, width, total, region)
        positions = packing.pack(self.positions(starts, self.padding, width, region))
        arguments |= self.optional_arguments(positions, 0)
        with PackedAttention(packing):
            raw = self.call(input_ids=packing.pack(tokens), **arguments)
        hidden = raw.hidden_states and tuple(packing.unpack(layer) for layer in raw.hidden_states)
        return ForwardOutput(packing.unpack(raw.logits), hidden)

    def _arguments(self, starts: Tensor, width: int, total: int, region: TreeRegion | None) -> dict[str, Any]:
        mask = attention_mask(self.traits, self.prompt_valid, starts, width, total, self.model.dtype, region)
        return {self.traits.cache_keyword: self.cache, "attention_mask": mask}

    def keep(self, base: list[int], nodes: Tensor) -> None:
        """Copy the slots of the kept nodes to the front."""
        begin = torch.tensor(base, device=self.device)[:, None]
        nodes = nodes.to(self.device)
        self.cache.move(begin + nodes, begin + torch.arange(nodes.shape[1], device=self.device))

    def rewind(self, lengths: list[int]) -> None:
        """A smaller length is enough: what lies behind it is masked, and written over."""
        self.lengths = list(lengths)

    def select(self, rows: list[int]) -> None:
        """Keep the given rows."""
        index = torch.tensor(rows, device=self.device)
        self.cache.select(index)
        self.prompt_valid, self.padding = self.prompt_valid[index], self.padding[index]
        self.lengths = [self.lengths[row] for row in rows]
