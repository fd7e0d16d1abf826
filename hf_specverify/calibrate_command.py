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

from .benchmark.drafts import LOOKUP, check_trim_text, load_draft
from .benchmark.environment import load_model
from .benchmark.prompts import chat_encoder, encode_chunk, read_prompts, select_evenly, sha256_of_file
from .benchmark.runs import pad_token_id
from .calibrating import CalibrationSamples, calibrate, default_signals
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
from .command_output import clean_stdout, print_json, progress_bar
from .hub.commanding import parse_forms, parse_names, with_command
from .hub.figures import Figures
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn which draft tokens are accepted, from a prompt file, and write the table that predicts it.

    Examples:

      specverify calibrate --target TARGET --draft DRAFT --prompts prompts.jsonl --out my-table

      specverify calibrate --target TARGET --draft DRAFT --companion DRAFT --companion-quantization int8 --signals q,S
      --prompts prompts.jsonl --out with-companion
    """
    names, forms = parse_names(name or ()), parse_forms(form or ())
    check_trim_text(trim_text, draft_quantization, companion_quantization)
    texts = read_prompts(prompts)
    texts = [texts[index] for index in select_evenly(num_prompts, len(texts))]
    model = load_model(target, dtype)
    drafter = load_draft(
        draft, model, dtype, draft_quantization,
        target_name=target, lookup_ngram=lookup_ngram, trim_text=trim_text,
    )  # fmt: skip
    second = None if companion is None else load_model(companion, dtype, companion_quantization, trim_text)
    tokenizer = AutoTokenizer.from_pretrained(target)
    pad = pad_token_id(model, tokenizer)
    chunks = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
    inputs = [encode_chunk(chat_encoder(tokenizer), chunk, pad, model.device) for chunk in chunks]
    sampling: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        sampling |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
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
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / "samples.safetensors"
    recorded = default_signals(drafter, second)
    samples = _continued(unfinished, recorded, metadata)
    with clean_stdout(as_json), progress_bar(quiet) as progress:
        task = progress.add_task("batches", total=len(inputs), completed=samples.batches)

        def on_batch(found: CalibrationSamples) -> None:
            found.save(unfinished)
            torch.manual_seed(seed + found.batches)
            progress.update(task, completed=found.batches)

        torch.manual_seed(seed + samples.batches)
        table = calibrate(
            model,
            drafter,
            inputs,
            companion_model=second,
            num_draft_tokens=num_draft_tokens,
            sets=_sets(recorded, signals),
            metadata={key: value for key, value in metadata.items() if key not in ("target", "draft", "companion")},
            samples=samples,
            on_batch=on_batch,
            max_new_tokens=max_new_tokens,
            pad_token_id=pad,
            **sampling,
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


def _continued(path: Path, names: tuple[str, ...], settings: dict[str, Any]) -> CalibrationSamples:
    """The samples of an interrupted run with the same settings, or none yet."""
    if not path.exists():
        return CalibrationSamples.empty(names, settings)
    samples = CalibrationSamples.load(path, names)
    for name, value in settings.items():
        if samples.settings.get(name) != value:
            raise ValueError(
                f"{path} was made with {name}={samples.settings.get(name)!r}, now it is {value!r}; allowed: the same, "
                "or another folder"
            )
    return samples


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
