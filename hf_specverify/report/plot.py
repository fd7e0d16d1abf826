"""The report as a figure of six panels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .text import verdict
from .times import FORWARD_PHASES
from .work import ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .report import SpeculationReport


def draw(report: SpeculationReport) -> Figure:
    """Acceptance, verify lengths, use of the scored tokens; rows, steps, time.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'hf_specverify[plot]'") from error
    figure = Figure(figsize=(13, 7.4), layout="constrained")
    acceptance, lengths, use, rows, steps, time = figure.subplots(2, 3).flat
    _plot_acceptance(acceptance, report)
    _plot_lengths(lengths, report)
    _plot_use(use, report)
    _plot_rows(rows, report)
    _plot_steps(steps, report)
    _plot_seconds(time, report)
    for axes in (acceptance, lengths, rows):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tokens = f"{report.tokens_per_target_pass:.2f} tokens per target pass"
    figure.suptitle(f"{report.drafter}, {verdict(report)}, schedule {report.schedule} — {tokens}")
    return figure


def _plot_acceptance(axes: Axes, report: SpeculationReport) -> None:
    for (kind, rates), style in zip(report.acceptance_by_position.items(), ("o-", "s--"), strict=True):
        # Nothing is known behind the first conditional rate of 0: no block got there.
        known = rates.index(0.0) + 1 if kind == "conditional" and 0.0 in rates else len(rates)
        axes.plot(range(1, known + 1), rates[:known], style, label=kind)
    axes.set(title="Acceptance by position", xlabel="position in the block", ylabel="share accepted", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend()


def _plot_lengths(axes: Axes, report: SpeculationReport) -> None:
    bars = axes.bar(list(report.verify_lengths), list(report.verify_lengths.values()))
    axes.bar_label(bars, padding=2)
    axes.set(title="Verify lengths", xlabel="draft tokens verified", ylabel="rows × steps")
    axes.margins(y=0.12)


def _plot_use(axes: Axes, report: SpeculationReport) -> None:
    """What became of all tokens that the target scored: they add up to verified + row_passes."""
    scored = {
        "roots": report.row_passes,
        "accepted": report.verified - report.rejected,
        "rejected": report.rejected,
    }
    total = sum(scored.values())
    bars = axes.barh(list(scored), list(scored.values()), color=["tab:gray", "tab:blue", "tab:orange"])
    axes.bar_label(bars, [f"{count}, {ratio(count, total):.0%}" for count in scored.values()], padding=3)
    axes.invert_yaxis()
    axes.set(title="Tokens that the target scored", xlabel="tokens")
    axes.set_xlim(0, 1.4 * max(scored.values()) or 1)


def _plot_rows(axes: Axes, report: SpeculationReport) -> None:
    worst = report.mean_verified_worst_rows
    axes.bar(list(report.verified_by_row), list(report.verified_by_row.values()))
    axes.axhline(worst, color="tab:orange", linestyle="--", label=f"lowest tenth: {worst:.2f}")
    axes.set(title="Verified per pass, by row", xlabel="row", ylabel="draft tokens")
    axes.legend()


def _plot_steps(axes: Axes, report: SpeculationReport) -> None:
    """Steps by what the schedule chose, or by mode where it names nothing."""
    counts = dict(Counter(step.choice or step.mode for step in report.steps).most_common())
    slower = report.slower_than_plain
    axes.bar_label(axes.barh(list(counts), list(counts.values())), padding=3)
    axes.invert_yaxis()
    compared = "" if slower is None else f" (speculative: {slower:.0%} slower than plain)"
    axes.set(title=f"Steps{compared}", xlabel="steps")
    axes.margins(x=0.12)


def _plot_seconds(axes: Axes, report: SpeculationReport) -> None:
    seconds = report.seconds
    colors = ["tab:blue" if phase in FORWARD_PHASES else "tab:orange" for phase in seconds]
    bars = axes.barh(list(seconds), list(seconds.values()), color=colors)
    shares = [f"{value:.3f} s, {ratio(value, report.total_seconds):.0%}" for value in seconds.values()]
    axes.bar_label(bars, shares, padding=3)
    axes.invert_yaxis()
    axes.set(title="Time split (blue: model forwards)", xlabel="wall seconds")
    axes.set_xlim(0, 1.4 * max(seconds.values()) or 1)
