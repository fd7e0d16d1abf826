"""The ways of generating that a benchmark compares, and the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_specverify.benchmark.settings import BenchSettings

PLAIN = "plain"
STOCK = "stock"
OURS = "ours"


@dataclass(frozen=True)
class Cell:
    """One way of generating.

    Attributes:
        method: "plain" (no draft), "stock" (assisted decoding of Transformers, batch 1 only) or "ours".
        draft_length: draft tokens per step; None for plain.
    """

    method: str
    draft_length: int | None = None

    @property
    def name(self) -> str:
        """Return "plain", "stock L=5" or "ours L=5"."""
        return self.method if self.draft_length is None else f"{self.method} L={self.draft_length}"


@dataclass(frozen=True)
class Block:
    """A chunk of prompts that every cell runs one after the other; ratios are taken only within a block.

    Attributes:
        batch_size: rows.
        temperature: 0 is greedy.
        repeat: counted from 0.
        chunk: number of the chunk of prompts, from 0.
        prompts: numbers of the selected prompts in the chunk.
    """

    batch_size: int
    temperature: float
    repeat: int
    chunk: int
    prompts: tuple[int, ...]

    @property
    def key(self) -> tuple[int, float, int, int]:
        """Identify the block within a benchmark."""
        return (self.batch_size, self.temperature, self.repeat, self.chunk)

    def seed(self, base: int) -> int:
        """Return the seed of all runs of this block: the same for every cell, another for every chunk and repeat."""
        return base + 1_000_000 * self.repeat + self.chunk


def cells_for(settings: BenchSettings, batch_size: int) -> tuple[Cell, ...]:
    """Return the cells of a batch size; stock assisted decoding only does one row."""
    stock = [Cell(STOCK, length) for length in settings.draft_lengths] if batch_size == 1 else []
    return (Cell(PLAIN), *stock, *(Cell(OURS, length) for length in settings.draft_lengths))


def rotated(cells: Sequence[Cell], turns: int) -> list[Cell]:
    """Return the cells in an order that starts one later with each turn, so that no cell always runs first."""
    start = turns % len(cells)
    return [*cells[start:], *cells[:start]]
