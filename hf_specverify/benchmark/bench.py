"""The benchmark itself: every cell on every chunk of prompts, interleaved."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, cast

import torch

from hf_specverify.benchmark import runs
from hf_specverify.benchmark.environment import describe_environment
from hf_specverify.benchmark.measuring import PeakGrowth, peak_growth
from hf_specverify.benchmark.prompts import (
    Tokenizer,
    chat_encoder,
    chunk_indices,
    encode_chunk,
    select_evenly,
    sha256_of_texts,
)
from hf_specverify.benchmark.records import RunRecord, record_run
from hf_specverify.benchmark.result import BenchResult
from hf_specverify.benchmark.runs import Outcome, run_cell
from hf_specverify.benchmark.settings import (
    PLAIN,
    STOCK,
    BenchSettings,
    Block,
    Cell,
    cells_for,
    parse_calibrations,
    rotated,
)
from hf_specverify.scheduling.cost import CostModel

WARM_UP_TOKENS = 8
"""New tokens per row in the runs before measuring; they are not counted."""


@dataclass(frozen=True)
class BlockRunner:
    """Models and texts of a benchmark.

    Attributes:
        settings: what to run.
        target, draft: the models; draft may be an `EarlyExit` or "lookup".
        encode: gives the ids of a text.
        texts: the selected prompts, which the blocks number.
        pad_token_id: fills up rows.
        scheduling: what schedules other than fixed are given.
        costs: those given, to say what runs should take; None without.
    """

    settings: BenchSettings
    target: Any
    draft: Any
    encode: Tokenizer
    texts: Sequence[str]
    pad_token_id: int
    scheduling: Mapping[str, Any]
    costs: CostModel | None = None

    def warm_up(self, block: Block) -> None:
        """Run every cell once on a block's prompts, for a few tokens."""
        short = replace(self.settings, max_new_tokens=min(WARM_UP_TOKENS, self.settings.max_new_tokens))
        options = runs.token_options(short, block.temperature)
        for cell in cells_for(self.settings, block.batch_size):
            self._run(cell, self._inputs(block), options)

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
            expected = self._expected_seconds(block, cell, outcome, lengths)
            records.append(record_run(block, cell, position, seed, outcome, lengths, peak, expected))
            if on_run is not None:
                on_run(records[-1])
        return [_compared(record, outputs) for record in records] if block.temperature == 0 else records

    def _measure(self, block: Block, cell: Cell, seed: int) -> tuple[Outcome, int | None]:
        inputs, options = self._inputs(block), runs.token_options(self.settings, block.temperature)
        gc.collect()
        torch.manual_seed(seed)
        profile = self.settings.profile_memory
        with peak_growth(self.target.device) if profile else nullcontext(PeakGrowth()) as growth:
            outcome = self._run(cell, inputs, options)
        return outcome, growth.bytes if profile else None

    def _expected_seconds(self, block: Block, cell: Cell, outcome: Outcome, lengths: tuple[int, ...]) -> float | None:
        """What the forwards should take; plain decoding keeps all rows until the last one ends."""
        if self.costs is None or cell.method == STOCK:
            return None
        if outcome.report is not None:
            return cast("float | None", outcome.report.expected_seconds)
        rows, prompt = len(lengths), self._inputs(block)["input_ids"].shape[1]
        return fsum(self.costs.latency(rows, rows, prompt + done) for done in range(max(lengths)))

    def _run(self, cell: Cell, inputs: dict[str, torch.Tensor], options: dict[str, Any]) -> Outcome:
        ngram = self.settings.lookup_ngram
        return run_cell(cell, self.target, self.draft, inputs, options, self.scheduling, ngram)

    def _inputs(self, block: Block) -> dict[str, torch.Tensor]:
        texts = [self.texts[number] for number in block.prompts]
        return encode_chunk(self.encode, texts, self.pad_token_id, self.target.device)

    def _trimmed(self, outcome: Outcome) -> list[list[int]]:
        eos = runs.eos_token_ids(self.target)
        return [row[: runs.count_new_tokens(row, eos)] for row in outcome.new_ids.tolist()]


