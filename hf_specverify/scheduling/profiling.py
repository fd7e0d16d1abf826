"""Measuring forwards with the runners of the loop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..decoding.runner import Runner
from ..drafting.heads.forwards import HeadForwards
from ..drafting.heads.model import HeadModel
from ..drafting.vocabulary import vocabulary_size
from .cost_points import Point

DRAFT_TOKENS = (1, 2)  # a draft reads one new token, or two after a full acceptance


def profile(
    models: Mapping[str, Any],
    batch_sizes: Sequence[int],
    tokens: Sequence[int],
    contexts: Sequence[int],
    budget_seconds: float,
    repeats: int,
    on_cell: Callable[[int, int], None],
) -> list[Point]:
    """Measure every forward; see `CostModel.profile`."""
    for name, values in (("batch_sizes", batch_sizes), ("tokens", tokens), ("context", contexts)):
        if not values or any(type(value) is not int or value < 1 for value in values):
            raise ValueError(f"{name} must be integers from 1, at least one, got {list(values)}")
    if repeats < 1 or not budget_seconds > 0:
        raise ValueError(f"repeats and budget_seconds must be positive, got {repeats} and {budget_seconds}")
    if not models:
        raise ValueError("target must be a model, got None")
    cells = [(batch, context) for context in sorted(set(contexts)) for batch in sorted(set(batch_sizes))]
    end = time.perf_counter() + budget_seconds
    points: list[Point] = []
    with torch.no_grad():
        for done, (batch, context) in enumerate(cells):
            now = time.perf_counter()
            deadline = now + max(0.0, end - now) / (len(cells) - done)
            benches = [_Bench.start(role, model, batch, context) for role, model in models.items()]
            points += _measure(benches, sorted(set(tokens)), deadline, repeats)
            on_cell(done + 1, len(cells))
    return points


def _measure(benches: Sequence[_Bench], tokens: Sequence[int], deadline: float, repeats: int) -> Iterator[Point]:
    """Take all forwards in turn, so that a disturbance hits all of them alike."""
    plan = [(bench, width) for bench in benches for width in (DRAFT_TOKENS if bench.role == "draft" else tokens)]
    for bench, width in plan:
        bench.forward(width)
    seconds: list[list[float]] = [[] for _ in plan]
    for turn in range(repeats):
        if turn and time.perf_counter() > deadline:
            break
        for (bench, width), times in zip(plan, seconds, strict=True):
            times.append(bench.forward(width))
    for (bench, width), times in zip(plan, seconds, strict=True):
        yield Point(bench.role, bench.context, bench.batch, bench.batch * width, max(statistics.median(times), 1e-9))


@dataclass(frozen=True)
class _Bench:
    """A model or head whose rows have their context cached."""

    role: str
    batch: int
    context: int
    vocabulary: int
    runner: Runner | HeadForwards

    @classmethod
    def start(cls, role: str, model: Any, batch: int, context: int) -> _Bench:
        from ..decoding.probe import make_runner
        from ..decoding.timing import Stopwatch

        is_head = isinstance(model, HeadModel)
        runner = HeadForwards(model, role == "companion") if is_head else make_runner(model, Stopwatch(), role)
        bench = cls(role, batch, context, vocabulary_size(model), runner)
        valid = torch.ones(batch, context + 1, dtype=torch.bool, device=runner.device)
        runner.prefill(bench._ids(context), valid[:, :-1], valid, None)
        return bench

    def forward(self, width: int) -> float:
        """Seconds of one forward over `width` tokens of every row, which are forgotten again."""
        block = self._ids(width)
        self._wait()
        begin = time.perf_counter()
        self.runner.forward(block, [width] * self.batch, last_only=self.role == "draft")
        self._wait()
        seconds = time.perf_counter() - begin
        self.runner.rewind([self.context] * self.batch)
        return seconds

    def _ids(self, width: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(width)
        ids = torch.randint(self.vocabulary, (self.batch, width), generator=generator)
        return ids.to(self.runner.device)

    def _wait(self) -> None:
        if self.runner.device.type == "cuda":
            torch.cuda.synchronize(self.runner.device)
