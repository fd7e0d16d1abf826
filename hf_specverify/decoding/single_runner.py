"""The runner of last resort: every row alone, in the host's own cache."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from .masks import TreeRegion
from .runner import ForwardOutput, Runner, spans
from .single_outputs import assemble_prefill, block_extras, fill


class SingleRunner(Runner):
    """Runs one row at a time, unpadded, and takes rejected tokens back by cropping the host's cache.

    A recurrent state has no memory of how it came about: such a cache is copied at each rewind; after a rejection the
    copy is restored and the accepted tokens are fed again.
    """

    layout = "row by row"

    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> None:
        """Cache the prompts, one after the other."""
        self.padding = [int(row) for row in (~prompt_valid).sum(1)]
        self.lengths = list(self.padding)
        self.caches = [DynamicCache(config=self.model.config) for _ in self.padding]
        self.snapshots: list[Any] = [None] * len(self.padding)
        self.fed: list[Tensor] = [tokens.new_zeros(0)] * len(self.padding)
        self.recurrent = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.caches[0].layers)
        per_row = [self._prefill_row(row, tokens[row, pad:], chunk) for row, pad in enumerate(self.padding)]
        if not self.recurrent:
            for cache in self.caches:
                cache.activate_past_recording()
        if self.flags.any and any(per_row):
            self.prompt_outputs = [assemble_prefill(per_row, self.padding, tokens.shape[1])]

    def _prefill_row(self, row: int, tokens: Tensor, chunk: int | None) -> list[Any]:
        return [self._feed(row, tokens[start:stop], 1) for start, stop in spans(len(tokens), chunk)]

    def forward(
        self, tokens: Tensor, counts: list[int], last_only: bool = False, region: TreeRegion | None = None
    ) -> ForwardOutput:
        """Feed each row's real tokens; filler never reaches the model."""
        blocks = []
        for row, count in enumerate(counts):
            new = tokens[row, :count].to(self.device)
            if self.recurrent:
                self._remember(row, new)
            blocks.append(self._feed(row, new, 1 if last_only else 0))
        width = 1 if last_only else tokens.shape[1]
        logits = torch.stack([fill(block.logits[0, -width:], width, 0) for block in blocks])
        hidden, attentions = block_extras(blocks, self.lengths, tokens.shape[1])
        return ForwardOutput(logits, hidden, attentions)

    def _remember(self, row: int, new: Tensor) -> None:
        """Copy the cache before the first block since the last rewind, and keep what is fed from there on."""
        if self.snapshots[row] is None:
            self.snapshots[row], self.fed[row] = copy.deepcopy(self.caches[row]), new[:0]
        self.fed[row] = torch.cat([self.fed[row], new])

    def _feed(self, row: int, tokens: Tensor, keep: int) -> Any:
        start = self.lengths[row] - self.padding[row]
        positions = torch.arange(start, start + len(tokens), device=self.device)[None]
        arguments: dict[str, Any] = {self.traits.cache_keyword: self.caches[row]}
        arguments |= self.optional_arguments(positions, keep)
        raw = self.call(input_ids=tokens[None].to(self.device), **arguments)
        self.lengths[row] += len(tokens)
        return raw

    def rewind(self, lengths: list[int]) -> None:
        """Crop each row's cache, or restore its copy and feed again what stays."""
        for row, length in enumerate(lengths):
            surplus = self.lengths[row] - length
            if not self.recurrent:
                # Also with nothing to take back: it lets windowed layers drop what they recorded.
                if self.lengths[row] > self.padding[row]:
                    self.caches[row].crop(-surplus)
                self.lengths[row] = length
            elif surplus:
                self._replay(row, surplus)
            else:
                self.snapshots[row] = None

    def _replay(self, row: int, surplus: int) -> None:
        self.caches[row], self.snapshots[row] = self.snapshots[row], None
        fed = self.fed[row]
        self.lengths[row] -= len(fed)
        if surplus < len(fed):
            self._feed(row, fed[: len(fed) - surplus], 1)

    def select(self, rows: list[int]) -> None:
        """Keep the given rows."""
        for name in ("caches", "snapshots", "fed", "padding", "lengths"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in rows])
