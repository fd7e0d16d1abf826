"""The command `specverify profile`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .benchmark.drafts import check_trim_text, load_companion, load_draft_model
from .benchmark.environment import load_model
from .benchmark.settings import parse_numbers
from .command_options import (
    AnyDraftOrNone,
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
from .scheduling.cost import CostModel


def profile_command(
    target: Target,
    out: Annotated[Path, typer.Option(help="JSON file of the costs.")],
    draft: AnyDraftOrNone = None,
    companion: Companion = None,
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    companion_quantization: CompanionQuantization = "none",
    trim_text: TrimText = None,
    batch_size: Annotated[str, typer.Option(help="Rows per call, separated by commas.")] = "1,4,8",
    tokens: Annotated[str, typer.Option(help="Tokens per row in a forward, separated by commas.")] = "1,2,4,8",
    context: Annotated[str, typer.Option(help="Cached tokens per row, separated by commas.")] = "256",
    budget: Annotated[float, typer.Option(help="Seconds to spend; every forward is measured once at least.")] = 90.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what forwards cost on this machine, for schedules that weigh them.

    Examples:

      specverify profile --target TARGET --draft DRAFT --out costs.json

      specverify profile --target TARGET --draft DRAFT --batch-size 1,4,16 --context 256,1024 --out
      my-table/cost_table.json
    """
    sizes = parse_numbers("batch_size", batch_size, int)
    widths, contexts = parse_numbers("tokens", tokens, int), parse_numbers("context", context, int)
    check_trim_text(trim_text, draft_quantization, companion_quantization)
    model, own = load_model(target, dtype), None
    if draft is not None:
        own = load_draft_model(draft, model, dtype, draft_quantization, target_name=target, trim_text=trim_text)
    second = load_companion(companion, model, dtype, companion_quantization, trim_text=trim_text)
    with clean_stdout(as_json), progress_bar(quiet) as progress:
        task = progress.add_task("measuring")
        costs = CostModel.profile(
            model, own, second, batch_sizes=sizes, tokens=widths, context=contexts, budget_seconds=budget,
            on_cell=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    costs.save(out)
    if as_json:
        print_json({"file": str(out), "points": [asdict(point) for point in costs.points]})
    elif not quiet:
        table = Table("role", "context", "rows", "tokens", "ms", title="Seconds of a forward")
        for point in costs.points:
            table.add_row(
                point.role, str(point.context), str(point.batch), str(point.tokens), f"{1000 * point.seconds:.1f}"
            )
        Console().print(table)
