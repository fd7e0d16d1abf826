"""What commands print: progress on stderr, one JSON document on stdout."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress_bar(quiet: bool, speed_estimate_period: float = 30.0) -> Progress:
    """A bar on stderr, with counts and times; none where it is quiet.

    Args:
        quiet: show nothing.
        speed_estimate_period: seconds from which the remaining time is estimated.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
        speed_estimate_period=speed_estimate_period,
    )


@contextmanager
def clean_stdout(as_json: bool) -> Iterator[None]:
    """Send what libraries print while a command works to stderr, where stdout is for a JSON document."""
    if not as_json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def print_json(document: Any) -> None:
    """Print a document of JSON values; numbers that JSON does not have (nan, inf) are null."""
    print(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
