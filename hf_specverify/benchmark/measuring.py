"""What is measured around a call of `generate`: when tokens appeared, and the growth of memory."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass
class PeakGrowth:
    """Growth of the memory in use, from the start of a run to its peak, in bytes."""

    bytes: int = 0


@contextmanager
def peak_growth(device: torch.device) -> Iterator[PeakGrowth]:
    """Measure the peak of the GPU's allocated memory, or of the process's resident memory on a CPU.

    On Linux the process's high-water mark is reset first. Elsewhere it cannot be: then only growth beyond every earlier
    peak is seen. Where the C library can, memory that earlier runs left unused goes back to the system first, because
    taking it again would not show as growth.
    """
    growth = PeakGrowth()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield growth
        growth.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    before = _reset_high_water_mark()
    yield growth
    growth.bytes = max(0, _high_water_mark() - before)


def _reset_high_water_mark() -> int:
    if not _CLEAR.exists():
        return _high_water_mark()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    _CLEAR.write_text("5")  # 5: set VmHWM to the memory resident now
    return _kilobytes("VmRSS") * 1024


def _high_water_mark() -> int:
    if _STATUS.exists():
        return _kilobytes("VmHWM") * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _kilobytes(field: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))
