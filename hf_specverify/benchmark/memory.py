"""How much memory a run needs on top of what was there before it."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

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
