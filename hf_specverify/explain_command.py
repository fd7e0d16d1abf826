"""The command `specverify explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .benchmark.drafts import LOOKUP, check_trim_text, load_companion, load_draft_model
from .benchmark.environment import load_model
from .benchmark.settings import parse_numbers
from .command_options import (
    AnyDraft,
    Companion,
    CompanionQuantization,
    DraftQuantization,
    Dtype,
    Json,
    Quiet,
    Target,
    TrimText,
)
from .command_output import clean_stdout, print_json, progress_bar
from .explain import Explanation, explain
from .hub.costs import fitting_costs
from .hub.shipped import find_folder, read_table
from .scheduling.cost import CostModel
from .scheduling.head_companion import companion_weights


def explain_command(
    target: Target,
    draft: AnyDraft = LOOKUP,
    companion: Companion = None,
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    companion_quantization: CompanionQuantization = "none",
    trim_text: TrimText = None,
    calibration: Annotated[
        str | None, typer.Option(help="Calibration for the acceptance: folder, user/name on the Hub, or a shipped one.")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="File of measured costs; default: the calibration's, if they fit, or measured now."),
    ] = None,
    batch_size: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,4,8,16,32",
    context: Annotated[int, typer.Option(help="Tokens of a row.")] = 256,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say where models are, what they cost, and whether speculation pays here; with advice in words.

    Examples:

      specverify explain --target TARGET --draft DRAFT

      specverify explain --target TARGET --draft DRAFT --calibration my-table --costs costs.json --batch-size 1,8
    """
    sizes = parse_numbers("batch_size", batch_size, int)
    check_trim_text(trim_text, draft_quantization, companion_quantization)
    with clean_stdout(as_json):
        models = {"target": load_model(target, dtype)}
        if draft != LOOKUP:
            models["draft"] = load_draft_model(
                draft, models["target"], dtype, draft_quantization, target_name=target, trim_text=trim_text
            )
        if companion is not None:
            second = load_companion(companion, models["target"], dtype, companion_quantization, trim_text=trim_text)
            models["companion"] = companion_weights(second)
        folder = None if calibration is None else find_folder(calibration, {"draft": None, **models})
        measured = _costs(costs, folder, models, sizes, context, quiet)
        table = None if folder is None else read_table(folder)
        bits = None if table is None else table.metadata.get("companion_bits")
        found = explain(
            **models, costs=measured, calibration=table, companion_bits=bits, batch_sizes=sizes, context=context
        )
    if as_json:
        print_json(asdict(found))
    else:
        _show(found, Console())


def _costs(
    file: Path | None, folder: Path | None, models: dict[str, Any], sizes: Sequence[int], context: int, quiet: bool
) -> CostModel:
    """Those of the file, else those beside the calibration, else measured now."""
    if file is not None:
        return CostModel.load(file, models)
    found = None if folder is None else fitting_costs(folder, models)
    if found is not None:
        return found
    several = sorted({1, min(8, max(sizes)), max(sizes)})
    with progress_bar(quiet) as progress:
        task = progress.add_task("measuring")
        return CostModel.profile(
            **models, batch_sizes=several, tokens=(1, 2, 4, 8), context=context,
            on_cell=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip


def _show(found: Explanation, console: Console) -> None:
    table = Table("role", "model", "MB", "dtype", "device", "ms per token")
    for place in found.placements:
        time = "–" if place.milliseconds is None else f"{place.milliseconds:.1f}"
        size = f"{place.size / 2**20:.0f}"
        table.add_row(place.role, place.model, size, ", ".join(place.dtypes), ", ".join(place.devices), time)
    console.print(table)
    rates = Table("batch", "plain tokens/s", "best draft length", "tokens/s", "gain")
    for row in found.expectations:
        rates.add_row(
            str(row.batch_size), f"{row.plain:.1f}", str(row.length), f"{row.speculative:.1f}", f"{row.gain:.2f}"
        )
    console.print(rates, *found.advice, sep="\n")
