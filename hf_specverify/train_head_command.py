"""The command `specverify train-head`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from .benchmark.environment import load_model
from .benchmark.prompts import read_prompts
from .command_options import Dtype, Json, Quiet, Seed, Target
from .command_output import clean_stdout, print_json
from .training import HeadReport, HeadTraining, train_head

_USUAL = HeadTraining()
_PARSED = ("target_layers", "temperatures")


def train_head_command(
    target: Target,
    out: Annotated[Path, typer.Option(help="Folder of the head; an interrupted run is continued.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="Prompts that the target answers: .txt, or .jsonl (prompt, turns or question); repeatable."),
    ] = None,
    texts: Annotated[list[Path] | None, typer.Option(help="Text files to learn from as they are; repeatable.")] = None,
    own: Annotated[int, typer.Option(help="Instructions that the target writes itself, and answers.")] = 0,
    skip: Annotated[
        list[Path] | None, typer.Option(help="Prompt files whose prompts are left out of all prompts; repeatable.")
    ] = None,
    dtype: Dtype = "float32",
    target_name: Annotated[str | None, typer.Option(help="Hub name of a local target, for the head's files.")] = None,
    licence: Annotated[str | None, typer.Option(help="Of the head, for its card, as apache-2.0.")] = None,
    data: Annotated[str, typer.Option(help="Where prompts and texts are from, for the card.")] = "",
    target_layers: Annotated[
        str | None, typer.Option(help="Hidden states that it reads, as 2,15,27; default: low, middle, high.")
    ] = None,
    draft_vocab_size: Annotated[int, typer.Option(help="Tokens that the head scores.")] = _USUAL.draft_vocab_size,
    start: Annotated[str, typer.Option(help="last_layer: the target's weights; or random.")] = _USUAL.start,
    unroll: Annotated[int, typer.Option(help="Steps drafted in a row while training.")] = _USUAL.unroll,
    step_decay: Annotated[float, typer.Option(help="Weight of a step against the one before.")] = _USUAL.step_decay,
    epochs: Annotated[int, typer.Option(help="Times that every text is read.")] = _USUAL.epochs,
    batch_size: Annotated[int, typer.Option(help="Texts per step of the optimiser.")] = _USUAL.batch_size,
    learning_rate: Annotated[float, typer.Option(help="The highest.")] = _USUAL.learning_rate,
    max_length: Annotated[int, typer.Option(help="Tokens of a text, prompt included.")] = _USUAL.max_length,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = _USUAL.max_new_tokens,
    temperatures: Annotated[str, typer.Option(help="Of answers, batch by batch in turn; 0 is greedy.")] = "0,0.7",
    generation_batch: Annotated[int, typer.Option(help="Answers written at once.")] = _USUAL.generation_batch,
    held_out: Annotated[float, typer.Option(help="Share of texts that the head is not trained on.")] = _USUAL.held_out,
    precision: Annotated[str, typer.Option(help="Of training: float32 or bfloat16.")] = _USUAL.precision,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = _USUAL.checkpoint_every,
    acceptance_epochs: Annotated[
        int, typer.Option(help="Times that texts are read to foresee acceptance; 0: no acceptance head.")
    ] = _USUAL.acceptance_epochs,
    seed: Seed = _USUAL.seed,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a feature head (EAGLE-3) for a model, on its own answers or on given texts.

    Examples:

      specverify train-head --target HuggingFaceTB/SmolLM2-135M-Instruct --own 2000 --out head

      specverify train-head --target model --prompts questions.jsonl --epochs 6 --precision bfloat16 --out head
    """
    given = locals()
    settings = HeadTraining(
        target_layers=None if target_layers is None else _numbers("target_layers", target_layers, int),
        temperatures=_numbers("temperatures", temperatures, float),
        **{name: given[name] for name in _USUAL.as_json() if name in given and name not in _PARSED},
    )
    left_out = {text for path in skip or () for text in read_prompts(path)}
    asked = [text for path in prompts or () for text in read_prompts(path) if text not in left_out]
    with clean_stdout(as_json):
        report = train_head(
            load_model(target, dtype),
            out,
            tokenizer=AutoTokenizer.from_pretrained(target),
            prompts=asked,
            texts=[path.read_text(encoding="utf-8") for path in texts or ()],
            own=own,
            settings=settings,
            target_name=target_name,
            licence=licence,
            about=f"{data}\n\nCommand: `{shlex.join(['specverify', *sys.argv[1:]])}`".strip(),
            progress=not quiet,
        )
    if as_json:
        print_json(asdict(report))
    elif not quiet:
        _show(report, Console())


def _numbers(name: str, text: str, kind: Any) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}={text!r}: allowed are numbers with commas between them") from None


def _show(report: HeadReport, console: Console) -> None:
    table = Table("", "", title=f"Feature head in {report.folder}", show_header=False)
    table.add_row("parameters", f"{report.parameters / 1e6:.1f} M")
    table.add_row("texts", f"{report.texts} ({report.tokens} tokens), {report.held_out} held out")
    table.add_row("steps", str(report.steps))
    table.add_row("loss by epoch", ", ".join(f"{loss:.3f}" for loss in report.losses))
    table.add_row("greedy drafts right, by length", ", ".join(f"{share:.3f}" for share in report.survival))
    if report.acceptance is not None:
        told = report.acceptance
        table.add_row("error of foreseen acceptance", f"{told.error:.3f}")
        table.add_row("bits of acceptance foreseen", f"{told.bits:.3f} of {told.entropy:.3f}")
    console.print(table)
