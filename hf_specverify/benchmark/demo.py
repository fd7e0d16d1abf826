"""`specverify demo`: real prompts answered by plain generation, by Transformers' assisted decoding, and by ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoTokenizer, TextStreamer
from transformers.utils import logging as transformers_logging

import hf_specverify as sv
from hf_specverify.benchmark import demo_tables
from hf_specverify.benchmark.demo_models import REPO_ID, smollm2_folder
from hf_specverify.benchmark.demo_prompts import BUILT_IN, STREAMED, PromptGroup
from hf_specverify.benchmark.demo_runs import DemoModels, WayResult, cells, measure
from hf_specverify.benchmark.drafts import LOOKUP, LOOKUP_NGRAM, exit_layers, head_name, load_draft
from hf_specverify.benchmark.environment import (
    PACKED,
    default_device,
    describe_environment,
    load_model,
    parse_dtype,
)
from hf_specverify.benchmark.prompts import read_prompts
from hf_specverify.benchmark.runs import neutral_generation, pad_token_id
from hf_specverify.packing import packed_dtypes


def usual_dtype() -> str:
    """The demo's dtype where none is asked for: float32, packed where it runs on a CPU that has ordered products."""
    packs = default_device().type == "cpu" and torch.float32 in packed_dtypes()
    return "float32" + PACKED * packs


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demo.

    Attributes:
        target: Hub id or folder; None is SmolLM2-135M-Instruct, brought here first if need be.
        draft: Hub id or folder of the draft model, "lookup" for prompt lookup, or "head:" and the Hub id or folder of
            a feature head, in place of which stock assisted decoding has prompt lookup.
        prompts: file of prompts; None is the demo's own.
        batch_size: rows per call of `generate`, for plain generation and ours.
        temperature: 0 is greedy; any other samples from the whole vocabulary.
        max_new_tokens: limit of new tokens per answer.
        num_draft_tokens: draft tokens per step. Few, for on a CPU a batch of four makes every scored token cost.
        repeats: counted runs of every way.
        dtype: of the weights. float32, so that the answers can be compared token for token: in half precision block
            and single-token forwards round differently and near-ties fall either way.

    Raises:
        ValueError: a number out of range, another dtype, or a draft that the demo can't measure.
    """

    target: str | None = None
    draft: str = LOOKUP
    prompts: Path | None = None
    batch_size: int = 4
    temperature: float = 0.0
    max_new_tokens: int = 96
    num_draft_tokens: int = 3
    repeats: int = 3
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_new_tokens", "num_draft_tokens", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; allowed: an integer >= 1")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}; allowed: 0 (greedy) or a positive number")
        parse_dtype(self.dtype)
        if exit_layers(self.draft) is not None:  # stock drafts in the target's own forward, where passes are counted
            raise ValueError(f"draft={self.draft!r}; allowed: a draft model, 'lookup' or 'head:FOLDER'")
        head_name(self.draft)

    @property
    def greedy(self) -> bool:
        """Whether answers are greedy."""
        return self.temperature == 0

    def groups(self) -> tuple[PromptGroup, ...]:
        """Return the prompts to answer; raises ValueError or OSError where the file is not usable."""
        if self.prompts is None:
            return BUILT_IN
        return (PromptGroup.from_file(self.prompts.name, read_prompts(self.prompts)),)

    def generate_options(self) -> dict[str, Any]:
        """Return the arguments of `generate` that are the same in every way."""
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "do_sample": not self.greedy}
        return options if self.greedy else {**options, "temperature": self.temperature, "top_k": 0}


def run_demo(options: DemoOptions, out: Console, err: Console, *, stream: bool = True) -> dict[str, Any]:
    """Run the demo and return its results as JSON values.

    Args:
        options: what to run.
        out: gets the streamed answer and the tables; nothing where it is quiet.
        err: gets the progress bars; nothing where it is quiet.
        stream: show one answer as it comes, unless `out` is quiet.

    Raises:
        ValueError, OSError: a model or a prompt file is not usable; the message says which.
    """
    transformers_logging.set_verbosity_error()
    if err.quiet:
        transformers_logging.disable_progress_bar()
    groups = options.groups()
    source = options.target or str(smollm2_folder(progress=not err.quiet))
    models = _load(source, options)
    environment = describe_environment(models.target.device)
    name = Path(options.target or REPO_ID).name
    out.print(f"[bold]{name}[/] in {options.dtype} on {environment['device']}, {environment['threads']} threads")
    out.print(f"draft: {_draft_name(options)}, {options.num_draft_tokens} tokens per step")
    loaded = [model for model in (models.target, models.draft) if hasattr(model, "generation_config")]
    with neutral_generation(loaded, pad_token_id(models.target, models.tokenizer)):
        if stream and not out.quiet:
            _stream(models, options, STREAMED if options.prompts is None else groups[0].prompts[0], out)
        results = _measure(models, options, groups, err)
    for group, ways in zip(groups, results, strict=True):
        out.print()
        out.print(demo_tables.group_table(group, ways, greedy=options.greedy))
    for note in demo_tables.notes(groups, results, greedy=options.greedy, dtype=options.dtype):
        out.print(note, style="dim")
    return {
        "source": source,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()},
        "environment": environment,
        "groups": [
            demo_tables.group_values(group, ways, options.greedy, models.tokenizer)
            for group, ways in zip(groups, results, strict=True)
        ],
    }


def _load(source: str, options: DemoOptions) -> DemoModels:
    target, draft = load_model(source, options.dtype), LOOKUP
    if options.draft != LOOKUP:
        draft = load_draft(options.draft, target, options.dtype, target_name=source)
    return DemoModels(target, draft, AutoTokenizer.from_pretrained(source))


def _draft_name(options: DemoOptions) -> str:
    return "prompt lookup" if options.draft == LOOKUP else Path(head_name(options.draft) or options.draft).name


def _stream(models: DemoModels, options: DemoOptions, prompt: str, out: Console) -> None:
    """Show one answer as it comes, a block at a time."""
    lookup = sv.PromptLookup(max_matching_ngram_size=LOOKUP_NGRAM)
    drafter = lookup if options.draft == LOOKUP else models.draft
    out.print("\n[bold]Prompt[/]")
    out.print(prompt, style="cyan", markup=False, highlight=False)
    out.print("\n[bold]Answer[/], as it comes")
    with sv.enabled(models.target):
        output = models.target.generate(
            **models.inputs([prompt]),
            assistant_model=drafter,
            num_draft_tokens=options.num_draft_tokens,
            streamer=TextStreamer(models.tokenizer, skip_prompt=True, skip_special_tokens=True),
            return_dict_in_generate=True,
            **options.generate_options(),
        )
    report = output.speculation
    out.print(f"{report.committed} tokens in {report.target_passes} forwards of the target", style="dim")


def _measure(
    models: DemoModels, options: DemoOptions, groups: Sequence[PromptGroup], err: Console
) -> list[list[WayResult]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=err.quiet) as bar:
        runs = len(groups) * len(cells(options.num_draft_tokens)) * options.repeats
        task = bar.add_task("measuring, three ways in turn", total=runs)
        return [
            measure(
                models,
                group.prompts,
                batch_size=options.batch_size,
                num_draft_tokens=options.num_draft_tokens,
                repeats=options.repeats,
                options=options.generate_options(),
                on_run=lambda: bar.advance(task),
            )
            for group in groups
        ]
