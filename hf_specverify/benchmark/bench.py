"""The benchmark itself: every cell on every chunk of prompts, interleaved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_specverify.benchmark import sampling
from hf_specverify.benchmark.block_runner import BlockRunner
from hf_specverify.benchmark.cells import Block, cells_for
from hf_specverify.benchmark.environment import describe_environment
from hf_specverify.benchmark.prompts import Tokenizer, chat_encoder, chunk_indices, select_evenly, sha256_of_texts
from hf_specverify.benchmark.records import RunRecord
from hf_specverify.benchmark.result import BenchResult
from hf_specverify.benchmark.settings import LOOKUP, BenchSettings


def run_bench(
    settings: BenchSettings,
    target: Any,
    draft: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
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
        draft: draft model, or "lookup".
        tokenizer: `tokenizer(text)["input_ids"]` gives the ids of a text.
        prompts: at least `settings.num_prompts`, of which evenly spaced ones are used.
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
    models = {"target": target} if draft == LOOKUP else {"target": target, "draft": draft}
    result = BenchResult(
        settings=settings,
        environment=describe_environment(target.device),
        prompts={"indices": indices, "sha256": sha256_of_texts(texts), **(prompt_source or {})},
        sampling={
            "policy": sampling.POLICY,
            "neutralised": {role: sampling.neutralised_fields(model) for role, model in models.items()},
        },
        command_line=command_line,
    )
    if previous is not None:
        result.continue_from(previous)
    pad = sampling.pad_token_id(target, tokenizer)
    encode = tokenizer if settings.raw_prompts else chat_encoder(tokenizer)
    with sampling.neutral_generation(list(models.values()), pad):
        _run_blocks(BlockRunner(settings, target, draft, encode, texts, pad), result, on_run, on_block)
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
