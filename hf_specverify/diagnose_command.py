"""The command `specverify diagnose`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from .benchmark.drafts import LOOKUP, check_trim_text
from .benchmark.environment import describe_environment
from .benchmark.prompts import read_prompts, select_evenly, sha256_of_file
from .benchmark.runs import neutral_generation, pad_token_id
from .command_options import (
    AnyDraft,
    BatchSize,
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
from .command_output import clean_stdout, print_json
from .decoding.traits import input_device
from .diagnostics import Diagnosis, DiagnosisSamples
from .diagnostics.calls import Calls, plan_calls
from .diagnostics.report_tables import ARM_LABELS
from .diagnostics.samples import ArmRun
from .diagnostics.tasks import TASK_KINDS, read_tasks
from .parts import Parts
from .placing import Device, DeviceMap, DraftDevice, ModelNames, Placement, TpPlan
from .progress import progress_of
from .report.json_files import read_json, write_json
from .sharding import Team


def diagnose_command(
    target: Target,
    prompts: Prompts,
    out: Annotated[Path, typer.Option(help="Folder of the report; an interrupted run is continued.")],
    draft: AnyDraft = "lookup",
    verification: Annotated[str, typer.Option(help="Name of a lossy rule.")] = "lenience",
    verification_option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: a parameter of the rule, such as leniency=0.3; repeatable.")
    ] = None,
    matched: Annotated[
        bool, typer.Option(help="Also sample the matched baseline (slow but for typical and min_p).")
    ] = True,
    task: Annotated[str | None, typer.Option(help=f"What answers are scored by: {', '.join(TASK_KINDS)}.")] = None,
    execute_generated_code: Annotated[
        bool, typer.Option("--execute-generated-code", help="Needed for humaneval: runs what the models write.")
    ] = False,
    template: Annotated[str, typer.Option(help="What is asked; {prompt} stands for the prompt.")] = "{prompt}",
    num_prompts: NumPrompts = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 1,
    max_new_tokens: MaxNewTokens = 128,
    batch_size: BatchSize = 1,
    num_draft_tokens: Annotated[int | None, typer.Option(min=1, help="Draft tokens per step.")] = None,
    temperature: Annotated[float, typer.Option(help="Above 0.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Most likely tokens kept; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Probability kept.")] = 1.0,
    draft_temperature: Annotated[float | None, typer.Option(help="Of drafts; by default the target's.")] = None,
    dtype: Dtype = "bfloat16",
    draft_quantization: DraftQuantization = "none",
    trim_text: TrimText = None,
    lookup_ngram: LookupNgram = 2,
    seed: Seed = 0,
    device: Device = None,
    device_map: DeviceMap = None,
    tp_plan: TpPlan = None,
    draft_device: DraftDevice = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what a lossy rule does to law, text, task scores and speed, beside target, matched baseline and lossless.

    The models' own generation settings (penalties, top-k …) are put aside, for all ways of generating alike.
    Under `accelerate launch` the calls are shared out over its processes.

    Examples:

      specverify diagnose --target TARGET --draft DRAFT --prompts prompts.jsonl --verification lenience
      --verification-option leniency=0.3 --out lenience

      specverify diagnose --target TARGET --draft DRAFT --prompts gsm8k.jsonl --task gsm8k --verification min_p
      --out min-p
    """
    options = parse_options(verification_option or ())
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}: a lossy rule changes sampling; allowed are numbers above 0")
    check_trim_text(trim_text, draft_quantization)
    texts = read_prompts(prompts)
    chosen = select_evenly(num_prompts, len(texts))
    tasks = None if task is None else read_tasks(prompts, task, chosen, allow_execution=execute_generated_code)
    _check_template(template)
    placement = Placement(device, device_map, tp_plan, draft_device)
    team = placement.join()
    chosen_models = ModelNames(target, draft, draft_quantization, lookup_ngram=lookup_ngram, trim_text=trim_text)
    model, drafter, _ = placement.load(chosen_models, dtype, team)
    tokenizer = AutoTokenizer.from_pretrained(target)
    out.mkdir(parents=True, exist_ok=True)
    metadata = {
        "draft_quantization": draft_quantization if draft != LOOKUP else None,
        "template": template,
        "prompt_file": prompts.name,
        "prompt_file_sha256": sha256_of_file(prompts),
        **describe_environment(input_device(model)),
    }
    models = [model, drafter] if hasattr(drafter, "generation_config") else [model]
    with clean_stdout(as_json), neutral_generation(models, pad_token_id(model, tokenizer)):
        calls = plan_calls(
            model,
            drafter,
            [template.replace("{prompt}", texts[index]) for index in chosen],
            rule=verification,
            options=options,
            tokenizer=tokenizer,
            batch_size=batch_size,
            tasks=tasks,
            matched=matched,
            repeats=repeats,
            seed=seed,
            max_new_tokens=max_new_tokens,
            num_draft_tokens=num_draft_tokens,
            draft_temperature=draft_temperature,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        runs = _run(calls, Parts(out / "parts"), team, quiet)
    team.leave()
    if not team.is_first:
        return
    found = Diagnosis(DiagnosisSamples(calls.settings, runs), metadata)
    found.save(out)
    if as_json:
        figures = found.to_dict()
        del figures["runs"]  # every text
        print_json({"folder": str(out), **figures})
    elif not quiet:
        show(found, Console())


def _run(calls: Calls, parts: Parts, team: Team, quiet: bool) -> list[ArmRun]:
    """Make the calls that are missing, with a progress bar; all of them, in order."""

    def save(run: ArmRun, path: Path) -> None:
        write_json(path, asdict(run))

    with calls.own_randomness(), progress_of("calls", team, quiet) as on_part:
        paths = parts.complete(team, len(calls), calls.settings, calls.make, save, on_part, calls.warm_up)
    return [ArmRun.from_dict(read_json(path)) for path in paths] if team.is_first else []


def parse_options(given: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Parameters of a rule from NAME=VALUE; a value that is no JSON is a text.

    Raises:
        ValueError: naming the one that has another form, or that is given twice.
    """
    found: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not (name and equals and value) or name in found:
            raise ValueError(f"verification_option={item!r}: allowed is NAME=VALUE, each name once")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _check_template(template: str) -> None:
    if "{prompt}" not in template:
        raise ValueError(f"template={template!r} does not ask; allowed: a text with {{prompt}} in it")


def show(found: Diagnosis, console: Console) -> None:
    """Print the table of the ways of generating."""
    shown = Table("figure", *(ARM_LABELS[arm] for arm in found.arms), title=f"Diagnosis of {found.settings['rule']}")
    for figure in found.figures:
        shown.add_row(figure.label, *(str(found.table[arm][figure.name]) for arm in found.arms))
    console.print(shown)
    for name in ("tv", "tv_matched"):
        if name in found.laws:
            console.print(f"{name}: {found.laws[name].drafted} over drafted positions")
