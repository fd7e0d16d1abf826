"""The command line: `specverify demo | generate | bench | calibrate | profile | explain | companion | diagnose | …`.

Nothing heavy is imported here, so that `--help` and mistakes are answered at once; each command imports what it runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

DEBUG = "--debug"

EXAMPLES = """Batched, provably lossless speculative decoding for Transformers.

Examples:

  specverify demo

  specverify demo --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --dtype bfloat16

  specverify bench --help
"""

app = typer.Typer(
    help=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; wrong input ends in one red line on stderr and exit code 2."""
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    try:
        app(args=arguments, prog_name="specverify")
    except (ValueError, OSError) as error:
        if DEBUG in sys.argv:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        Console(stderr=True, soft_wrap=True).print(f"Error: {message}", style="red", markup=False, highlight=False)
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print(f"hf_specverify {metadata.version('hf_specverify')}")
    except metadata.PackageNotFoundError:
        print("hf_specverify, not installed: run from its source folder")
    raise typer.Exit()


@app.callback()
def specverify(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Options that stand before the command."""


@app.command()
def demo(
    target: Annotated[
        str | None, typer.Option(help="Hub id or folder of the model. Default: SmolLM2-135M-Instruct.")
    ] = None,
    draft: Annotated[
        str, typer.Option(help="Hub id or folder of a draft model with the same tokenizer, or 'lookup': prompt lookup.")
    ] = "lookup",
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts of your own: .txt (one a line) or .jsonl ('prompt', 'turns' or 'question')."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per batch.")] = 4,
    sample: Annotated[bool, typer.Option("--sample", help="Sample at temperature 1 instead of greedy.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 96,
    num_draft_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens per step.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Measured runs of each way.")] = 3,
    dtype: Annotated[str, typer.Option(help="float32 (answers comparable token for token), bfloat16 or float16.")] = (
        "float32"
    ),
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the tables: no streaming, no progress.")] = False,
) -> None:
    """Answer real prompts three ways and compare: plain, Transformers' assisted decoding, hf_specverify.

    Without options it takes SmolLM2-135M-Instruct (about 100 to 270 MB to download, once) and prompt lookup.

    For example:

      specverify demo --dtype bfloat16 --batch-size 2

      specverify demo --prompts questions.jsonl --sample --json > result.json
    """
    from hf_specverify.benchmark.demo import DemoOptions, run_demo

    options = DemoOptions(
        target=target,
        draft=draft,
        prompts=prompts,
        batch_size=batch_size,
        sample=sample,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        repeats=repeats,
        dtype=dtype,
    )
    result = run_demo(options, Console(quiet=json_output), Console(stderr=True, quiet=quiet), stream=not quiet)
    if json_output:
        print(json.dumps(result, indent=2))


def _hand_on(name: str, module: str, function: str, summary: str) -> None:
    """Register a command whose own module needs torch even to name its options: it is imported when it is called."""

    def command(context: typer.Context) -> None:
        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        inner.command(name=name)(getattr(importlib.import_module(module), function))
        inner(args=context.args, prog_name=f"specverify {name}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    text = f"{summary}; see `specverify {name} --help`."
    app.command(name=name, add_help_option=False, context_settings=settings, help=text)(command)


_hand_on(
    "generate",
    "hf_specverify.generate_command",
    "generate_command",
    "Answer the prompts of a file, on one or many processes",
)
_hand_on(
    "bench",
    "hf_specverify.benchmark.bench_command",
    "bench",
    "Compare plain, stock and our decoding over batch sizes and draft lengths",
)
_hand_on(
    "calibrate",
    "hf_specverify.calibrate_command",
    "calibrate_command",
    "Learn from a prompt file which draft tokens are accepted",
)
_hand_on("profile", "hf_specverify.profile_command", "profile_command", "Measure what forwards cost on this machine")
_hand_on(
    "explain",
    "hf_specverify.explain_command",
    "explain_command",
    "Say what models cost here and whether speculation pays",
)
_hand_on(
    "companion",
    "hf_specverify.companion_command",
    "companion_command",
    "Make a quantised or shortened companion of a draft, with its model card",
)
_hand_on(
    "diagnose",
    "hf_specverify.diagnose_command",
    "diagnose_command",
    "Measure what a lossy rule does to law, text, scores and speed",
)
_hand_on("push", "hf_specverify.push_command", "push_command", "Put a calibration on the Hub")
_hand_on(
    "tables",
    "hf_specverify.tables_command",
    "tables_command",
    "List the calibrations that come with the library, and which fit given models",
)


if __name__ == "__main__":
    main()
