"""The command `specverify explain`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .benchmark.environment import load_model
from .benchmark.settings import LOOKUP, parse_numbers
from .explain import Explanation, explain
from .scheduling.calibration import CalibrationTable
from .scheduling.cost import CostModel


def explain_command(
    target: Annotated[str, typer.Option(help="Target model: Hub id or folder.")],
    draft: Annotated[str, typer.Option(help="Draft model: Hub id or folder, or 'lookup'.")] = LOOKUP,
    companion: Annotated[str | None, typer.Option(help="Companion model: Hub id or folder.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    draft_quantization: Annotated[
        str, typer.Option(help="none, nf4 or int8 (bitsandbytes), +layers:N, +trim:N.")
    ] = "none",
    companion_quantization: Annotated[
        str, typer.Option(help="none, nf4 or int8 (bitsandbytes), +layers:N, +trim:N.")
    ] = "none",
    calibration: Annotated[str | None, typer.Option(help="Folder of a calibration, for the acceptance.")] = None,
    costs: Annotated[Path | None, typer.Option(help="File of measured costs; default: measured now.")] = None,
    batch_size: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,4,8,16,32",
    context: Annotated[int, typer.Option(help="Tokens of a row.")] = 256,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say where models are, what they cost, and whether speculation pays here; with advice in words."""
    sizes = parse_numbers("batch_size", batch_size, int)
    names = {"target": (target, "none"), "draft": (draft, draft_quantization)}
    if companion is not None:
        names["companion"] = (companion, companion_quantization)
    models = {role: load_model(name, dtype, how) for role, (name, how) in names.items() if name != LOOKUP}
    if costs is not None:
        measured = CostModel.load(costs, models)
    else:
        several = sorted({1, min(8, max(sizes)), max(sizes)})
        measured = CostModel.profile(**models, batch_sizes=several, tokens=(1, 2, 4, 8), context=context)
    table = None if calibration is None else CalibrationTable.from_pretrained(calibration)
    bits = None if table is None else table.metadata.get("companion_bits")
    found = explain(
        **models, costs=measured, calibration=table, companion_bits=bits, batch_sizes=sizes, context=context
    )
    if json:
        print(json_module.dumps(asdict(found), indent=2))
    else:
        _show(found, Console())


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
