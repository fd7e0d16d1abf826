"""A benchmark's figures for the eye."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rich.table import Table

from hf_specverify.benchmark.statistics import CellSummary, GroupSummary, Spread

T = TypeVar("T")

_COLUMNS: tuple[tuple[str, Callable[[CellSummary], str]], ...] = (
    ("tokens/s", lambda cell: f"{cell.tokens_per_second.median:.1f}"),
    ("× plain [min–max]", lambda cell: _ratio(cell.ratio_to_plain)),
    ("× stock, same L", lambda cell: _ratio(cell.ratio_to_stock)),
    ("first token ms", lambda cell: f"{1000 * cell.time_to_first_token.median:.0f}"),
    ("ms/token, p95", lambda cell: _per_token(cell)),
    ("tokens/pass", lambda cell: _shown(cell.tokens_per_target_pass, "{:.2f}".format)),
    ("accepted", lambda cell: _shown(cell.acceptance_rate, "{:.0%}".format)),
    ("outside forwards", lambda cell: _shown(cell.outside_forwards_share, "{:.1%}".format)),
    ("same as plain", lambda cell: _shown(cell.identical_share, "{:.0%}".format)),
    ("peak MB", lambda cell: _shown(cell.peak_memory_bytes, lambda size: f"{size / 2**20:.0f}")),
)


def table_of(group: GroupSummary) -> Table:
    """Return the table of one batch size and temperature; columns that no cell fills are left out."""
    decoding = "greedy" if group.temperature == 0 else f"temperature {group.temperature:g}"
    table = Table(title=f"batch {group.batch_size}, {decoding}, {group.blocks} blocks", title_justify="left")
    table.add_column("cell", no_wrap=True)
    columns = [(title, [show(cell) for cell in group.cells]) for title, show in _COLUMNS]
    filled = [(title, texts) for title, texts in columns if any(texts)]
    for title, _ in filled:
        table.add_column(title, justify="right")
    for row, cell in enumerate(group.cells):
        table.add_row(cell.cell, *(texts[row] for _, texts in filled))
    return table


def _ratio(ratio: Spread | None) -> str:
    return _shown(ratio, lambda r: f"{r.median:.2f} [{r.minimum:.2f}–{r.maximum:.2f}]")


def _per_token(cell: CellSummary) -> str:
    if cell.time_per_output_token is None or cell.time_per_output_token_p95 is None:
        return ""
    return f"{1000 * cell.time_per_output_token.median:.0f}, {1000 * cell.time_per_output_token_p95:.0f}"


def _shown(value: T | None, show: Callable[[T], str]) -> str:
    return "" if value is None else show(value)
