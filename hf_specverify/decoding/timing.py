"""Seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall seconds by phase; what no phase claims is `other`.

    Phases are: draft, companion, schedule, target, verify. A phase inside another one is taken off the outer one, so
    the phases and `other` add up to the wall time. On an accelerator these are the host's seconds: the wait for the
    device falls to the phase that first needs a result.
    """

    PHASES = ("draft", "companion", "schedule", "target", "verify")

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self._seconds = dict.fromkeys(self.PHASES, 0.0)
        self._inner = [0.0]

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Charge the seconds inside the block to `phase`."""
        begin = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - begin
            self._seconds[phase] += elapsed - self._inner.pop()
            self._inner[-1] += elapsed

    def elapsed(self) -> float:
        """Wall seconds since the start."""
        return time.perf_counter() - self.start

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, `other` included."""
        total = self.elapsed()
        return {**self._seconds, "other": max(total - sum(self._seconds.values()), 0.0)}
