"""What a speculative run did: one record per step, and the report computed from the records.

Every term is defined, with its formula and a worked example, in ``docs/metrics.md``. The figures themselves are in
``work.py`` (tokens), ``rows.py`` (rows) and ``times.py`` (seconds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from .as_json import as_json, match_fields, read_step
from .plot import draw
from .rows import RowFigures
from .steps import MODES, StepRecord, check_seconds
from .text import table
from .times import FORWARD_PHASES, PHASES, TimeFigures

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.figure import Figure

__all__ = ["FORWARD_PHASES", "MODES", "PHASES", "SpeculationReport", "StepRecord"]

_SOURCES = ("verification", "lossless", "drafter", "layout", "schedule", "drift")


@dataclass(frozen=True)
class SpeculationReport(TimeFigures, RowFigures):
    """Acceptance, work and time of one ``generate`` call; built by :meth:`from_steps`.

    Terms are defined in ``docs/metrics.md``. Every rate and share lies in [0, 1]; a rate, mean or speed with an empty
    denominator is 0.0.

    Attributes:
        steps: the records, in order.
        seconds: wall seconds by phase; its keys are ``PHASES``, its values sum to the wall time of the call.
        verification, lossless: name of the verifier, and whether it keeps the target's law exactly.
        drafter, layout: what proposed the tokens, and how rows were laid out in the scoring forward.
        schedule: name of what chose how much to draft and to verify.
        drift: how much more of the drafts was accepted lately than the calibration predicts, a difference of
            probabilities; None without a calibration that follows the text.
    """

    schema_version: ClassVar[int] = 4

    verification: str
    lossless: bool
    drafter: str
    layout: str
    schedule: str = "fixed"
    drift: float | None = None

    @classmethod
    def from_steps(
        cls,
        steps: Sequence[StepRecord],
        *,
        seconds: Mapping[str, float],
        verification: str,
        lossless: bool,
        drafter: str,
        layout: str,
        schedule: str = "fixed",
        drift: float | None = None,
    ) -> SpeculationReport:
        """Build the report of a call from its steps: one per scoring forward, in order, prefill not among them.

        The other arguments are the attributes of the class; of ``seconds``, a phase that did not happen may be left
        out.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an unknown phase, negative or non-finite seconds, ``elapsed`` that runs backwards, or a drift
                that is not finite.
        """
        match_fields("seconds", seconds, optional=PHASES)
        for phase, value in seconds.items():
            check_seconds(f"seconds[{phase!r}]", value)
        for earlier, later in pairwise(steps):
            if later.elapsed < earlier.elapsed:
                raise ValueError(f"elapsed is {later.elapsed} after {earlier.elapsed}; it may not run backwards")
        by_phase = {phase: float(seconds.get(phase, 0.0)) for phase in PHASES}
        report = cls(tuple(steps), by_phase, verification, lossless, drafter, layout, schedule, drift)
        report._check_sources()
        return report

    def _check_sources(self) -> None:
        for name in _SOURCES[:-1]:
            kind, given = bool if name == "lossless" else str, getattr(self, name)
            if not isinstance(given, kind):
                raise TypeError(f"{name} is {given!r}; allowed is a {kind.__name__}")
        if self.drift is None:
            return
        if isinstance(self.drift, bool) or not isinstance(self.drift, (int, float)):
            raise TypeError(f"drift is {self.drift!r}; allowed are a float and None")
        if not isfinite(self.drift):
            raise ValueError(f"drift is {self.drift}; allowed are a finite number and None")

    def __str__(self) -> str:
        """A compact table in plain text."""
        return table(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything in the report, figures and steps, as JSON types; integer keys become strings."""
        data = {name: as_json(getattr(self, name)) for name in ("schema_version", *_SOURCES, "seconds", *_DERIVED)}
        return {**data, "steps": [as_json(asdict(step)) for step in self.steps]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpeculationReport:
        """Read what :meth:`to_dict` wrote; the figures are computed again and must agree.

        Raises:
            TypeError: a field has the wrong type.
            ValueError: another schema version, an unknown or missing field, or a figure that contradicts the steps.
        """
        if data.get("schema_version") != cls.schema_version:
            raise ValueError(f"schema_version is {data.get('schema_version')!r}; allowed is {cls.schema_version}")
        match_fields("report", data, ("schema_version", *_SOURCES, "seconds", "steps", *_DERIVED))
        match_fields("seconds", data["seconds"], PHASES)
        steps = [read_step(step) for step in data["steps"]]
        report = cls.from_steps(steps, seconds=data["seconds"], **{name: data[name] for name in _SOURCES})
        computed = report.to_dict()
        for name in _DERIVED:
            if data[name] != computed[name]:
                raise ValueError(f"{name} is {data[name]!r}; the steps give {computed[name]!r}")
        return report

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw six panels: acceptance, verify lengths, use of the scored tokens; rows, steps, the time split.

        Saves the figure at ``path`` if given; its suffix chooses the format. Raises ImportError without matplotlib.
        """
        figure = draw(self)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


# Every public figure is a cached property, so that a new one cannot be forgotten in to_dict.
_DERIVED = tuple(
    name
    for kind in reversed(SpeculationReport.__mro__)
    for name, member in vars(kind).items()
    if isinstance(member, cached_property) and not name.startswith("_")
)
