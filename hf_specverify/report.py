"""What a speculative run did: one record per step, and the report computed from the records.

Every term is defined, with its formula and a worked example, in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from math import fsum
from typing import TYPE_CHECKING, Any, ClassVar

from .steps import COUNTS, MODES, Positions, StepRecord, check_seconds

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORWARD_PHASES", "MODES", "PHASES", "SpeculationReport", "StepRecord"]

PHASES = ("draft", "companion", "schedule", "target", "verify", "other")
FORWARD_PHASES = ("draft", "companion", "target")

_SOURCES = ("verification", "lossless", "drafter", "layout")


@dataclass(frozen=True)
class SpeculationReport:
    """Acceptance, work and time of one ``generate`` call; built by :meth:`from_steps`.

    Terms are defined in ``docs/metrics.md``. Every rate and share lies in [0, 1]; a rate, mean or speed with an empty
    denominator is 0.0.

    Attributes:
        steps: the records, in order.
        seconds: wall seconds by phase; its keys are ``PHASES``, its values sum to the wall time of the call.
        verification, lossless: name of the verifier, and whether it keeps the target's law exactly.
        drafter, layout: what proposed the tokens, and how rows were laid out in the scoring forward.
    """

    schema_version: ClassVar[int] = 2

    steps: tuple[StepRecord, ...] = field(repr=False)
    seconds: dict[str, float]
    verification: str
    lossless: bool
    drafter: str
    layout: str

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
    ) -> SpeculationReport:
        """Build the report of a call from its steps: one per scoring forward, in order, prefill not among them.

        The other arguments are the attributes of the class; of ``seconds``, a phase that did not happen may be left
        out.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an unknown phase, negative or non-finite seconds, or ``elapsed`` that runs backwards.
        """
        _match_fields("seconds", seconds, optional=PHASES)
        for phase, value in seconds.items():
            check_seconds(f"seconds[{phase!r}]", value)
        for earlier, later in pairwise(steps):
            if later.elapsed < earlier.elapsed:
                raise ValueError(f"elapsed is {later.elapsed} after {earlier.elapsed}; it may not run backwards")
        by_phase = {phase: float(seconds.get(phase, 0.0)) for phase in PHASES}
        report = cls(tuple(steps), by_phase, verification, lossless, drafter, layout)
        for name in _SOURCES:
            kind, given = bool if name == "lossless" else str, getattr(report, name)
            if not isinstance(given, kind):
                raise TypeError(f"{name} is {given!r}; allowed is a {kind.__name__}")
        return report

    @cached_property
    def _positions(self) -> list[Positions]:
        rows = ((s.depths, s.accepted, s.committed) for s in self.steps)
        return [Positions.of(*counts) for row in rows for counts in zip(*row, strict=True)]

    @cached_property
    def drafted(self) -> int:
        """Tokens proposed, over all rows and steps."""
        return sum(sum(step.drafted) for step in self.steps)

    @cached_property
    def verified(self) -> int:
        """Draft tokens that the target scored, those behind a cut included."""
        return sum(sum(step.verified) for step in self.steps)

    @cached_property
    def accepted(self) -> int:
        """Draft tokens that stand in the output."""
        return sum(p.stands for p in self._positions)

    @cached_property
    def committed(self) -> int:
        """Tokens appended to the rows."""
        return sum(sum(step.committed) for step in self.steps)

    @cached_property
    def target_passes(self) -> int:
        """Scoring forwards of the target: steps. Prefill is not counted."""
        return len(self.steps)

    @cached_property
    def row_passes(self) -> int:
        """Rows scored, summed over steps."""
        return sum(len(step.rows) for step in self.steps)

    @cached_property
    def tokens_per_target_pass(self) -> float:
        """Tokens committed per row and scoring forward (block efficiency): ``committed / row_passes``."""
        return _ratio(self.committed, self.row_passes)

    @cached_property
    def acceptance_rate(self) -> float:
        """Share of the verified positions of a path, those not behind a cut, at which a draft token stands."""
        return _ratio(self.accepted, sum(p.counted for p in self._positions))

    @cached_property
    def acceptance_by_position(self) -> dict[str, list[float]]:
        """Acceptance at each position of the block, first position first.

        ``"conditional"``: given that all earlier positions were accepted. ``"unconditional"``: over all blocks that
        had the position verified and were not cut before it.
        """
        length = max((depth for step in self.steps for depth in step.depths), default=0)
        stands, observed, counted = (
            _reaching([getattr(p, kind) for p in self._positions], length) for kind in Positions._fields
        )
        return {
            "conditional": [_ratio(s, n) for s, n in zip(stands, observed, strict=True)],
            "unconditional": [_ratio(s, n) for s, n in zip(stands, counted, strict=True)],
        }

    @cached_property
    def verify_lengths(self) -> dict[int, int]:
        """How often each number of verified tokens occurred, over rows and steps."""
        return dict(sorted(Counter(n for step in self.steps for n in step.verified).items()))

    @cached_property
    def draft_lengths(self) -> dict[int, int]:
        """How often each number of drafted tokens occurred, over rows and steps."""
        return dict(sorted(Counter(n for step in self.steps for n in step.drafted).items()))

    @cached_property
    def mode_by_step(self) -> list[str]:
        """``"speculative"`` or ``"plain"`` for each step."""
        return [step.mode for step in self.steps]

    @cached_property
    def total_seconds(self) -> float:
        """Wall seconds of the call: the sum over phases."""
        return fsum(self.seconds.values())

    @cached_property
    def tokens_per_second(self) -> float:
        """Tokens committed per wall second, over all rows."""
        return _ratio(self.committed, self.total_seconds)

    @cached_property
    def time_outside_forwards(self) -> float:
        """Share of the wall time that no model forward accounts for: (schedule + verify + other) / total."""
        return _ratio(fsum(s for phase, s in self.seconds.items() if phase not in FORWARD_PHASES), self.total_seconds)

    @cached_property
    def time_to_first_token(self) -> float:
        """Seconds from the start of the call to the end of its first step; 0.0 without a step."""
        return self.steps[0].elapsed if self.steps else 0.0

    @cached_property
    def seconds_per_token(self) -> dict[int, float]:
        """For each row that got tokens: seconds from the start of the call to its last commit, per token."""
        tokens: Counter[int] = Counter()
        last: dict[int, float] = {}
        for step in self.steps:
            for row, committed in zip(step.rows, step.committed, strict=True):
                if committed:
                    tokens[row] += committed
                    last[row] = step.elapsed
        return {row: last[row] / tokens[row] for row in sorted(tokens)}

    def __str__(self) -> str:
        """A compact table in plain text."""
        return "\n".join(f"{name:<17}{text}" for name, text in _lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything in the report, figures and steps, as JSON types; integer keys become strings."""
        data = {name: _json(getattr(self, name)) for name in ("schema_version", *_SOURCES, "seconds", *_DERIVED)}
        return {**data, "steps": [_json(asdict(step)) for step in self.steps]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpeculationReport:
        """Read what :meth:`to_dict` wrote; the figures are computed again and must agree.

        Raises:
            TypeError: a field has the wrong type.
            ValueError: another schema version, an unknown or missing field, or a figure that contradicts the steps.
        """
        if data.get("schema_version") != cls.schema_version:
            raise ValueError(f"schema_version is {data.get('schema_version')!r}; allowed is {cls.schema_version}")
        _match_fields("report", data, ("schema_version", *_SOURCES, "seconds", "steps", *_DERIVED))
        _match_fields("seconds", data["seconds"], PHASES)
        steps = []
        for step in data["steps"]:
            _match_fields("step", step, [f.name for f in fields(StepRecord)])
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in step.items()}
            steps.append(StepRecord(**values))
        report = cls.from_steps(steps, seconds=data["seconds"], **{name: data[name] for name in _SOURCES})
        computed = report.to_dict()
        for name in _DERIVED:
            if data[name] != computed[name]:
                raise ValueError(f"{name} is {data[name]!r}; the steps give {computed[name]!r}")
        return report

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw acceptance by position, the histogram of verify lengths and the time split.

        Saves the figure at ``path`` if given; its suffix chooses the format. Raises ImportError without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
            from matplotlib.ticker import MaxNLocator
        except ImportError as error:
            raise ImportError("plot needs matplotlib: pip install 'hf_specverify[plot]'") from error
        figure = Figure(figsize=(13, 3.8), layout="constrained")
        acceptance, lengths, time = figure.subplots(1, 3)
        _plot_acceptance(acceptance, self.acceptance_by_position)
        lengths.bar_label(lengths.bar(list(self.verify_lengths), list(self.verify_lengths.values())), padding=2)
        lengths.set(title="Verify lengths", xlabel="draft tokens verified", ylabel="rows × steps")
        lengths.margins(y=0.12)
        _plot_seconds(time, self.seconds, self.total_seconds)
        for axes in (acceptance, lengths):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(f"{self.drafter}, {_verdict(self)} — {self.tokens_per_target_pass:.2f} tokens per target pass")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def _match_fields(where: str, data: object, required: Iterable[str] = (), optional: Iterable[str] = ()) -> None:
    if not isinstance(data, Mapping):
        raise TypeError(f"{where} is {data!r}; allowed is a mapping")
    unknown, missing = set(data) - {*required, *optional}, set(required) - set(data)
    for kind, names in (("unknown", unknown), ("missing", missing)):
        if names:
            raise ValueError(f"{where} has {kind} fields: {', '.join(sorted(map(str, names)))}")


