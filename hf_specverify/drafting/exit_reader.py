"""Reads along with the target's first layers, in the target's own cache."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..decoding.split_runner import SplitRunner
from ..decoding.state import BatchState
from .drafter import DraftingCall
from .vocabulary import fit_vocabulary, vocabulary_size


class ExitReader:
    """Gives the logits of an exit behind what was committed and drafted; the cache is kept in step by the loop.

    Args:
        runner: the target's.
        call: the call.
    """

    def __init__(self, runner: SplitRunner, call: DraftingCall) -> None:
        self.runner, self.device = runner, runner.device
        self.vocabulary = vocabulary_size(call.target)

    is_ready = True

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """Nothing: it reads for itself."""

    def catch_up(self, state: BatchState) -> Tensor:
        """Read the last committed token, the only one that the target has not read; (A, V) logits."""
        self.runner.rewind([length - 1 for length in state.lengths])
        return self.feed(state.tail(self.runner.lengths)[0])

    def feed(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row, (A, 1); (A, V) logits."""
        return fit_vocabulary(self.runner.draft(tokens)[:, -1], self.vocabulary)

    def signals(self, names: Sequence[str]) -> dict[str, Tensor]:
        """None of its own; the laws give all."""
        return {}

    def take_back(self, state: BatchState) -> None:
        """Nothing: the loop rewinds the target."""

    def select(self, places: list[int]) -> None:
        """Nothing: the loop tells the target which rows stay."""