def _compared(record: RunRecord, outputs: Mapping[str, list[list[int]]]) -> RunRecord:
    if record.method == PLAIN:
        return record
    pairs = zip(outputs[record.cell], outputs[PLAIN], strict=True)
    return replace(record, identical_to_plain=tuple(row == plain for row, plain in pairs))


def run_bench(
    settings: BenchSettings,
    target: Any,
    draft: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    companion: Any = None,
    previous: BenchResult | None = None,
    prompt_source: Mapping[str, str] | None = None,
    command_line: str = "",
    on_run: Callable[[RunRecord], None] | None = None,
    on_block: Callable[[BenchResult], None] | None = None,
) -> BenchResult:
    """Compare plain decoding, stock assisted decoding (batch 1) and ours on the same prompts.

    A block is one chunk of prompts at one batch size and temperature, in one repeat. All its cells run one after the
    other, with the same seed and in an order that turns from block to block, so that a drift of the machine hits all
    alike. Every cell is warmed up once per batch size and temperature.

    Args:
        settings: what to run.
        target: target model, on its device.
        draft: draft model, an `EarlyExit`, a `FeatureHead`, or "lookup".
        tokenizer: `tokenizer(text)["input_ids"]` gives the ids of a text.
        prompts: at least `settings.num_prompts`, of which evenly spaced ones are used.
        companion: companion model, for schedules that need one.
        previous: an interrupted result to continue; its blocks are not run again.
        prompt_source: "file" and "file_sha256", recorded with the prompts.
        command_line: recorded.
        on_run: called after each run.
        on_block: called after each block, when the result so far holds whole blocks only.

    Raises:
        ValueError: too few prompts.
        ResumeError: `previous` ran something else, or elsewhere (the field is named).
    """
    indices = select_evenly(settings.num_prompts, len(prompts))
    texts = [prompts[index] for index in indices]
    models = {"target": target}
    if hasattr(draft, "generation_config"):
        models["draft"] = draft
    result = BenchResult(
        settings=settings,
        environment=describe_environment(target.device),
        prompts={"indices": indices, "sha256": sha256_of_texts(texts), **(prompt_source or {})},
        sampling={
            "policy": runs.POLICY,
            "neutralised": {role: runs.neutralised_fields(model) for role, model in models.items()},
        },
        command_line=command_line,
    )
    if previous is not None:
        result.continue_from(previous)
    pad = runs.pad_token_id(target, tokenizer)
    encode = tokenizer if settings.raw_prompts else chat_encoder(tokenizer)
    scheduling = {
        "companion_model": companion,
        "calibrations": parse_calibrations(settings.calibration),
        "costs": settings.costs,
    }
    costs = None if settings.costs is None else CostModel.load(settings.costs)
    with runs.neutral_generation(list(models.values()), pad):
        runner = BlockRunner(settings, target, draft, encode, texts, pad, scheduling, costs)
        _run_blocks(runner, result, on_run, on_block)
    return result


def blocks_of(settings: BenchSettings) -> list[Block]:
    """Return all blocks in the order in which they run."""
    return [
        Block(batch_size, temperature, repeat, chunk, prompts)
        for batch_size in settings.batch_sizes
        for temperature in settings.temperatures
        for repeat in range(settings.repeats)
        for chunk, prompts in enumerate(chunk_indices(settings.num_prompts, batch_size))
    ]


def count_runs(settings: BenchSettings) -> int:
    """Return how many runs the settings ask for, warm-up apart."""
    return sum(len(cells_for(settings, block.batch_size)) for block in blocks_of(settings))


def _run_blocks(
    runner: BlockRunner,
    result: BenchResult,
    on_run: Callable[[RunRecord], None] | None,
    on_block: Callable[[BenchResult], None] | None,
) -> None:
    done = {run.block_key for run in result.runs}
    warm: set[tuple[int, float]] = set()
    for turn, block in enumerate(blocks_of(runner.settings)):
        if block.key in done:
            continue
        if (block.batch_size, block.temperature) not in warm:
            runner.warm_up(block)
            warm.add((block.batch_size, block.temperature))
        result.runs += runner.run(block, turn, on_run)
        if on_block is not None:
            on_block(result)
    result.complete = True
