"""The command `specverify tables`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .benchmark.drafts import LOOKUP, head_name
from .benchmark.environment import load_model, parse_dtype
from .command_options import Companion, CompanionQuantization, DraftQuantization, Dtype, Json, Quiet
from .command_output import clean_stdout, print_json
from .drafting.heads import load_head
from .hub.comparing import compare_models
from .hub.shipped import ShippedTable, shipped_tables


def tables_command(
    target: Annotated[str | None, typer.Option(help="Target model: Hub id or folder.")] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="Draft model: Hub id or folder, or 'lookup', or 'head:' and those of a feature head."),
    ] = None,
    companion: Companion = None,
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    companion_quantization: CompanionQuantization = "none",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the calibrations that come with the library, and which of them fit given models.

    Their names go into generate(calibration="name"), whole or the last part. With --quiet only names are printed, of
    those that fit.

    Examples:

      specverify tables

      specverify tables --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct
    """
    given = {"target": (target, "none"), "draft": (draft, draft_quantization)}
    given["companion"] = (companion, companion_quantization)
    with clean_stdout(as_json):
        models = {role: _load(name, dtype, how) for role, (name, how) in given.items() if name is not None}
        rows = [_row(shipped, models) for shipped in shipped_tables()]
    if as_json:
        print_json(rows)
    elif quiet:
        print(*(row["name"] for row in rows if row["fits"] is not False), sep="\n")
    else:
        _show(rows, Console())


def _load(name: str, dtype: str, form: str) -> Any:
    """A model, or the network of a feature head; None for lookup."""
    if name == LOOKUP:
        return None
    place = head_name(name)
    return load_model(name, dtype, form) if place is None else load_head(place).to(dtype=parse_dtype(dtype)[0])


def _row(shipped: ShippedTable, models: Mapping[str, Any]) -> dict[str, Any]:
    table = shipped.table
    figures = table.origin.figures
    row: dict[str, Any] = {"name": shipped.name, "signals": list(table.names), "positions": int(table.number.sum())}
    row |= {"models": {role: identity.label for role, identity in table.origin.models.items()}}
    row |= {"auc": None if figures is None else figures.auc, "fits": None, "reason": None}
    if models:
        try:
            notes = compare_models(table, models)
        except ValueError as error:
            return row | {"fits": False, "reason": str(error)}
        return row | {"fits": True, "reason": "; ".join(notes) or None}
    return row


def _show(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        console.print("No calibrations come with this installation; `specverify calibrate` makes one.")
        return
    shown = Table("name", "target", "draft", "companion", "signals", "positions", "AUC", "fits", "because")
    for row in rows:
        models = [escape(row["models"].get(role, "–")) for role in ("target", "draft", "companion")]
        auc = "–" if row["auc"] is None else f"{row['auc']:.3f}"
        fits = {None: "–", True: "yes", False: "no"}[row["fits"]]
        signals, reason = ", ".join(row["signals"]), escape(row["reason"] or "")
        shown.add_row(escape(row["name"]), *models, signals, str(row["positions"]), auc, fits, reason)
    console.print(shown)
