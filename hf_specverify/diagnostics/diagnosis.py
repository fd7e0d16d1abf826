"""The result of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ..report.as_json import match_fields
from ..report.json_files import read_json, write_json
from .arms import RULE
from .bootstrap import Estimate, Ratio, compare, estimate
from .figures import FIGURES, Figure, score_figure
from .html_report import html_report
from .law_summary import EntropyBin, LawFigure, Positions, shift_by_entropy, summarise_laws
from .markdown_report import markdown_report
from .plots import draw_plots
from .samples import DiagnosisSamples, SequenceSample

_DERIVED = ("table", "comparisons", "laws", "by_entropy")


@dataclass
class Diagnosis:
    """What a lossy rule did, beside the target, the matched baseline and lossless speculation.

    All figures are computed from the samples. Intervals are bootstrap ones over prompts (`bootstrap`).

    Attributes:
        samples: every sequence, with the settings.
        metadata: the caller's.
    """

    samples: DiagnosisSamples
    metadata: dict[str, Any] = field(default_factory=dict)

    schema_version: ClassVar[int] = 1

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked for."""
        return self.samples.settings

    @property
    def arms(self) -> list[str]:
        """The ways of generating, in the order of the table."""
        return list(self.settings["arms"])

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return sum(self.settings["batch_sizes"])

    @property
    def figures(self) -> list[Figure]:
        """The rows of the table."""
        return [*(score_figure(task) for task in self.settings["tasks"]), *FIGURES]

    def sequences(self, arm: str) -> list[SequenceSample]:
        """The sequences of one way of generating."""
        return [sequence for run in self.samples.runs if run.arm == arm for sequence in run.sequences]

    @cached_property
    def _ratios(self) -> dict[str, dict[str, Ratio]]:
        return {
            arm: {figure.name: figure.ratio(self.sequences(arm), self.prompts) for figure in self.figures}
            for arm in self.arms
        }

    @cached_property
    def table(self) -> dict[str, dict[str, Estimate]]:
        """By way of generating and figure."""
        return {arm: {name: estimate(ratio) for name, ratio in ratios.items()} for arm, ratios in self._ratios.items()}

    @cached_property
    def comparisons(self) -> dict[str, dict[str, Estimate]]:
        """The rule less each other way, by figure, over the same prompts; for tokens per second the rule over it."""
        return {
            arm: {
                figure.name: compare(
                    self._ratios[RULE][figure.name], self._ratios[arm][figure.name], relative=figure.relative
                )
                for figure in self.figures
            }
            for arm in self.arms
            if arm != RULE
        }

    @cached_property
    def _positions(self) -> Positions | None:
        return Positions.of(self.sequences(RULE))

    @cached_property
    def laws(self) -> dict[str, LawFigure]:
        """By metric (`law_metrics`), over the positions of the rule's texts; empty where no laws were measured."""
        return {} if self._positions is None else summarise_laws(self._positions, self.prompts)

    @cached_property
    def by_entropy(self) -> list[EntropyBin]:
        """The same by the entropy of the target's law."""
        return [] if self._positions is None else shift_by_entropy(self._positions, self.prompts)

    def markdown(self, plots: Mapping[str, str] | None = None) -> str:
        """The report in Markdown.

        Args:
            plots: paths of pictures by title.
        """
        return markdown_report(self, plots or {})

    def html(self) -> str:
        """The report as one HTML page, with its plots inside where matplotlib is installed."""
        return html_report(self)

    def save(self, folder: str | Path) -> None:
        """Write `diagnosis.json`, `report.md`, `report.html`, and the plots where matplotlib is installed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "diagnosis.json", self.to_dict())
        paths = {}
        for name, figure in draw_plots(self).items():
            file = f"{name.replace(' ', '_')}.png"
            figure.savefig(folder / file, dpi=150)
            paths[name] = file
        (folder / "report.md").write_text(self.markdown(paths), encoding="utf-8")
        (folder / "report.html").write_text(self.html(), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Everything, figures included, as JSON values."""
        return {
            "schema_version": self.schema_version,
            "metadata": self.metadata,
            "table": {arm: _plain(row) for arm, row in self.table.items()},
            "comparisons": {arm: _plain(row) for arm, row in self.comparisons.items()},
            "laws": _plain(self.laws),
            "by_entropy": [asdict(part) for part in self.by_entropy],
            **self.samples.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnosis:
        """Read what `to_dict` wrote; the figures are computed again.

        Raises:
            ValueError: another schema version, or fields that are unknown or missing.
        """
        if data.get("schema_version") != cls.schema_version:
            raise ValueError(f"schema_version is {data.get('schema_version')!r}; allowed is {cls.schema_version}")
        match_fields("diagnosis", data, ("schema_version", "metadata", "settings", "runs", *_DERIVED))
        samples = DiagnosisSamples.from_dict({name: data[name] for name in ("settings", "runs")})
        return cls(samples, dict(data["metadata"]))

    @classmethod
    def load(cls, path: str | Path) -> Diagnosis:
        """Read a `diagnosis.json`.

        Raises:
            ValueError: as `from_dict`, or if the file is damaged.
            FileNotFoundError: if there is none.
        """
        return cls.from_dict(read_json(Path(path)))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(value) for name, value in values.items()}
