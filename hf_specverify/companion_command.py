"""The command `specverify companion`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .command_options import Json, Quiet
from .command_output import clean_stdout, print_json
from .companions import CompanionReport, make_companion


def companion_command(
    draft: Annotated[str, typer.Option(help="Draft model: Hub id or folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the companion; new or empty.")],
    method: Annotated[str, typer.Option(help="nf4, fp4, int8 (bitsandbytes), layers or bf16.")] = "nf4",
    num_layers: Annotated[int | None, typer.Option(help="For 'layers': the first so many.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "bfloat16",
    revision: Annotated[str | None, typer.Option(help="The draft's branch, tag or commit on the Hub.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text file to compare draft and companion on.")] = None,
    push: Annotated[str | None, typer.Option(help="Hub repository to upload the folder to.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a cheaper form of a draft, which a companion or a draft can be, with a model card.

    Examples:

      specverify companion --draft Qwen/Qwen2.5-0.5B-Instruct --method nf4 --out companion

      specverify companion --draft Qwen/Qwen2.5-0.5B-Instruct --method layers --num-layers 8 --out first-layers
    """
    with clean_stdout(as_json):
        report = make_companion(
            draft,
            out,
            method,
            num_layers=num_layers,
            dtype=dtype,
            revision=revision,
            text=None if text is None else text.read_text(encoding="utf-8"),
            push_to_hub=push,
            private=private,
        )
    if as_json:
        print_json(asdict(report))
    elif not quiet:
        _show(report, Console())


def _show(report: CompanionReport, console: Console) -> None:
    table = Table("", "", title=f"Companion in {report.folder}", show_header=False)
    table.add_row("method", report.method)
    table.add_row("layers", str(report.num_layers))
    table.add_row("weights", f"{report.size / 2**20:.1f} MB (the draft's {report.draft_size / 2**20:.1f} MB)")
    if report.distance is not None:
        table.add_row("S, mean", f"{report.distance.overlap[0]:.4f}")
        table.add_row("A, mean", f"{report.distance.acceptance[0]:.4f}")
        table.add_row("same first choice", f"{report.distance.agreement:.1%}")
        table.add_row("largest logit difference", f"{report.distance.largest_logit_difference:.3g}")
    if report.repository is not None:
        table.add_row("pushed to", report.repository)
    console.print(table)
