"""The command `specverify profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .benchmark.environment import load_model
from .benchmark.settings import parse_numbers
from .scheduling.cost import CostModel


def profile_command(
    target: Annotated[str, typer.Option(help="Target model: Hub id or folder.")],
    out: Annotated[Path, typer.Option(help="JSON file of the costs.")],
    draft: Annotated[str | None, typer.Option(help="Draft model: Hub id or folder.")] = None,
    companion: Annotated[str | None, typer.Option(help="Companion model: Hub id or folder.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    draft_quantization: Annotated[
        str, typer.Option(help="none, nf4 or int8 (bitsandbytes), +layers:N, +trim:N.")
    ] = "none",
    companion_quantization: Annotated[
        str, typer.Option(help="none, nf4 or int8 (bitsandbytes), +layers:N, +trim:N.")
    ] = "none",
    batch_size: Annotated[str, typer.Option(help="Rows per call, separated by commas.")] = "1,4,8",
    tokens: Annotated[str, typer.Option(help="Tokens per row in a forward, separated by commas.")] = "1,2,4,8",
    context: Annotated[str, typer.Option(help="Cached tokens per row, separated by commas.")] = "256",
    budget: Annotated[float, typer.Option(help="Seconds to spend; every forward is measured once at least.")] = 90.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No table.")] = False,
) -> None:
    """Measure what forwards cost on this machine, for schedules that weigh them."""
    costs = CostModel.profile(
        load_model(target, dtype),
        None if draft is None else load_model(draft, dtype, draft_quantization),
        None if companion is None else load_model(companion, dtype, companion_quantization),
        parse_numbers("batch_size", batch_size, int),
        parse_numbers("tokens", tokens, int),
        parse_numbers("context", context, int),
        budget_seconds=budget,
    )
    costs.save(out)
    if not quiet:
        table = Table("role", "context", "rows", "tokens", "ms", title="Seconds of a forward")
        for point in costs.points:
            table.add_row(
                point.role, str(point.context), str(point.batch), str(point.tokens), f"{1000 * point.seconds:.1f}"
            )
        Console().print(table)
