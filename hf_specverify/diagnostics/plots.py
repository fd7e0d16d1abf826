"""The plots of a report."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from .bootstrap import Estimate
from .report_tables import ARM_LABELS, LAW_LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .diagnosis import Diagnosis

SHIFTS = ("tv", "kl_law_target", "tv_matched")


def draw_plots(diagnosis: Diagnosis) -> dict[str, Figure]:
    """Figures by title: quality against speed, and, where laws were measured, their shift by entropy.

    Empty without matplotlib (`pip install 'hf_specverify[plot]'`).
    """
    if find_spec("matplotlib") is None:
        return {}
    plots = {"quality against speed": _quality_against_speed(diagnosis)}
    if diagnosis.by_entropy:
        plots["law shift by entropy of the target"] = _shift_by_entropy(diagnosis)
    return plots


def _quality_against_speed(diagnosis: Diagnosis) -> Figure:
    """One panel for each task score, and one for perplexity."""
    from matplotlib.figure import Figure

    qualities = [figure for figure in diagnosis.figures if figure.name.startswith("score_")]
    qualities += [figure for figure in diagnosis.figures if figure.name == "perplexity"]
    figure = Figure(figsize=(6 * len(qualities), 4.5), layout="constrained")
    panels = figure.subplots(1, len(qualities), squeeze=False).flat
    for axes, quality in zip(panels, qualities, strict=True):
        for arm in diagnosis.arms:
            _cross(axes, diagnosis.table[arm]["tokens_per_second"], diagnosis.table[arm][quality.name], ARM_LABELS[arm])
        axes.set(xlabel="tokens/s", ylabel=quality.label)
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def _cross(axes: Axes, speed: Estimate, quality: Estimate, label: str) -> None:
    """A point with both intervals."""
    if speed.value is None or quality.value is None:
        return
    axes.errorbar(
        [speed.value], [quality.value], xerr=_lengths(speed), yerr=_lengths(quality), fmt="o", capsize=3, label=label
    )


def _lengths(estimate: Estimate) -> list[list[float]] | None:
    """How far an interval reaches below and above the value; None where there is none."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return [[max(estimate.value - estimate.low, 0.0)], [max(estimate.high - estimate.value, 0.0)]]


def _shift_by_entropy(diagnosis: Diagnosis) -> Figure:
    """Mean shift at drafted positions by entropy, and how many positions there are."""
    from matplotlib.figure import Figure

    bins = diagnosis.by_entropy
    places = range(len(bins))
    figure = Figure(figsize=(8, 6), layout="constrained")
    shift, numbers = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for name in SHIFTS:
        found = [(place, part.means[name]) for place, part in zip(places, bins, strict=True) if name in part.means]
        points = [(place, mean, mean.value) for place, mean in found if mean.value is not None]
        if points:
            lengths = [_lengths(mean) or [[0.0], [0.0]] for _, mean, _ in points]
            reach = [[pair[side][0] for pair in lengths] for side in (0, 1)]
            values = [value for _, _, value in points]
            shift.errorbar(
                [place for place, _, _ in points], values, yerr=reach, fmt="o-", capsize=3, label=LAW_LABELS[name]
            )
    shift.set(ylabel="mean over drafted positions")
    shift.grid(alpha=0.3)
    shift.legend()
    numbers.bar(places, [part.positions for part in bins])
    labels = [f"{part.low:g}–{'∞' if part.high is None else f'{part.high:g}'}" for part in bins]
    numbers.set(xticks=places, xticklabels=labels, xlabel="entropy of p, nats", ylabel="positions")
    return figure
