"""The command `specverify generate`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from .benchmark.drafts import LOOKUP, check_trim_text
from .benchmark.prompts import read_prompts, select_evenly, sha256_of_file
from .benchmark.runs import neutral_generation
from .benchmark.settings import SCHEDULES, parse_verification
from .command_options import (
    AnyDraft,
    BatchSize,
    Companion,
    CompanionQuantization,
    DraftQuantization,
    Dtype,
    Json,
    LookupNgram,
    MaxNewTokens,
    Prompts,
    Quiet,
    Seed,
    Target,
    TrimText,
)
from .command_output import clean_stdout, print_json
from .config import SpeculationConfig
from .diagnose_command import parse_options
from .drafting import as_drafter
from .generating import Answering, summary
from .parts import Parts
from .placing import CompanionDevice, Device, DeviceMap, DraftDevice, ModelNames, Placement, TpPlan
from .progress import progress_of
from .report.json_files import read_json, write_json
from .scheduling.cost import CostModel
from .scheduling.costs_of_a_call import LAZY_SECONDS, LAZY_TOKENS
from .sharding import Team


def generate_command(
    target: Target,
    prompts: Prompts,
    out: Annotated[Path, typer.Option(help="JSONL file of the answers; an interrupted run is continued.")],
    draft: AnyDraft = LOOKUP,
    companion: Companion = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts used, evenly spaced over the file. Default: all.")
    ] = None,
    max_new_tokens: MaxNewTokens = 256,
    batch_size: BatchSize = 8,
    verification: Annotated[str, typer.Option(help="Verifier; name:K for K draft paths.")] = "token",
    verification_option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: a parameter of a lossy verifier; repeatable.")
    ] = None,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option("--num-draft-tokens", min=1, help="Draft tokens per step, or most of them."),
    ] = None,
    schedule: Annotated[str, typer.Option("--schedule", help="fixed, auto, stop, cut or stop+cut.")] = "fixed",
    calibration: Annotated[
        str | None, typer.Option(help="Calibration for the schedule: folder, Hub id, or a table's name.")
    ] = None,
    costs: Annotated[Path | None, typer.Option(help="File of measured costs; default: measured first.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Most likely tokens kept; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Probability kept.")] = 1.0,
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    companion_quantization: CompanionQuantization = "none",
    trim_text: TrimText = None,
    lookup_ngram: LookupNgram = 2,
    raw_prompts: Annotated[bool, typer.Option("--raw-prompts", help="No chat template.")] = False,
    seed: Seed = 0,
    device: Device = None,
    device_map: DeviceMap = None,
    tp_plan: TpPlan = None,
    draft_device: DraftDevice = None,
    companion_device: CompanionDevice = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer the prompts of a file, and write one JSON line for each, in their order.

    The model's own generation settings (penalties, top-k …) are put aside. Under `accelerate launch` the prompts are
    shared out over its processes; the file is the same.

    Examples:

      specverify generate --target TARGET --draft DRAFT --prompts prompts.jsonl --out answers.jsonl

      specverify generate --target TARGET --prompts prompts.jsonl --temperature 0.7 --schedule auto --out answers.jsonl
    """
    speculation = _speculation(verification, verification_option or (), num_draft_tokens, schedule, calibration)
    check_trim_text(trim_text, draft_quantization, companion_quantization)
    texts = read_prompts(prompts)
    chosen = select_evenly(len(texts) if num_prompts is None else num_prompts, len(texts))
    placement = Placement(device, device_map, tp_plan, draft_device, companion_device)
    if tp_plan is not None and schedule != "fixed" and costs is None:
        raise ValueError(
            f"tp_plan={tp_plan!r} with schedule={schedule!r}: each process would measure and decide for itself; "
            "allowed: schedule='fixed', or costs from a file"
        )
    sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        sampling |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    settings = {
        "target": target,
        "draft": draft,
        "draft_quantization": draft_quantization,
        "companion": companion,
        "companion_quantization": companion_quantization,
        "lookup_ngram": lookup_ngram if draft == LOOKUP else None,
        "trim_text_sha256": None if trim_text is None else sha256_of_file(Path(trim_text)),
        "dtype": dtype,
        "prompts": prompts.name,
        "prompts_sha256": sha256_of_file(prompts),
        "num_prompts": len(chosen),
        "batch_size": batch_size,
        "raw_prompts": raw_prompts,
        **speculation,
        "costs_sha256": None if costs is None else sha256_of_file(costs),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    team = placement.join()
    names = ModelNames(target, draft, draft_quantization, companion, companion_quantization, lookup_ngram, trim_text)
    model, drafter, second = placement.load(names, dtype, team)
    answering = Answering(
        model, drafter, second, AutoTokenizer.from_pretrained(target), [texts[index] for index in chosen], chosen,
        batch_size, not raw_prompts, speculation, sampling, seed,
    )  # fmt: skip
    parts = Parts(out.with_name(out.name + ".parts"))
    with clean_stdout(as_json):
        found = _run(answering, parts, settings, costs, team, quiet)
    if team.is_first:
        _write(out, found)
        _show(summary(found), as_json, quiet)


def _speculation(
    verification: str, options: Sequence[str], num_draft_tokens: int | None, schedule: str, calibration: str | None
) -> dict[str, Any]:
    """The options of `SpeculationConfig`, checked."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}; allowed: {', '.join(map(repr, SCHEDULES))}")
    if calibration is None and schedule not in ("fixed", "auto"):
        raise ValueError(f"schedule={schedule!r} needs a calibration; allowed: with calibration=, 'fixed' or 'auto'")
    name, paths = parse_verification(verification)
    found = {
        "verification": name,
        "verification_options": parse_options(tuple(options)) or None,
        "num_draft_paths": paths,
        "num_draft_tokens": num_draft_tokens,
        "calibration": calibration,
        "verify_length": "fixed",
        "draft_length": "fixed",
        **SCHEDULES[schedule],
    }
    try:
        SpeculationConfig.from_options(found)
    except TypeError as error:  # a parameter that the verifier does not have; to the command line a wrong input
        raise ValueError(str(error)) from None
    return found


def _run(
    answering: Answering, parts: Parts, settings: Mapping[str, Any], costs: Path | None, team: Team, quiet: bool
) -> list[dict[str, Any]]:
    """Answer the batches that are missing, with a progress bar; what all of them gave, in order."""
    with neutral_generation([answering.target], answering.pad), progress_of("batches", team, quiet) as on_part:
        measured = _costs(answering, costs, parts.folder / "costs.json", team)
        answering = replace(answering, speculation={**answering.speculation, "costs": measured})
        paths = parts.complete(team, len(answering), settings, answering.make, write_part, on_part)
    team.leave()
    return [read_json(path) for path in paths] if team.is_first else []


def _costs(answering: Answering, given: Path | None, kept: Path, team: Team) -> CostModel | None:
    """Costs for the schedule: from a file, or measured by the first process and kept, so that all decide alike."""
    speculation = answering.speculation
    if given is None and speculation["verify_length"] == speculation["draft_length"] == "fixed":
        return None

    def read() -> CostModel:
        if given is None and not kept.exists():
            draft = as_drafter(answering.draft).drafting_model(answering.target)
            rows = answering.inputs(0)["input_ids"]
            kept.parent.mkdir(parents=True, exist_ok=True)
            CostModel.profile(
                answering.target, draft, answering.companion, sorted({1, len(rows)}), LAZY_TOKENS, rows.shape[1],
                budget_seconds=LAZY_SECONDS,
            ).save(kept)  # fmt: skip
        return CostModel.load(given or kept, {"target": answering.target})

    return team.decide(read)


def write_part(part: dict[str, Any], path: Path) -> None:
    """Write what a batch gave."""
    write_json(path, part)


def _write(out: Path, parts: Sequence[Mapping[str, Any]]) -> None:
    """One line for each answer; an old file stays whole until the new one is."""
    unfinished = out.with_name(out.name + ".part")
    with unfinished.open("w", encoding="utf-8") as file:
        for part in parts:
            for answer in part["answers"]:
                file.write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")
    unfinished.replace(out)


def _show(found: Mapping[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(found)
    elif not quiet:
        table = Table("figure", "value", title=f"Answers to {found['prompts']} prompts")
        seconds = sum(found["seconds"].values())
        table.add_row("tokens", str(found["tokens"]))
        table.add_row("endings", ", ".join(f"{count} {name}" for name, count in found["endings"].items()))
        table.add_row(
            "drafted, verified, accepted", " ".join(str(found[n]) for n in ("drafted", "verified", "accepted"))
        )
        table.add_row("tokens per target pass", f"{found['tokens_per_target_pass']:.2f}")
        table.add_row("seconds, added up over batches", f"{seconds:.1f}")
        Console().print(table)
