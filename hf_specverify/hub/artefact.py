"""A calibration as the folder that the Hub gets."""

from __future__ import annotations

from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .card import LIBRARY, write_card
from .names import CARD, COSTS, RECIPE, RELIABILITY, REQUIREMENTS
from .transfer import upload

if TYPE_CHECKING:
    from ..scheduling.calibration import CalibrationTable
    from ..scheduling.cost import CostModel

_REQUIRED = "hf_specverify>=0.1.0\n"


def write_artefact(
    table: CalibrationTable,
    folder: str | PathLike[str],
    *,
    costs: CostModel | None = None,
    plots: bool = False,
    place: str | None = None,
) -> None:
    """Write all files of a calibration into a folder, which is made if need be.

    A card that someone else wrote is left as it is.

    Args:
        table: the calibration.
        folder: to write to.
        costs: measured costs to go with it.
        plots: whether to draw its reliability, where matplotlib is installed.
        place: the repository's name on the Hub, for the card.

    Raises:
        ValueError: if the table's metadata are no JSON values.
    """
    from ..scheduling.calibration_files import save_table

    path = Path(folder)
    save_table(table, path)
    if costs is not None:
        costs.save(path / COSTS)
    if plots and find_spec("matplotlib") is not None:
        table.plot_reliability(path / RELIABILITY)
    write_recipe(path)
    card = path / CARD
    if not card.exists() or _is_ours(card):
        text = write_card(table, place, (path / RELIABILITY).exists(), (path / COSTS).exists())
        card.write_text(text, encoding="utf-8")


def push_table(
    table: CalibrationTable,
    repo_id: str,
    *,
    costs: CostModel | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """Write a calibration to a repository; see `CalibrationTable.push_to_hub`."""
    with TemporaryDirectory() as folder:
        write_artefact(table, folder, costs=costs, plots=True, place=repo_id)
        return upload(Path(folder), repo_id, private=private, revision=revision, token=token)


def write_recipe(folder: Path) -> None:
    """Write `custom_generate/`, with the code of this library and no other."""
    (folder / RECIPE).parent.mkdir(exist_ok=True)
    code = Path(__file__).with_name("recipe.py").read_text(encoding="utf-8")
    (folder / RECIPE).write_text(code, encoding="utf-8")
    (folder / REQUIREMENTS).write_text(_REQUIRED, encoding="utf-8")


def _is_ours(card: Path) -> bool:
    return f"library_name: {LIBRARY}" in card.read_text(encoding="utf-8", errors="replace")
