"""A target whose first layers draft: verification goes on where they ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .masks import TreeRegion
from .packed import Packing
from .row_runner import RowRunner
from .runner import ForwardOutput, OutputFlags
from .timing import Stopwatch
from .traits import ModelTraits

if TYPE_CHECKING:
    from ..drafting.halves import Halves


class SplitRunner(RowRunner):
    """Feeds drafted tokens to the first layers while they are drafted, and to the others when they are scored.

    Both write the one cache, each its layers; so a token passes every layer once. The last draft token is read by
    nobody while drafting: it goes through the first layers, without their head, before the block goes through the rest.

    Where hidden states or attention weights are wanted, blocks go through the whole model, and the first layers run
    twice: the outputs of those layers are collected in the model's own forward only.

    Args:
        model, traits, stopwatch, phase, flags: as `Runner`.
        halves: makes the halves of the model.
    """

    def __init__(
        self,
        model: Any,
        traits: ModelTraits,
        stopwatch: Stopwatch,
        phase: str,
        flags: OutputFlags | None = None,
        *,
        halves: Callable[[], Halves],
    ) -> None:
        super().__init__(model, traits, stopwatch, phase, flags)
        self._make_halves = halves
        # What the first layers gave for the tokens behind `lengths`, (B, 1, H) each.
        self._states: list[Tensor] = []
        self._goes_on = False

    @cached_property
    def _halves(self) -> Halves:
        """Made while the call decodes, when the host has chosen the kernels of the model for it."""
        return self._make_halves()

    @cached_property
    def _drafting(self) -> RowRunner:
        return RowRunner(self._halves.first, self.traits, self.stopwatch, "draft")

    @cached_property
    def _reading(self) -> RowRunner:
        """The first layers without their head."""
        traits = replace(self.traits, takes_logits_to_keep=False)
        return RowRunner(self._halves.first.get_decoder(), traits, self.stopwatch, self.phase)

    def draft(self, tokens: Tensor) -> Tensor:
        """(B, 1, V) logits that the first layers give after one more token of every row, (B, 1)."""
        if self.waiting is not None:
            self._feed_waiting()
        logits: Tensor = self._run_first(self._drafting, tokens).logits
        return logits

    def _run_first(self, runner: RowRunner, tokens: Tensor) -> Any:
        """Run the first layers behind what they have read, in this runner's cache."""
        runner.cache, runner.prompt_valid, runner.padding = self.cache, self.prompt_valid, self.padding
        runner.lengths = [length + self._read for length in self.lengths]
        raw = runner._ragged(tokens.to(self.device), tokens.shape[1], None)
        assert self._halves.states is not None
        self._states.append(self._halves.states)
        return raw

    @property
    def _read(self) -> int:
        """Tokens behind `lengths` that the first layers have read."""
        return sum(states.shape[1] for states in self._states)

    def forward(
        self, tokens: Tensor, counts: list[int], last_only: bool = False, region: TreeRegion | None = None
    ) -> ForwardOutput:
        """Feed a block, of which the first tokens may have been drafted from."""
        width = tokens.shape[1]
        self._goes_on = bool(self._states) and not self.flags.any and region is None
        if self._goes_on:
            if self._read < width:
                self._run_first(self._reading, tokens[:, self._read :])
            self._halves.states = torch.cat(self._states, dim=1)[:, :width]
        self._states.clear()
        return super().forward(tokens, counts, last_only, region)

    def _packed(self, tokens: Tensor, counts: list[int], region: TreeRegion | None) -> ForwardOutput:
        if self._goes_on and self._halves.states is not None:
            self._halves.states = Packing(counts, self.device).pack(self._halves.states)
        return super()._packed(tokens, counts, region)

    def call(self, **arguments: Any) -> Any:
        """One forward, of the rest alone where the first layers have been run."""
        if not self._goes_on:
            return super().call(**arguments)
        with self.stopwatch.measure(self.phase):
            return self._halves.rest(**arguments, use_cache=True, return_dict=True)

    def rewind(self, lengths: list[int]) -> None:
        """Forget what lies behind lengths[b] tokens; what was drafted from there on is kept for the block."""
        if lengths != self.lengths:
            self._states.clear()
        super().rewind(lengths)

    def select(self, rows: list[int]) -> None:
        """Keep the given rows."""
        self._states.clear()
        super().select(rows)


class ReadFirst(SplitRunner):
    """For trying halves out: the tokens of a block are read by the first layers, one by one, before it is scored."""

    def forward(
        self, tokens: Tensor, counts: list[int], last_only: bool = False, region: TreeRegion | None = None
    ) -> ForwardOutput:
        """Feed a block, of which all tokens but the last have gone through the first layers by then."""
        for place in range(tokens.shape[1] - 1):
            self.draft(tokens[:, place : place + 1])
        return super().forward(tokens, counts, last_only, region)
