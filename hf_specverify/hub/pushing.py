"""A folder with a calibration to the Hub: checked, completed, and without what else lies there."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from ..scheduling.calibration import CalibrationTable
from ..scheduling.cost import CostModel
from .artefact import write_artefact
from .names import CARD, COSTS, RECORD
from .transfer import upload


def push_folder(folder: Path, repo_id: str, *, private: bool | None = None, revision: str | None = None) -> str:
    """Upload a calibration from its folder.

    The table and its costs are read first, and so checked; card (unless someone else wrote it), picture and
    `custom_generate/` are made anew, so that nothing goes to the Hub that this library did not write or check.

    Returns:
        The commit.

    Raises:
        ValueError: if the folder holds no calibration, or a damaged one.
        OSError: if the Hub refuses.
    """
    if not (folder / RECORD).is_file():
        raise ValueError(f"folder={str(folder)!r} has no {RECORD}; allowed: a folder of `specverify calibrate`")
    table = CalibrationTable.from_pretrained(folder)
    costs = _costs(folder / COSTS)
    with TemporaryDirectory() as place:
        if (folder / CARD).is_file() and not (folder / CARD).is_symlink():  # which could be of any file
            shutil.copyfile(folder / CARD, Path(place) / CARD)
        write_artefact(table, place, costs=costs, plots=True, place=repo_id)
        return upload(Path(place), repo_id, private=private, revision=revision)


def _costs(path: Path) -> CostModel | None:
    if not path.is_file():
        return None
    from ..scheduling.cost_files import read_costs

    return read_costs(path)
