"""The command `specverify bench`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from transformers import AutoTokenizer

from hf_specverify.benchmark.bench import count_runs, run_bench
from hf_specverify.benchmark.drafts import LOOKUP, load_companion, load_draft
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.prompts import read_prompts, select_evenly, sha256_of_file
from hf_specverify.benchmark.records import RunRecord
from hf_specverify.benchmark.result import BenchResult, ResumeError, check_same
from hf_specverify.benchmark.settings import BenchSettings, parse_numbers
from hf_specverify.benchmark.summary import LEGEND, table_of
from hf_specverify.command_options import (
    AnyDraft,
    Companion,
    CompanionQuantization,
    DraftQuantization,
    Dtype,
    Json,
    LookupNgram,
    MaxNewTokens,
    NumPrompts,
    Prompts,
    Quiet,
    Seed,
    Target,
    TrimText,
)
from hf_specverify.command_output import clean_stdout, print_json, progress_bar


def bench(
    target: Target,
    prompts: Prompts,
    draft: AnyDraft = LOOKUP,
    num_prompts: NumPrompts = 12,
    max_new_tokens: MaxNewTokens = 96,
    batch_size: Annotated[str, typer.Option(help="Rows per call, separated by commas.")] = "1,4,8",
    num_draft_tokens: Annotated[str, typer.Option(help="Draft tokens per step, separated by commas.")] = "1,3,5,7",
    verification: Annotated[
        str, typer.Option(help="Verifiers, separated by commas; name:K for K draft paths.")
    ] = "token",
    no_stock: Annotated[bool, typer.Option("--no-stock", help="Leave stock assisted decoding out.")] = False,
    stock_confidence: Annotated[str, typer.Option(help="Thresholds of stock's draft confidence; 0: none.")] = "0",
    schedule: Annotated[
        str, typer.Option(help="fixed, auto, stop, cut or stop+cut, each with :NAME for a calibration, by commas.")
    ] = "fixed",
    calibration: Annotated[
        str | None, typer.Option(help="Folder of a calibration, or several by names: q=FOLDER,c=FOLDER.")
    ] = None,
    lookup_ngram: LookupNgram = 2,
    costs: Annotated[str | None, typer.Option(help="File of measured costs; default: measured first.")] = None,
    companion: Companion = None,
    companion_quantization: CompanionQuantization = "none",
    temperature: Annotated[str, typer.Option(help="0 is greedy; separated by commas.")] = "0,1",
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    trim_text: TrimText = None,
    repeats: Annotated[int, typer.Option(help="Times that each chunk of prompts is measured.")] = 3,
    seed: Seed = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Forbid the end of text: all rows equally long.")
    ] = False,
    raw_prompts: Annotated[bool, typer.Option("--raw-prompts", help="No chat template.")] = False,
    profile_memory: Annotated[
        bool, typer.Option("--profile-memory", help="Record the growth of memory per run.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file for all results, written after every chunk.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the file given by --out.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare plain decoding, stock assisted decoding (batch 1) and ours, interleaved on the same prompts.

    Examples:

      specverify bench --target TARGET --draft DRAFT --prompts prompts.jsonl --batch-size 1,8 --out bench.json

      specverify bench --target TARGET --prompts prompts.jsonl --num-draft-tokens 3,5 --temperature 0 --verification
      token,block
    """
    try:
        settings = BenchSettings(
            target=target,
            draft=draft,
            num_prompts=num_prompts,
            max_new_tokens=max_new_tokens,
            batch_sizes=parse_numbers("batch_size", batch_size, int),
            draft_lengths=parse_numbers("num_draft_tokens", num_draft_tokens, int),
            verifications=tuple(verification.split(",")),
            stock=not no_stock,
            stock_confidences=parse_numbers("stock_confidence", stock_confidence, float),
            lookup_ngram=lookup_ngram,
            schedules=tuple(schedule.split(",")),
            calibration=calibration,
            costs=costs,
            companion=companion,
            companion_quantization=companion_quantization,
            temperatures=parse_numbers("temperature", temperature, float),
            dtype=dtype,
            draft_quantization=draft_quantization,
            trim_text=trim_text,
            repeats=repeats,
            seed=seed,
            ignore_eos=ignore_eos,
            raw_prompts=raw_prompts,
            profile_memory=profile_memory,
        )
        texts = read_prompts(prompts)
        select_evenly(num_prompts, len(texts))
        previous = _previous(out, settings) if resume else None
        target_model, draft_model = _load(settings)
        second = load_companion(
            settings.companion, target_model, settings.dtype, settings.companion_quantization,
            trim_text=settings.trim_text,
        )  # fmt: skip
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None

    def save(result: BenchResult) -> None:
        if out is not None:
            result.save(out)

    # Runs differ a lot in length, so the remaining time is estimated from ten minutes of them.
    with clean_stdout(as_json), progress_bar(quiet, speed_estimate_period=600) as progress:
        done = len(previous.runs) if previous else 0
        task = progress.add_task("warm-up", total=count_runs(settings), completed=done)
        try:
            result = run_bench(
                settings,
                target_model,
                draft_model,
                AutoTokenizer.from_pretrained(target),
                texts,
                companion=second,
                previous=previous,
                prompt_source={"file": prompts.name, "file_sha256": sha256_of_file(prompts)},
                command_line=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                on_run=lambda run: progress.update(task, advance=1, description=_describe(run)),
                on_block=save,
            )
        except ResumeError as error:
            raise typer.BadParameter(str(error)) from None
    save(result)
    if as_json:
        print_json(result.to_dict())
    elif not quiet or out is None:
        console = Console()
        console.print(*map(table_of, result.summary()), LEGEND, sep="\n")


def _previous(path: Path | None, settings: BenchSettings) -> BenchResult:
    if path is None:
        raise ValueError("--resume without --out; allowed: --resume with the --out file of an interrupted benchmark")
    previous = BenchResult.load(path)
    check_same("settings", previous.settings.to_dict(), settings.to_dict())  # before the models are loaded
    return previous


def _describe(run: RunRecord) -> str:
    return f"batch {run.batch_size}, temperature {run.temperature:g}, {run.cell}"


def _load(settings: BenchSettings) -> tuple[Any, Any]:
    target = load_model(settings.target, settings.dtype)
    if settings.draft == LOOKUP:
        return target, LOOKUP
    draft = load_draft(
        settings.draft, target, settings.dtype, settings.draft_quantization,
        target_name=settings.target, trim_text=settings.trim_text,
    )  # fmt: skip
    return target, draft
