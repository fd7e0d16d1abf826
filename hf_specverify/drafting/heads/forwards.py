"""A feature head's forwards alone, to measure them: what it reads of the target is made up."""

from __future__ import annotations

import torch
from torch import Tensor

from ...decoding.state import BatchState
from ...decoding.timing import Stopwatch
from .model import HeadModel
from .reader import HeadReader


class HeadForwards:
    """Reads places as a step's first draft pass does: fuses the features of all, and scores the last.

    It takes the calls of a `Runner` that `profiling` makes. A step's later passes, which fuse nothing, are not told
    apart. A companion scores every place of a block, one after the other.

    Args:
        head: the head, with embeddings and scoring rows.
        one_by_one: whether it reads as a companion does.
    """

    def __init__(self, head: HeadModel, one_by_one: bool = False) -> None:
        self.head, self.device, self.one_by_one = head, head.device, one_by_one
        self.reader = HeadReader(head, Stopwatch())

    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> None:
        """Read (B, n) places; `prompt_valid` is (B, n + 1), since place t is read with token t + 1."""
        prompt = torch.nn.functional.pad(tokens, (0, 1))
        self.state = BatchState(prompt, prompt_valid, prompt.shape[1], pad_token=0)
        self.reader.see(self._states(1), [self._states(tokens.shape[1])])
        self.reader.take_back(self.state)
        self.reader.catch_up(self.state)

    def forward(self, tokens: Tensor, counts: list[int], last_only: bool = True) -> Tensor:
        """Read counts[b] more places of each row, whatever the tokens are; (B, V) scores behind the last."""
        known = [1] * len(counts) if self.one_by_one else counts
        self.state.lengths = [length + count for length, count in zip(self.state.lengths, known, strict=True)]
        self.reader.see(self._states(max(known)), [])
        self.reader.take_back(self.state)
        scores = self.reader.catch_up(self.state)
        for place in range(max(known), tokens.shape[1]):
            scores = self.reader.feed(tokens[:, place : place + 1])
        return scores

    def rewind(self, lengths: list[int]) -> None:
        """Forget the places behind lengths[b]."""
        self.state.lengths = [length + 1 for length in lengths]
        self.reader.lengths = list(lengths)

    def _states(self, width: int) -> list[Tensor]:
        """By layer (B, width, numbers), hidden states of the target."""
        config = self.head.config
        size = config.feature_size // config.num_features
        shape = (self.state.batch_size, width, size)
        return [torch.ones(shape, dtype=self.head.dtype, device=self.device) for _ in range(config.num_features)]
