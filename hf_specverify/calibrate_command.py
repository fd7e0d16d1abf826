"""The command `specverify calibrate`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from .benchmark.drafts import LOOKUP, check_trim_text
from .benchmark.prompts import chat_encoder, encode_chunk, read_prompts, select_evenly, sha256_of_file
from .benchmark.runs import pad_token_id
from .calibrating import CalibrationSamples, default_signals, record_batch
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
    NumPrompts,
    Prompts,
    Quiet,
    Seed,
    Target,
    TrimText,
)
from .command_output import clean_stdout, print_json
from .decoding.traits import input_device
from .hub.commanding import parse_forms, parse_names, with_command
from .hub.describing import describe_calibration
from .hub.figures import Figures
from .parts import Parts
from .placing import CompanionDevice, Device, DeviceMap, DraftDevice, ModelNames, Placement, TpPlan
from .progress import progress_of
from .scheduling.calibration import CalibrationTable
from .scheduling.information import InformationTable


def calibrate_command(
    context: typer.Context,
    target: Target,
    prompts: Prompts,
    out: Annotated[Path, typer.Option(help="Folder of the table; an interrupted run is continued.")],
    draft: AnyDraft = LOOKUP,
    companion: Companion = None,
    num_prompts: NumPrompts = 64,
    max_new_tokens: MaxNewTokens = 128,
    batch_size: BatchSize = 8,
    num_draft_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens per step.")] = 7,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    companion_quantization: CompanionQuantization = "none",
    trim_text: TrimText = None,
    lookup_ngram: LookupNgram = 2,
    seed: Seed = 0,
    signals: Annotated[str | None, typer.Option(help="The table's signals, separated by commas; up to three.")] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=USER/NAME[@REVISION]: Hub name of a local target, draft, companion or data."),
    ] = None,
    form: Annotated[
        list[str] | None,
        typer.Option(
            help="ROLE=FORM: what a dense model's weights were quantised to before, such as target=gguf-q4_k_m."
        ),
    ] = None,
    device: Device = None,
    device_map: DeviceMap = None,
    tp_plan: TpPlan = None,
    draft_device: DraftDevice = None,
    companion_device: CompanionDevice = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn which draft tokens are accepted, from a prompt file, and write the table that predicts it.

    Under `accelerate launch` the prompts are shared out over its processes; the table is the same.

    Examples:

      specverify calibrate --target TARGET --draft DRAFT --prompts prompts.jsonl --out my-table

      specverify calibrate --target TARGET --draft DRAFT --companion DRAFT --companion-quantization int8 --signals q,S
      --prompts prompts.jsonl --out with-companion
    """
    names, forms = parse_names(name or ()), parse_forms(form or ())
    check_trim_text(trim_text, draft_quantization, companion_quantization)
    texts = read_prompts(prompts)
    texts = [texts[index] for index in select_evenly(num_prompts, len(texts))]
    placement = Placement(device, device_map, tp_plan, draft_device, companion_device)
    team = placement.join()
    chosen = ModelNames(target, draft, draft_quantization, companion, companion_quantization, lookup_ngram, trim_text)
    model, drafter, second = placement.load(chosen, dtype, team)
    tokenizer = AutoTokenizer.from_pretrained(target)
    pad = pad_token_id(model, tokenizer)
    chunks = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
    options: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    options |= {"max_new_tokens": max_new_tokens, "pad_token_id": pad}
    metadata = {
        "target": target,
        "draft": draft,
        "draft_quantization": draft_quantization,
        "companion": companion,
        "companion_quantization": companion_quantization,
        "lookup_ngram": lookup_ngram if draft == LOOKUP else None,
        "trim_text_sha256": None if trim_text is None else sha256_of_file(Path(trim_text)),
        "dtype": dtype,
        "temperature": temperature,
        "num_draft_tokens": num_draft_tokens,
        "max_new_tokens": max_new_tokens,
        "prompts": prompts.name,
        "prompts_sha256": sha256_of_file(prompts),
        "num_prompts": num_prompts,
        "seed": seed,
    }
    recorded = default_signals(drafter, second)

    def record(number: int) -> CalibrationSamples:
        inputs = encode_chunk(chat_encoder(tokenizer), chunks[number], pad, input_device(model))
        torch.manual_seed(seed + number)
        found = CalibrationSamples.empty(recorded, metadata)
        found.add(*record_batch(model, drafter, second, inputs, recorded, num_draft_tokens, options))
        return found

    settings = {**metadata, "batch_size": batch_size, "signals": recorded}
    parts = Parts(out / "parts", ".safetensors")
    with clean_stdout(as_json), progress_of("batches", team, quiet) as on_part:
        paths = parts.complete(team, len(chunks), settings, record, CalibrationSamples.save, on_part)
    team.leave()
    if not team.is_first:
        return
    samples = CalibrationSamples.join([CalibrationSamples.load(path, recorded) for path in paths])
    samples.save(out / "samples.safetensors")
    table = samples.fit(
        sets=_sets(recorded, signals),
        metadata={key: value for key, value in metadata.items() if key not in ("target", "draft", "companion")},
        origin=describe_calibration(model, drafter, second, num_draft_tokens, options),
    )
    gains = table.information_gain()
    table.metadata["companion_bits"] = gains.companion_bits
    data = {"sha256": metadata["prompts_sha256"], "num_prompts": num_prompts, "max_new_tokens": max_new_tokens}
    table = with_command(
        table,
        gains,
        context=context,
        names=names,
        forms=forms,
        tokenizer=tokenizer,
        prompts=prompts,
        data=data,
        seed=seed,
    )
    table.save_pretrained(out, plots=True)
    if as_json:
        print_json({"folder": str(out), "signals": list(table.names), "positions": int(table.number.sum()),
                    "figures": Figures.of(gains, table.calibration_error()).to_record()})  # fmt: skip
    elif not quiet:
        show(table, gains, Console())


def _sets(names: tuple[str, ...], chosen: str | None) -> list[tuple[str, ...]] | None:
    """The table's own signals first, then all single ones and pairs to compare; None leaves the choice to the fit."""
    if chosen is None:
        return None
    own = tuple(chosen.split(","))
    others = [pair for size in (1, 2) for pair in combinations(names, size)]
    return [own, *(pair for pair in others if set(pair) != set(own))]


def show(table: CalibrationTable, gains: InformationTable, console: Console) -> None:
    """Print what every signal set tells."""
    shown = Table("signals", "bits", "share", title=f"What signals tell about acceptance, of {gains.entropy:.3f} bits")
    for names, gain in gains.items():
        shown.add_row(", ".join(names), f"{gain.bits:.3f}", f"{gain.share:.1%}")
    console.print(shown)
    if gains.companion_bits is not None:
        console.print(f"The companion adds {gains.companion_bits:.3f} bits to the best of the draft's own signals.")
    error = table.calibration_error().overall
    console.print(
        f"Table of {', '.join(table.names)}: ECE {error.ece:.3f}, Brier {error.brier:.3f}, AUC {error.auc:.3f}"
    )
