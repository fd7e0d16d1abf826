"""A picture of how far predictions can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from .quality import Reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_reliability(
    points: Reliability, names: Sequence[str], path: str | PathLike[str] | None = None, dpi: int = 150
) -> Figure:
    """Draw predicted against observed acceptance, and how many samples each bin has.

    Saves the figure at `path` if given; its suffix chooses the format. Raises ImportError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_reliability needs matplotlib: pip install 'hf_specverify[plot]'") from error
    figure = Figure(figsize=(5, 6), layout="constrained")
    curve, numbers = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    predicted = points.predicted.tolist()
    curve.plot([0, 1], [0, 1], ":", color="gray")
    curve.plot(predicted, points.observed.tolist(), "o-")
    curve.set(title=f"Acceptance by {', '.join(names)}", ylabel="observed", xlim=(0, 1), ylim=(0, 1))
    curve.grid(alpha=0.3)
    numbers.bar(predicted, points.number.tolist(), width=0.05)
    numbers.set(xlabel="predicted", ylabel="samples")
    if path is not None:
        figure.savefig(path, dpi=dpi)
    return figure
