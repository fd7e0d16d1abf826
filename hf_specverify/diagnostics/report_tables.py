"""The tables of a report, as rows of cells; Markdown and HTML show the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arms import RULE
from .bootstrap import DRAWS, LEVEL
from .law_summary import LawFigure

if TYPE_CHECKING:
    from .diagnosis import Diagnosis

LAW_LABELS = {
    "tv": "TV(law, p)",
    "kl_target_law": "KL(p‖law), nats",
    "kl_law_target": "KL(law‖p), nats",
    "overshoot": "overshoot mass Σ(law − p)₊",
    "max_ratio": "max law/p",
    "tv_matched": "TV(law, matched)",
    "kl_matched_law": "KL(matched‖law), nats",
    "kl_law_matched": "KL(law‖matched), nats",
}
ARM_LABELS = {"target": "target", "matched": "matched baseline", "lossless": "lossless speculation", "rule": "rule"}


@dataclass(frozen=True)
class Table:
    """A table: its title, what has to be known to read it, the head and the rows, all text."""

    title: str
    note: str
    head: list[str]
    rows: list[list[str]]


def tables(diagnosis: Diagnosis) -> list[Table]:
    """All tables of a report; the law's are left out where no laws were measured."""
    found = [_settings(diagnosis), _arms(diagnosis), _comparisons(diagnosis)]
    return [*found, _laws(diagnosis), _entropy(diagnosis)] if diagnosis.laws else found


def title(diagnosis: Diagnosis) -> str:
    """The heading of a report."""
    return f"Diagnosis of {diagnosis.settings['rule']}"


def _settings(diagnosis: Diagnosis) -> Table:
    settings = diagnosis.settings
    shown = ("target", "draft", "rule", "num_draft_tokens", "draft_temperature", "max_new_tokens", "options", "seed")
    rows = [[name, str(settings[name])] for name in shown if settings[name] is not None]
    rows += [["prompts", f"{diagnosis.prompts}, {settings['repeats']} answers to each"]]
    rows += [[name, str(value)] for name, value in diagnosis.metadata.items() if value is not None]
    return Table("What ran", "", ["setting", "value"], rows)


def _arms(diagnosis: Diagnosis) -> Table:
    note = (
        f"In brackets {LEVEL:.0%} intervals: bootstrap over prompts, {DRAWS} draws. Perplexity: of all tokens, by the "
        "target's own logits at temperature 1, whatever was sampled from. Seconds of a call are shared among its rows."
    )
    names = [(figure.name, figure.label) for figure in diagnosis.figures]
    rows = [[label, *(str(diagnosis.table[arm][name]) for arm in diagnosis.arms)] for name, label in names]
    return Table("Quality and speed", note, ["figure", *(ARM_LABELS[arm] for arm in diagnosis.arms)], rows)


def _comparisons(diagnosis: Diagnosis) -> Table:
    note = (
        "The rule's figure less the other's, prompts paired; for tokens/s the rule's over the other's. An interval "
        "without 0 (for tokens/s without 1) is a difference that the choice of prompts does not explain."
    )
    arms = [arm for arm in diagnosis.arms if arm != RULE]
    labels = [(figure.name, figure.label + (" (ratio)" if figure.relative else "")) for figure in diagnosis.figures]
    rows = [[label, *(str(diagnosis.comparisons[arm][name]) for arm in arms)] for name, label in labels]
    return Table("The rule against the others", note, ["figure", *(f"rule − {ARM_LABELS[arm]}" for arm in arms)], rows)


def _laws(diagnosis: Diagnosis) -> Table:
    note = (
        "Laws at the positions of the rule's texts, read again by target and draft. Means leave out positions at which "
        "the figure is infinite (one law excludes what the other allows)."
    )
    head = ["figure", "mean, drafted positions", "mean, all positions", "median", "95 %", "largest", "infinite"]
    rows = [[LAW_LABELS[name], *_law_cells(figure)] for name, figure in diagnosis.laws.items()]
    return Table("What the rule does to the law", note, head, rows)


def _law_cells(figure: LawFigure) -> list[str]:
    levels = ["∞" if level is None else f"{level:.4g}" for level in (figure.median, figure.high, figure.largest)]
    return [str(figure.drafted), str(figure.all), *levels, f"{figure.infinite:.1%}"]


def _entropy(diagnosis: Diagnosis) -> Table:
    names = [name for name in LAW_LABELS if name in diagnosis.by_entropy[0].means] if diagnosis.by_entropy else []
    rows = [
        [
            f"{part.low:g} … {'∞' if part.high is None else f'{part.high:g}'}",
            str(part.positions),
            *(str(part.means[name]) for name in names),
        ]
        for part in diagnosis.by_entropy
    ]
    head = ["entropy of p, nats", "drafted positions", *(LAW_LABELS[name] for name in names)]
    return Table("The same by the entropy of the target's law", "Means over drafted positions.", head, rows)
