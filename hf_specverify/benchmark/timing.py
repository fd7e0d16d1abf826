"""When tokens appeared: time stamps of a `generate` call, and latencies per row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria


@dataclass(frozen=True)
class Commit:
    """Tokens that became part of the output at one moment.

    Attributes:
        elapsed: seconds since the start of the call.
        tokens: new tokens by row.
    """

    elapsed: float
    tokens: dict[int, int]


@dataclass(frozen=True)
class RowLatency:
    """Latencies of one row, in seconds.

    Attributes:
        first_token: from the start of the call to the first new token.
        per_output_token: (time of the last token − time of the first) / (tokens − 1); None for a single token.
    """

    first_token: float
    per_output_token: float | None


class CommitStamps(StoppingCriteria):
    """A criterion that never stops a row, and notes the time of every call and how many tokens came with it.

    Plain decoding calls it once per token, stock assisted decoding once per block.

    Args:
        prompt_length: tokens of the (padded) prompt.
        start: `time.perf_counter()` at the start of the call.
    """

    def __init__(self, prompt_length: int, start: float) -> None:
        self.length = prompt_length
        self.start = start
        self.commits: list[Commit] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Note the call; `input_ids` is (B, T). Returns all False, (B,)."""
        wait_for(input_ids.device)
        new = input_ids.shape[1] - self.length
        self.length = input_ids.shape[1]
        self.commits.append(Commit(time.perf_counter() - self.start, dict.fromkeys(range(input_ids.shape[0]), new)))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished; `generate` waits for it at the end of every step anyway."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def row_latencies(commits: Sequence[Commit], new_tokens: Sequence[int]) -> list[RowLatency]:
    """Return the latencies of each row.

    Args:
        commits: in order of time; a row may go on getting padding after its end.
        new_tokens: tokens of each row up to and including the end of text, at least 1.

    Raises:
        ValueError: the commits of a row hold fewer tokens than the row has.
    """
    return [_row_latency(commits, row, count) for row, count in enumerate(new_tokens)]


def _row_latency(commits: Sequence[Commit], row: int, count: int) -> RowLatency:
    first = last = None
    total = 0
    for commit in commits:
        total += commit.tokens.get(row, 0)
        if first is None and total > 0:
            first = commit.elapsed
        if total >= count:
            last = commit.elapsed
            break
    if first is None or last is None:
        raise ValueError(f"commits of row {row} hold {total} tokens; the row has {count}")
    return RowLatency(first, (last - first) / (count - 1) if count > 1 else None)
