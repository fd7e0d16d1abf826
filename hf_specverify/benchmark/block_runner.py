"""Runs all cells of a block, one after the other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from hf_specverify.benchmark import sampling
from hf_specverify.benchmark.cells import PLAIN, Block, Cell, cells_for, rotated
from hf_specverify.benchmark.memory import PeakGrowth, peak_growth
from hf_specverify.benchmark.prompts import Tokenizer, encode_chunk
from hf_specverify.benchmark.records import RunRecord, record_run
from hf_specverify.benchmark.runners import Outcome, run_cell
from hf_specverify.benchmark.settings import BenchSettings

WARM_UP_TOKENS = 8
"""New tokens per row in the runs before measuring; they are not counted."""


@dataclass(frozen=True)
class BlockRunner:
    """Models and texts of a benchmark.

    Attributes:
        settings: what to run.
        target, draft: the models; draft may be "lookup".
        encode: gives the ids of a text.
        texts: the selected prompts, which the blocks number.
        pad_token_id: fills up rows.
    """

    settings: BenchSettings
    target: Any
    draft: Any
    encode: Tokenizer
    texts: Sequence[str]
    pad_token_id: int

    def warm_up(self, block: Block) -> None:
        """Run every cell once on a block's prompts, for a few tokens."""
        short = replace(self.settings, max_new_tokens=min(WARM_UP_TOKENS, self.settings.max_new_tokens))
        options = sampling.token_options(short, block.temperature)
        for cell in cells_for(self.settings, block.batch_size):
            run_cell(cell, self.target, self.draft, self._inputs(block), options)

    def run(self, block: Block, turn: int, on_run: Callable[[RunRecord], None] | None = None) -> list[RunRecord]:
        """Run every cell of a block and return the records in the order of the runs.

        Args:
            block: what to run.
            turn: number of the block, which decides the order of its cells.
            on_run: called after each run.
        """
        seed = block.seed(self.settings.seed)
        records: list[RunRecord] = []
        outputs: dict[str, list[list[int]]] = {}
        for position, cell in enumerate(rotated(cells_for(self.settings, block.batch_size), turn)):
            outcome, peak = self._measure(block, cell, seed)
            outputs[cell.name] = self._trimmed(outcome)
            lengths = tuple(map(len, outputs[cell.name]))
            records.append(record_run(block, cell, position, seed, outcome, lengths, peak))
            if on_run is not None:
                on_run(records[-1])
        return [_compared(record, outputs) for record in records] if block.temperature == 0 else records

    def _measure(self, block: Block, cell: Cell, seed: int) -> tuple[Outcome, int | None]:
        inputs, options = self._inputs(block), sampling.token_options(self.settings, block.temperature)
        gc.collect()
        torch.manual_seed(seed)
        profile = self.settings.profile_memory
        with peak_growth(self.target.device) if profile else nullcontext(PeakGrowth()) as growth:
            outcome = run_cell(cell, self.target, self.draft, inputs, options)
        return outcome, growth.bytes if profile else None

    def _inputs(self, block: Block) -> dict[str, torch.Tensor]:
        texts = [self.texts[number] for number in block.prompts]
        return encode_chunk(self.encode, texts, self.pad_token_id, self.target.device)

    def _trimmed(self, outcome: Outcome) -> list[list[int]]:
        eos = sampling.eos_token_ids(self.target)
        return [row[: sampling.count_new_tokens(row, eos)] for row in outcome.new_ids.tolist()]


def _compared(record: RunRecord, outputs: Mapping[str, list[list[int]]]) -> RunRecord:
    if record.method == PLAIN:
        return record
    pairs = zip(outputs[record.cell], outputs[PLAIN], strict=True)
    return replace(record, identical_to_plain=tuple(row == plain for row, plain in pairs))
