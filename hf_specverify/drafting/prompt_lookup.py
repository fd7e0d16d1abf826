"""Drafts copied from the text so far: what followed the last few tokens when they stood there before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..decoding.state import BatchState
from .batch import DraftBatch
from .drafter import Drafter, DraftingCall, DraftSession, one_path_only

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


class PromptLookup(Drafter):
    """Prompt lookup decoding: no draft model, and q one-hot, so that any target stays exact.

    For n from `max_matching_ngram_size` down to 1, the last n tokens are looked for in the row, from the left, as in
    Transformers' `PromptLookupCandidateGenerator`; the first place with something behind it gives the draft.

    Args:
        max_matching_ngram_size: longest n-gram to look for, at least 1.

    Raises:
        ValueError: if `max_matching_ngram_size` is less than 1.
    """

    default_num_draft_tokens = 10
    signals = frozenset({"match_length", "match_count"})

    def __init__(self, max_matching_ngram_size: int = 2) -> None:
        if max_matching_ngram_size < 1:
            raise ValueError(f"max_matching_ngram_size={max_matching_ngram_size}: allowed are integers from 1")
        self.max_matching_ngram_size = max_matching_ngram_size

    @property
    def name(self) -> str:
        """`prompt lookup`, with the length of its n-grams."""
        return f"prompt lookup ({self.max_matching_ngram_size}-grams)"

    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call."""
        one_path_only(self, call)
        return _PromptLookupSession(self.max_matching_ngram_size, call.signals)


class _PromptLookupSession(DraftSession):
    def __init__(self, max_matching_ngram_size: int, signals: tuple[str, ...]) -> None:
        self.max_matching_ngram_size, self.signals = max_matching_ngram_size, signals

    def propose(self, state: BatchState, lengths: list[int]) -> DraftBatch:
        """Look each row's continuation up in its own tokens."""
        found = []
        for row, length, wanted in zip(state.rows, state.lengths, lengths, strict=True):
            text = state.host_ids[row, state.host_padding[row] : length]
            found.append(lookup(text, self.max_matching_ngram_size, wanted))
        counts = tuple(len(match.tokens) for match in found)
        tokens = np.zeros((len(found), max(counts)), dtype=np.int64)
        for row, match in enumerate(found):
            tokens[row, : len(match.tokens)] = match.tokens
        device = state.ids.device
        values = {"match_length": [match.length for match in found], "match_count": [match.count for match in found]}
        signals = {
            name: torch.tensor(values[name], dtype=torch.float32, device=device)[:, None].repeat(1, tokens.shape[1])
            for name in self.signals
        }
        return DraftBatch(torch.from_numpy(tokens).to(device), counts, None, signals=signals)

    def commit(self, state: BatchState, accepted: list[int], scores: Tensor | None, path: Tensor | None) -> None:
        """Nothing to learn: the text is the state."""

    def select(self, places: list[int]) -> None:
        """Nothing to keep."""


@dataclass(frozen=True)
class Match:
    """What followed an n-gram: the tokens, the length n (0 where none matched), and how often the n-gram stood."""

    tokens: Ids
    length: int
    count: int


def lookup(text: Ids, max_ngram: int, wanted: int) -> Match:
    """Up to `wanted` tokens that followed the longest matching n-gram at the end of `text`; empty if there is none."""
    for size in range(min(max_ngram, len(text) - 1), 0, -1):
        # The last window is the n-gram itself, with nothing behind it.
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        matches = np.flatnonzero((windows == text[-size:]).all(axis=1))
        if len(matches) and wanted:
            start = int(matches[0]) + size
            return Match(text[start : start + wanted], size, len(matches))
    return Match(text[:0], 0, 0)