# Every public figure is a cached property, so that a new one cannot be forgotten in to_dict.
_DERIVED = tuple(
    name
    for name, member in vars(SpeculationReport).items()
    if isinstance(member, cached_property) and not name.startswith("_")
)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json(inner) for key, inner in value.items()}
    return [_json(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _reaching(counts: Iterable[int], length: int) -> list[int]:
    """For each position below ``length``, how many of the counts exceed it."""
    of = Counter(counts)
    return [sum(times for count, times in of.items() if count > position) for position in range(length)]


def _verdict(report: SpeculationReport) -> str:
    return f"{report.verification} (lossless)" if report.lossless else f"LOSSY: {report.verification}"


def _lines(report: SpeculationReport) -> Iterable[tuple[str, str]]:
    """Name and text of each line of the printed table."""
    by_position = report.acceptance_by_position
    plain = report.mode_by_step.count("plain")
    yield "verification", _verdict(report)
    yield "drafter", f"{report.drafter}, {report.layout} layout"
    yield "tokens", ", ".join(f"{getattr(report, name)} {name}" for name in COUNTS)
    yield "target passes", f"{report.target_passes} ({plain} plain), {report.row_passes} row passes"
    yield "tokens per pass", f"{report.tokens_per_target_pass:.2f} per row"
    yield "acceptance rate", f"{report.acceptance_rate:.3f}"
    yield "  conditional", " ".join(f"{rate:.2f}" for rate in by_position["conditional"]) or "-"
    yield "  unconditional", " ".join(f"{rate:.2f}" for rate in by_position["unconditional"]) or "-"
    yield "verify lengths", ", ".join(f"{n}: {times}" for n, times in report.verify_lengths.items()) or "-"
    yield "speed", f"{report.tokens_per_second:.1f} tokens/s, first after {report.time_to_first_token:.3f} s"
    yield "time", f"{report.total_seconds:.3f} s, {report.time_outside_forwards:.1%} outside forwards"
    yield "  by phase", ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in report.seconds.items())


def _plot_acceptance(axes: Axes, by_position: Mapping[str, list[float]]) -> None:
    for (kind, rates), style in zip(by_position.items(), ("o-", "s--"), strict=True):
        # Nothing is known behind the first conditional rate of 0: no block got there.
        known = rates.index(0.0) + 1 if kind == "conditional" and 0.0 in rates else len(rates)
        axes.plot(range(1, known + 1), rates[:known], style, label=kind)
    axes.set(title="Acceptance by position", xlabel="position in the block", ylabel="share accepted", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend()


def _plot_seconds(axes: Axes, seconds: Mapping[str, float], total: float) -> None:
    colors = ["tab:blue" if phase in FORWARD_PHASES else "tab:orange" for phase in seconds]
    bars = axes.barh(list(seconds), list(seconds.values()), color=colors)
    axes.bar_label(bars, [f"{value:.3f} s, {_ratio(value, total):.0%}" for value in seconds.values()], padding=3)
    axes.invert_yaxis()
    axes.set(title="Time split (blue: model forwards)", xlabel="wall seconds")
    axes.set_xlim(0, 1.4 * max(seconds.values()) or 1)
