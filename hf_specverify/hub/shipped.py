"""Tables that come with the library, and how a name becomes a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .comparing import asks_companion, compare_models
from .names import RECORD, TENSORS

if TYPE_CHECKING:
    from ..scheduling.calibration import CalibrationTable

_PACKAGE = Path(__file__).parents[1]
PLACES = (_PACKAGE / "calibration_tables", _PACKAGE.parent / "calibration_tables")
"""In an installed package, and in the source tree."""


@dataclass(frozen=True, eq=False)
class ShippedTable:
    """A table that comes with the library; `name` is its folder's, such as "qwen2.5-coder-1.5b/chat"."""

    name: str
    folder: Path

    @property
    def table(self) -> CalibrationTable:
        """The table itself."""
        return read_table(self.folder)


def shipped_tables() -> tuple[ShippedTable, ...]:
    """All of them, by name."""
    place = next((place for place in PLACES if place.is_dir()), None)
    if place is None:
        return ()
    folders = sorted(path.parent for path in place.rglob(RECORD))
    return tuple(ShippedTable(folder.relative_to(place).as_posix(), folder) for folder in folders)


def find_table(
    name: str | PathLike[str], models: Mapping[str, Any], tokenizers: Mapping[str, Any] | None = None
) -> CalibrationTable:
    """The table in the folder that a name stands for; see `find_folder`."""
    return read_table(find_folder(name, models, tokenizers))


def find_folder(
    name: str | PathLike[str], models: Mapping[str, Any], tokenizers: Mapping[str, Any] | None = None
) -> Path:
    """The folder that a name stands for: itself, a shipped table's, or that of a repository in the Hub's cache.

    Args:
        name: a folder; else the whole name of a shipped table or its last part, such as "chat", of those which fit the
            models; else "user/repository" or "user/repository@revision".
        models: by role, those that its table is to be used with.
        tokenizers: theirs, where they are known.

    Raises:
        ValueError: if there is no such table, or the shipped ones of the name are of other models.
        OSError: if the Hub does not give it.
    """
    if Path(name).is_dir():
        return Path(name)
    text = str(name)
    called = [shipped for shipped in shipped_tables() if text in (shipped.name, shipped.name.rpartition("/")[2])]
    if called:
        return _fitting(text, called, models, tokenizers)
    if isinstance(name, str) and "/" in name:
        repository, _, revision = name.partition("@")
        return _of_hub(repository, revision or None)
    known = ", ".join(shipped.name for shipped in shipped_tables()) or "none yet"
    raise ValueError(
        f"calibration={text!r}: allowed are a CalibrationTable, a folder, user/name on the Hub, and a table that comes "
        f"with the library ({known})"
    )


def _fitting(
    name: str, called: list[ShippedTable], models: Mapping[str, Any], tokenizers: Mapping[str, Any] | None
) -> Path:
    """The one that fits; of several, one that asks the companion at hand, and fits without a warning."""
    fitting, reasons = [], []
    for shipped in called:
        try:
            noted = compare_models(shipped.table, models, tokenizers)
            fitting.append(((not asks_companion(shipped.table), len(noted)), shipped))
        except ValueError as error:
            reasons.append(f"{shipped.name}: {error}")
    if not fitting:
        raise ValueError(f"calibration={name!r}: none of that name is of these models: " + "; ".join(reasons))
    least = min(noted for noted, _ in fitting)
    best = [shipped for noted, shipped in fitting if noted == least]
    if len(best) > 1:
        names = ", ".join(repr(shipped.name) for shipped in best)
        raise ValueError(f"calibration={name!r} means several tables; allowed: {names}")
    return best[0].folder


def read_table(folder: Path) -> CalibrationTable:
    """The table in a folder; read once, and again where its files have changed.

    Raises:
        ValueError: if it is damaged.
    """
    files = [folder / name for name in (RECORD, TENSORS)]
    states = tuple((file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else None for file in files)
    return _read(folder.resolve(), states)


@lru_cache(maxsize=16)
def _read(folder: Path, states: tuple[tuple[int, int] | None, ...]) -> CalibrationTable:
    from ..scheduling.calibration import CalibrationTable

    return CalibrationTable.from_pretrained(folder)


@lru_cache(maxsize=16)
def _of_hub(repository: str, revision: str | None) -> Path:
    from .transfer import download

    return download(repository, revision)
