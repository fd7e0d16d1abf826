"""Medians, spreads and paired ratios over runs, and the tables that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from rich import box
from rich.table import Table

from hf_specverify.benchmark.records import RunRecord
from hf_specverify.benchmark.settings import OURS, PLAIN, STOCK


@dataclass(frozen=True)
class Spread:
    """Median, quartiles, extremes and number of some values."""

    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise values (at least one); quantiles are linearly interpolated.

        Raises:
            ValueError: no value.
        """
        if not values:
            raise ValueError("values is empty; allowed: at least one value")
        low, lower, median, upper, high = (float(v) for v in np.quantile(values, (0, 0.25, 0.5, 0.75, 1)))
        return cls(median, lower, upper, low, high, len(values))


@dataclass(frozen=True)
class CellSummary:
    """Figures of one cell at one batch size and temperature.

    Attributes:
        cell, method, draft_length: what ran.
        tokens_per_second: over runs.
        ratio_to_plain: tokens per second over those of plain in the same block; None for plain.
        expected_ratio_to_plain: the same with the seconds that the forwards should take by the costs that were given,
            so without the noise of the clock; None without costs, for trees, plain and stock.
        ratio_to_stock: the same over stock at the same draft length; None where there is no stock, or not ours.
        time_to_first_token: seconds, over rows.
        time_per_output_token: seconds, over rows; None if every row had a single token.
        time_per_output_token_p95: its 95th percentile.
        identical_share: share of rows with the tokens of plain; greedy only.
        tokens_per_target_pass, acceptance_rate: medians over runs; ours only.
        outside_forwards_share: median over runs of the share of the wall time outside the models' forwards; ours only.
        seconds: medians over runs by phase; ours only.
        peak_memory_bytes: largest growth of any run; None unless memory was profiled.
    """

    cell: str
    method: str
    draft_length: int | None
    tokens_per_second: Spread
    ratio_to_plain: Spread | None
    ratio_to_stock: Spread | None
    time_to_first_token: Spread
    time_per_output_token: Spread | None
    time_per_output_token_p95: float | None
    identical_share: float | None
    tokens_per_target_pass: float | None
    acceptance_rate: float | None
    outside_forwards_share: float | None
    seconds: dict[str, float] | None
    peak_memory_bytes: int | None
    expected_ratio_to_plain: Spread | None = None


@dataclass(frozen=True)
class GroupSummary:
    """All cells at one batch size and temperature."""

    batch_size: int
    temperature: float
    blocks: int
    cells: tuple[CellSummary, ...]


def summarise(runs: Sequence[RunRecord]) -> list[GroupSummary]:
    """Summarise runs per batch size and temperature, in order of first appearance."""
    groups = dict.fromkeys((run.batch_size, run.temperature) for run in runs)
    return [_summarise_group([run for run in runs if (run.batch_size, run.temperature) == key]) for key in groups]


def paired_ratios(
    runs: Iterable[RunRecord],
    cell: str,
    baseline: str,
    speed: Callable[[RunRecord], float | None] = lambda run: run.tokens_per_second,
) -> list[float]:
    """Return tokens per second of a cell over those of another, once per block in which both ran and have a speed."""
    speeds: dict[str, dict[tuple[int, float, int, int], float]] = {cell: {}, baseline: {}}
    for run in runs:
        value = speed(run) if run.cell in speeds else None
        if value is not None:
            speeds[run.cell][run.block_key] = value
    common = (key for key in speeds[cell] if key in speeds[baseline])
    return [speeds[cell][key] / speeds[baseline][key] for key in common]


def expected_speed(run: RunRecord) -> float | None:
    """Tokens per second by the costs; None where they say nothing."""
    return sum(run.new_tokens) / run.expected_seconds if run.expected_seconds else None


def _summarise_group(runs: Sequence[RunRecord]) -> GroupSummary:
    order = sorted({(run.method, run.draft_length or 0, run.cell) for run in runs}, key=_cell_rank)
    cells = tuple(_summarise_cell(runs, name) for _, _, name in order)
    return GroupSummary(runs[0].batch_size, runs[0].temperature, len({run.block_key for run in runs}), cells)


def _cell_rank(cell: tuple[str, int, str]) -> tuple[int, int]:
    method, draft_length, _ = cell
    return ((PLAIN, STOCK, OURS).index(method), draft_length)


def _summarise_cell(group: Sequence[RunRecord], cell: str) -> CellSummary:
    runs = [run for run in group if run.cell == cell]
    method, draft_length = runs[0].method, runs[0].draft_length
    per_token = [value for run in runs for value in run.time_per_output_token if value is not None]
    identical = [same for run in runs for same in run.identical_to_plain or ()]
    figures = [run.speculation for run in runs if run.speculation is not None]
    peaks = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes is not None]
    return CellSummary(
        cell=cell,
        method=method,
        draft_length=draft_length,
        tokens_per_second=Spread.of([run.tokens_per_second for run in runs]),
        ratio_to_plain=_optional_spread(paired_ratios(group, cell, PLAIN) if method != PLAIN else []),
        ratio_to_stock=_optional_spread(
            paired_ratios(group, cell, f"{STOCK} L={draft_length}") if method == OURS else []
        ),
        time_to_first_token=Spread.of([value for run in runs for value in run.time_to_first_token]),
        time_per_output_token=_optional_spread(per_token),
        time_per_output_token_p95=float(np.quantile(per_token, 0.95)) if per_token else None,
        identical_share=float(np.mean(identical)) if identical else None,
        tokens_per_target_pass=_median(figure.tokens_per_target_pass for figure in figures),
        acceptance_rate=_median(figure.acceptance_rate for figure in figures),
        outside_forwards_share=_median(
            run.speculation.seconds_outside_forwards / run.wall_seconds for run in runs if run.speculation is not None
        ),
        seconds={phase: float(np.median([f.seconds[phase] for f in figures])) for phase in figures[0].seconds}
        if figures
        else None,
        peak_memory_bytes=max(peaks, default=None),
        expected_ratio_to_plain=_optional_spread(
            paired_ratios(group, cell, PLAIN, expected_speed) if method == OURS else []
        ),
    )


def _optional_spread(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None


def _median(values: Iterable[float]) -> float | None:
    collected = list(values)
    return float(np.median(collected)) if collected else None


T = TypeVar("T")

_COLUMNS: tuple[tuple[str, Callable[[CellSummary], str]], ...] = (
    ("tok\n/s", lambda cell: _three_digits(cell.tokens_per_second.median)),
    ("× plain\nmin–max", lambda cell: _ratio(cell.ratio_to_plain)),
    ("by\ncost", lambda cell: _shown(cell.expected_ratio_to_plain, lambda ratio: f"{ratio.median:.2f}")),
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
    "Medians. × plain, × stock: ratios of tokens/s within a block, stock at the same draft length. by cost: × plain "
    "as the costs that were given have it. first: time to the first token. ms/t: time per output token over rows, "
    "median and 95th percentile. tok/pass: tokens per row and target pass. acc.: acceptance rate. outside: share of "
    "the time outside the models' forwards. same: rows with the tokens of plain. MB: largest growth of memory in a run."
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
