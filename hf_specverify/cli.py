"""The command line: `specverify demo | generate | bench | calibrate | profile | explain | companion | diagnose | …`.

Nothing heavy is imported here, so that `--help` and mistakes are answered at once; each command imports what it runs.

Exit codes: 0 done, 2 wrong input, 1 anything else that failed, 130 interrupted (Ctrl-C). An error is one line on
stderr.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .command_options import DTYPE_HELP, Json, Quiet
from .command_output import clean_stdout, print_json

DEBUG = "--debug"
FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130

EXAMPLES = """Batched, provably lossless speculative decoding for Transformers.

Exit codes: 0 done, 2 wrong input, 1 another error, 130 interrupted.

Examples:

  specverify demo

  specverify demo --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --dtype bfloat16

  specverify bench --help
"""

app = typer.Typer(
    help=EXAMPLES,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; see the module for its exit codes."""
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    try:
        code = app(args=arguments or ["--help"], prog_name="specverify", standalone_mode=False)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        code = _report(error)
    if code == INTERRUPTED:
        _say("Interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception) -> int:
    """Say what went wrong, in one line, or with the traceback where it was asked for; returns the exit code."""
    if DEBUG in sys.argv:
        traceback.print_exception(error)
    usage = hasattr(error, "format_message")  # of the parser
    expected = usage or isinstance(error, ValueError | OSError)
    message = " ".join((error.format_message() if usage else str(error)).split())  # type: ignore[attr-defined]
    if not expected:
        message = f"{type(error).__name__}: {message} ({DEBUG} shows the traceback)"
    _say(f"Error: {message or type(error).__name__}")
    return WRONG_INPUT if expected else FAILED


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True).print(line, style="red", markup=False, highlight=False)


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
        str | None, typer.Option(help="Target model: Hub id or folder. Default: SmolLM2-135M-Instruct.")
    ] = None,
    draft: Annotated[
        str,
        typer.Option(
            help="Draft model: Hub id or folder, with the same tokenizer, or 'lookup', or 'head:' and the Hub id or "
            "folder of a feature head."
        ),
    ] = "lookup",
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompt file of your own: .txt, one a line, or .jsonl (prompt, turns or question)."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per batch.")] = 4,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 96,
    num_draft_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens per step.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Measured runs of each way.")] = 3,
    dtype: Annotated[
        str | None, typer.Option(help=f"{DTYPE_HELP} Default: float32+packed on a CPU that has it, else float32.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer real prompts three ways and compare: plain, Transformers' assisted decoding, hf_specverify.

    Transformers' assisted decoding can't draft with a feature head, and has prompt lookup in place of it.

    Without options it takes SmolLM2-135M-Instruct (about 100 to 270 MB to download, once) and prompt lookup. In float32
    answers can be compared token for token. --quiet also leaves out the answer that is shown as it comes.

    Examples:

      specverify demo --dtype bfloat16 --batch-size 2

      specverify demo --draft head:smollm2-135m-instruct

      specverify demo --prompts questions.jsonl --temperature 1 --json > result.json
    """
    from hf_specverify.benchmark.demo import DemoOptions, run_demo, usual_dtype

    options = DemoOptions(
        target=target,
        draft=draft,
        prompts=prompts,
        batch_size=batch_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        repeats=repeats,
        dtype=usual_dtype() if dtype is None else dtype,
    )
    with clean_stdout(as_json):
        result = run_demo(options, Console(quiet=as_json), Console(stderr=True, quiet=quiet), stream=not quiet)
    if as_json:
        print_json(result)


def _hand_on(name: str, module: str, function: str, summary: str) -> None:
    """Register a command whose own module needs torch even to name its options: it is imported when it is called."""

    def command(context: typer.Context) -> None:
        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        inner.command(name=name, context_settings={"help_option_names": ["-h", "--help"]})(
            getattr(importlib.import_module(module), function)
        )
        code = inner(args=context.args, prog_name=f"specverify {name}", standalone_mode=False)
        raise typer.Exit(code or 0)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
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
_hand_on(
    "train-head",
    "hf_specverify.train_head_command",
    "train_head_command",
    "Train a feature head (EAGLE-3) for a model",
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
