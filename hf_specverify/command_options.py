"""Options that several commands have, so that the same thing has one name and one help everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

QUANTIZATION_HELP = "none, nf4 or int8 (bitsandbytes), int8-copy (CPU), +layers:N, +trim:N."

ANY_DRAFT_HELP = (
    "Draft model: Hub id or folder, or 'lookup', or 'early-exit:N', the target's first N layers, or 'head:' and the "
    "Hub id or folder of a feature head."
)


def _silence_bars(quiet: bool) -> bool:
    """Of loading, downloading and uploading; those of the commands are their own affair."""
    if quiet:
        from huggingface_hub.utils.tqdm import disable_progress_bars
        from transformers.utils import logging

        disable_progress_bars()
        logging.disable_progress_bar()
    return quiet


Target = Annotated[str, typer.Option(help="Target model: Hub id or folder.")]
Draft = Annotated[str, typer.Option(help="Draft model: Hub id or folder, or 'lookup'.")]
AnyDraft = Annotated[str, typer.Option(help=ANY_DRAFT_HELP)]
AnyDraftOrNone = Annotated[str | None, typer.Option(help=ANY_DRAFT_HELP)]
Companion = Annotated[
    str | None, typer.Option(help="Companion: Hub id or folder of a model, or 'head:' and those of a feature head.")
]
DTYPE_HELP = "float32, bfloat16 or float16; '+packed' behind it: weights are ordered for the processor (CPU)."
Dtype = Annotated[str, typer.Option(help=DTYPE_HELP)]
DraftQuantization = Annotated[
    str,
    typer.Option(help=f"{QUANTIZATION_HELP} Of early exit only none and none+trim:N; of lookup and heads only none."),
]
CompanionQuantization = Annotated[str, typer.Option(help=QUANTIZATION_HELP)]
TrimText = Annotated[
    str | None,
    typer.Option(help="Text (or .jsonl of prompts) that says which tokens +trim keeps: its most frequent ones."),
]
Prompts = Annotated[Path, typer.Option(help="Prompt file: .txt, one a line, or .jsonl (prompt, turns or question).")]
NumPrompts = Annotated[int, typer.Option(min=1, help="Prompts used, evenly spaced over the file.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Limit of new tokens per row.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows per call.")]
LookupNgram = Annotated[int, typer.Option(min=1, help="Longest n-gram that 'lookup' matches.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all random draws.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_silence_bars, help="No progress; and no tables of what is also written to a file."
    ),
]
