"""The result of a benchmark as one JSON file, which is also what a resumed benchmark starts from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_specverify.benchmark.records import RunRecord
from hf_specverify.benchmark.settings import BenchSettings
from hf_specverify.benchmark.summary import GroupSummary, summarise

SCHEMA_VERSION = 2


class ResumeError(ValueError):
    """A benchmark cannot continue a file, because it would run something else or elsewhere."""


@dataclass
class BenchResult:
    """All runs of a benchmark and everything needed to judge them.

    Attributes:
        settings: what was asked for.
        environment: versions and machine (`describe_environment`).
        prompts: "indices" of the selected prompts in the list given, "sha256" of their texts, and, where a file was
            read, "file" (its name) and "file_sha256".
        sampling: "policy" in words, and "neutralised": fields of the models' generation configs that were overruled.
        command_line: as typed; empty when called from Python.
        complete: whether every run is there.
        runs: in the order in which they ran.
    """

    settings: BenchSettings
    environment: dict[str, Any]
    prompts: dict[str, Any]
    sampling: dict[str, Any]
    command_line: str = ""
    complete: bool = False
    runs: list[RunRecord] = field(default_factory=list)

    def summary(self) -> list[GroupSummary]:
        """Return the figures per batch size and temperature."""
        return summarise(self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, the summary included, as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "settings": self.settings.to_dict(),
            "environment": self.environment,
            "prompts": self.prompts,
            "sampling": self.sampling,
            "command_line": self.command_line,
            "complete": self.complete,
            "summary": [asdict(group) for group in self.summary()],
            "runs": [run.to_dict() for run in self.runs],
        }

    def save(self, path: str | Path) -> None:
        """Write the file; the old one stays whole until the new one is."""
        path = Path(path)
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: str | Path) -> BenchResult:
        """Read a file written by `save`; its summary is computed anew.

        Raises:
            ValueError: no JSON, or another schema version.
            FileNotFoundError: no such file.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON ({error}); allowed: a file written by this benchmark") from None
        version = fields.get("schema_version") if isinstance(fields, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"{path} has schema_version={version!r}; allowed: {SCHEMA_VERSION}")
        return cls(
            settings=BenchSettings.from_dict(fields["settings"]),
            environment=fields["environment"],
            prompts=fields["prompts"],
            sampling=fields["sampling"],
            command_line=fields["command_line"],
            complete=fields["complete"],
            runs=[RunRecord.from_dict(run) for run in fields["runs"]],
        )

    def continue_from(self, previous: BenchResult) -> None:
        """Take over the runs of an earlier, interrupted benchmark.

        Raises:
            ResumeError: it ran something else or elsewhere; the first field that differs is named.
        """
        check_same("settings", previous.settings.to_dict(), self.settings.to_dict())
        check_same("environment", previous.environment, self.environment)
        check_same("prompts", previous.prompts, self.prompts)
        check_same("sampling", previous.sampling, self.sampling)
        self.runs = list(previous.runs)


def check_same(section: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a ResumeError that names the first field of a section that has changed."""
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise ResumeError(
                f"cannot resume: {section}.{name} was {before.get(name)!r} and is {now.get(name)!r} now; "
                "allowed: the same value as in the file"
            )
