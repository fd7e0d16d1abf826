"""Where a calibration comes from: models, settings, data, and how good it is."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import metadata
from math import isfinite
from pathlib import PurePath
from shlex import join
from typing import Any

from . import records
from .figures import Figures
from .identity import ModelIdentity
from .records import Settings

ROLES = ("target", "draft", "companion")
SETTINGS = ("sampling", "drafting", "data", "versions")
_PACKAGES = ("hf_specverify", "torch", "transformers", "tokenizers", "bitsandbytes")


@dataclass(frozen=True)
class Origin:
    """Where a calibration comes from. What is None is not known, and is not checked.

    Attributes:
        target, draft, companion: the models.
        sampling: how tokens were chosen: do_sample, temperature, top_k, …
        drafting: the drafter and its settings.
        data: the prompts: name, revision or sha256, how many.
        figures: how good the table is.
        versions: of the libraries.
        command: the command line that made it.
        seed: of the random draws.
    """

    target: ModelIdentity | None = None
    draft: ModelIdentity | None = None
    companion: ModelIdentity | None = None
    sampling: Settings | None = None
    drafting: Settings | None = None
    data: Settings | None = None
    figures: Figures | None = None
    versions: Settings | None = None
    command: str | None = None
    seed: int | None = None

    @property
    def models(self) -> dict[str, ModelIdentity]:
        """The models that are known, by role."""
        found = {role: getattr(self, role) for role in ROLES}
        return {role: identity for role, identity in found.items() if identity is not None}

    def to_record(self) -> dict[str, Any]:
        """As JSON: every attribute, in order."""
        record = {name: getattr(self, name) for name in FIELDS}
        for name in (*ROLES, "figures"):
            if record[name] is not None:
                record[name] = record[name].to_record()
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Origin:
        """Read what `to_record` gave; other fields of the record are left alone.

        Raises:
            ValueError: naming the field.
        """
        models = {
            role: None if record[role] is None else ModelIdentity.from_record(role, record[role]) for role in ROLES
        }
        settings = {name: records.settings(name, record[name]) for name in SETTINGS}
        return cls(
            target=models["target"],
            draft=models["draft"],
            companion=models["companion"],
            sampling=settings["sampling"],
            drafting=settings["drafting"],
            data=settings["data"],
            versions=settings["versions"],
            figures=None if record["figures"] is None else Figures.from_record(record["figures"]),
            command=records.text("command", record["command"]),
            seed=None if record["seed"] is None else records.integer("seed", record["seed"]),
        )

    def common(self, other: Origin) -> Origin:
        """What both say."""
        differing = [name for name in FIELDS if getattr(self, name) != getattr(other, name)]
        return replace(self, **dict.fromkeys(differing))


FIELDS = tuple(field.name for field in fields(Origin))


def library_versions() -> Settings:
    """Versions of what takes part in a calibration; None for what is not installed."""
    return {**{name: _version(name) for name in _PACKAGES}, "python": platform.python_version()}


def plain_settings(options: Mapping[str, Any]) -> Settings:
    """Those of a call's options that are no containers or objects."""
    return {name: value for name, value in options.items() if records.KEY.fullmatch(name) and _is_plain(value)}


def command_line(arguments: Sequence[str]) -> str:
    """A command as text, with the names of files and folders in place of where they were on this machine."""
    return records.printable(join(["specverify", *(_placeless(argument) for argument in arguments)]))


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, bool | int) or records.is_text(value)


def _placeless(argument: str) -> str:
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    kind = "head:" if value.startswith("head:") else ""  # of a draft: "head:FOLDER"
    place = value.removeprefix(kind)
    path = PurePath(place)
    away = path.is_absolute() or place.startswith((".", "~"))
    return f"{option}{equals}{kind}{path.name if away else place}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
