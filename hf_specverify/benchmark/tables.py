"""A benchmark's figures for the eye."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rich import box
from rich.table import Table

from hf_specverify.benchmark.statistics import CellSummary, GroupSummary, Spread

T = TypeVar("T")

_COLUMNS: tuple[tuple[str, Callable[[CellSummary], str]], ...] = (
    ("tok\n/s", lambda cell: _three_digits(cell.tokens_per_second.median)),
    ("× plain\nmin–max", lambda cell: _ratio(cell.ratio_to_plain)),
    ("× stock\nmin–max", lambda cell: _ratio(cell.ratio_to_stock)),
    ("first\nms", lambda cell: _three_digits(1000 * cell.time_to_first_token.median)),
    ("ms/t\np95", lambda cell: _per_token(cell)),
    ("tok/\npass", lambda cell: _shown(cell.tokens_per_target_pass, "{:.2f}".format)),
    ("acc.", lambda cell: _shown(cell.acceptance_rate, "{:.0%}".format)),
    ("out-\nside", lambda cell: _shown(cell.outside_forwards_share, "{:.0%}".format)),
    ("same", lambda cell: _shown(cell.identical_share, "{:.0%}".format)),
    ("MB", lambda cell: _shown(cell.peak_memory_bytes, lambda size: _three_digits(size / 2**20))),
)
LEGEND = (
    "Medians. × plain, × stock: ratios of tokens/s within a block, stock at the same draft length. first: time to the "
    "first token. ms/t: time per output token over rows, median and 95th percentile. tok/pass: tokens per row and "
    "target pass. acc.: acceptance rate. outside: share of the time outside the models' forwards. same: rows with the "
    "tokens of plain. MB: largest growth of memory in a run."
)


def table_of(group: GroupSummary) -> Table:
    """Return the table of one batch size and temperature, for 80 columns; columns that no cell fills are left out."""
    decoding = "greedy" if group.temperature == 0 else f"temperature {group.temperature:g}"
    title = f"batch {group.batch_size}, {decoding}, blocks: {group.blocks}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("cell", no_wrap=True)
    columns = [(heading, [show(cell) for cell in group.cells]) for heading, show in _COLUMNS]
    filled = [(heading, texts) for heading, texts in columns if any(texts)]
    for heading, _ in filled:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, cell in enumerate(group.cells):
        table.add_row(cell.cell, *(texts[row] for _, texts in filled))
    return table


def _ratio(ratio: Spread | None) -> str:
    return _shown(ratio, lambda r: f"{r.median:.2f}\n{r.minimum:.2f}–{r.maximum:.2f}")


def _per_token(cell: CellSummary) -> str:
    if cell.time_per_output_token is None or cell.time_per_output_token_p95 is None:
        return ""
    figures = (cell.time_per_output_token.median, cell.time_per_output_token_p95)
    return "\n".join(_three_digits(1000 * seconds) for seconds in figures)


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def _shown(value: T | None, show: Callable[[T], str]) -> str:
    return "" if value is None else show(value)
