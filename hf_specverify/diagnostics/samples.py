"""What a diagnosis has measured so far: the file that an interrupted one goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from ..report.as_json import match_fields
from ..report.json_files import read_json, write_json


@dataclass(frozen=True)
class SequenceSample:
    """One generated sequence.

    Attributes:
        prompt: number of its prompt, in the order given.
        tokens: new tokens, the end token included.
        ending: one of `text_metrics.ENDINGS`.
        log_likelihood: sum over its tokens, in nats, by the target's own logits (temperature 1, no processors).
        distinct_1, distinct_2, repetition: see `text_metrics`.
        seconds: of its call, shared evenly among the rows of the batch.
        passes, verified, accepted: see `steps.RowWork`; a plain sequence has one pass per token, and nothing verified.
        score, task: from 0 to 1, and the kind of score; None without a task.
        text: decoded, if there was a tokenizer.
        positions: by metric of `PositionReading`, one number per token, None where it is infinite; for the rule only.
    """

    prompt: int
    tokens: int
    ending: str
    log_likelihood: float
    distinct_1: float
    distinct_2: float
    repetition: float
    seconds: float
    passes: int
    verified: int
    accepted: int
    score: float | None = None
    task: str | None = None
    text: str | None = None
    positions: dict[str, list[float | None]] | None = None


@dataclass(frozen=True)
class ArmRun:
    """One call: a way of generating, a repetition, the number of the batch, and its sequences."""

    arm: str
    repeat: int
    batch: int
    sequences: list[SequenceSample]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ArmRun:
        """Read what `asdict` wrote.

        Raises:
            ValueError: naming fields that are unknown or missing.
        """
        match_fields("run", data, ("arm", "repeat", "batch", "sequences"))
        names = SequenceSample.__dataclass_fields__
        for sequence in data["sequences"]:
            match_fields("sequence", sequence, names)
        return cls(data["arm"], data["repeat"], data["batch"], [SequenceSample(**item) for item in data["sequences"]])


@dataclass
class DiagnosisSamples:
    """The calls made so far.

    Attributes:
        settings: what was asked for, as JSON values; compared when a run goes on.
        runs: in the order in which they were made.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    runs: list[ArmRun] = field(default_factory=list)

    def match(self, settings: Mapping[str, Any]) -> None:
        """Take the settings of a new run, or refuse them where this one was made with others.

        Raises:
            ValueError: naming the first setting that differs.
        """
        if not self.runs:
            self.settings = dict(settings)
        for name in sorted(self.settings.keys() | settings.keys()):
            before, now = self.settings.get(name), settings.get(name)
            if before != now:
                raise ValueError(
                    f"samples were made with {name}={before!r}, now it is {now!r}; allowed: the same, or new samples"
                )

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {"settings": self.settings, "runs": [asdict(run) for run in self.runs]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DiagnosisSamples:
        """Read what `to_dict` wrote.

        Raises:
            TypeError, ValueError: naming fields that are unknown or missing.
        """
        match_fields("samples", data, ("settings", "runs"))
        return cls(dict(data["settings"]), [ArmRun.from_dict(run) for run in data["runs"]])

    def save(self, path: Path) -> None:
        """Write them; the old file stays whole until the new one is."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> DiagnosisSamples:
        """Read what `save` wrote.

        Raises:
            ValueError: if the file is damaged or of another kind.
            FileNotFoundError: if there is none.
        """
        return cls.from_dict(read_json(path))


def short_numbers(values: list[float]) -> list[float | None]:
    """Numbers in six significant digits, whole ones as they are, None for infinite ones."""
    return [float(f"{value:.6g}") if isfinite(value) else None for value in values]
