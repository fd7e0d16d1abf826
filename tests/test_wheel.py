"""A wheel holds the calibrations that come with the library, and an installed one finds them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tiny
from hub_tables import full_table, small_costs

ROOT = Path(__file__).parents[1]
NAME = "tiny-models/chat"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the sources, with one table more."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("pip")
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("hf_specverify", "calibration_tables"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    models = {"target": tiny.make_model(), "draft": tiny.make_model(seed=1)}
    table = source / "calibration_tables" / NAME
    full_table(**models, names=("q",)).save_pretrained(table, costs=small_costs(models))
    (table / "samples.safetensors").write_bytes(b"of an interrupted run")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", place, source]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(place.glob("*.whl"))


def test_the_tables_are_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name.removeprefix(f"hf_specverify/calibration_tables/{NAME}/") for name in names if NAME in name}
    assert inside == {
        "README.md", "calibration.json", "calibration.safetensors", "cost_table.json", "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    }  # fmt: skip
    assert "hf_specverify/hub/shipped.py" in names
    assert "hf_specverify/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hf_specverify"}
    heads = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hf_specverify" / "shipped_heads").rglob("*.*")}
    assert len(heads) > 2 and heads <= names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hf_specverify").rglob("*.py")}
    assert modules <= names


def test_an_installed_wheel_finds_them(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
        "from hf_specverify.hub.shipped import shipped_tables\n"
        f"found = next(table for table in shipped_tables() if table.name == {NAME!r})\n"
        "print(found.folder, found.table.names)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "installed") in done.stdout
    assert "('q',)" in done.stdout
