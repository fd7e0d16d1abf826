"""The calibrations in calibration_tables/: they read back, say what they are, and their cards are theirs."""

from pathlib import Path

import pytest

from hf_specverify.hub.shipped import shipped_tables
from hf_specverify.scheduling import CalibrationTable

PLACE = Path(__file__).parents[1] / "calibration_tables"
SHIPPED = [pytest.param(shipped, id=shipped.name) for shipped in shipped_tables()]


def test_they_are_there():
    names = {shipped.name for shipped in shipped_tables()}
    kinds = ("chat", "math", "code")
    assert {f"qwen2.5-coder-1.5b/{kind}" for kind in kinds} <= names
    assert {f"qwen2.5-coder-1.5b-companion/{kind}" for kind in kinds} <= names


@pytest.mark.parametrize("shipped", SHIPPED)
def test_a_table_reads_back_and_says_what_it_is(shipped, tmp_path):
    table = shipped.table
    assert shipped.folder.is_relative_to(PLACE)
    origin = table.origin
    for role, model in origin.models.items():
        assert model.id and model.weights_sha256, role
        assert model.vocabulary_sha256 or model.architecture == "HeadModel", role  # a head has no tokenizer of its own
    assert origin.figures.entropy > 0 and set(origin.figures.positions)
    assert origin.data["name"] and len(origin.data["sha256"]) == 64
    assert origin.command.startswith("specverify calibrate ")
    assert int(table.number.sum()) > 100
    assert 0 < table.mean < 1
    # Predictions rise with what they are said to rise with.
    for name, direction in table.directions.items():
        if direction == "increasing":
            steps = table.probabilities.diff(dim=table.names.index(name))
            assert bool((steps >= 0).all())


@pytest.mark.parametrize("shipped", SHIPPED)
def test_its_files_are_what_saving_it_gives(shipped, tmp_path):
    shipped.table.save_pretrained(tmp_path)
    for name in ("calibration.json", "README.md", "custom_generate/generate.py"):
        ours, again = (folder / name for folder in (shipped.folder, tmp_path))
        if name != "README.md":  # the card names a plot that is not made here
            assert ours.read_text() == again.read_text()
        for secret in ("/root", "/home", "/work"):
            assert secret not in ours.read_text()
    assert CalibrationTable.from_pretrained(tmp_path).probabilities.equal(shipped.table.probabilities)
