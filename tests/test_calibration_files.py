"""Calibration tables as folders: they come back, and damaged ones are refused by name."""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_specverify.scheduling import CalibrationTable

N = 5_000


@pytest.fixture(scope="module")
def table():
    generator = torch.Generator().manual_seed(0)
    overlap, signal = torch.rand(N, generator=generator), (1.5 * torch.rand(N, generator=generator)).clamp(max=1)
    accepted = (torch.rand(N, generator=generator) < 0.2 + 0.7 * overlap * signal).float()
    return CalibrationTable.fit({"S": overlap, "A": signal}, accepted, metadata={"target": "a", "n": [1, 2.5, None]})


def test_saved_tables_come_back(table, tmp_path):
    table.save_pretrained(tmp_path / "new")
    loaded = CalibrationTable.from_pretrained(tmp_path / "new")
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {"calibration.safetensors", "calibration.json", "README.md", "custom_generate"}
    signals = {name: torch.rand(1_000) for name in ("S", "A")}
    assert torch.equal(loaded.predict(signals), table.predict(signals))
    assert loaded.metadata == table.metadata and loaded.names == table.names and loaded.samples is None
    assert torch.equal((loaded + table).number, 2 * table.number)
    assert float(loaded.reliability().number.sum()) == N
    for figure in (loaded.information_gain, loaded.calibration_error):
        with pytest.raises(ValueError, match="samples"):
            figure()
    for name in ("no-such-folder", "no/such/folder", "../user/repo", tmp_path / "user"):
        with pytest.raises(ValueError, match="id_or_folder must be a folder"):
            CalibrationTable.from_pretrained(name)
    with pytest.raises(ValueError, match="revision"):
        CalibrationTable.from_pretrained(tmp_path / "new", revision="main")
    table.metadata["bad"] = float("nan")
    try:
        with pytest.raises(ValueError, match="finite JSON"):
            table.save_pretrained(tmp_path / "bad")
    finally:
        del table.metadata["bad"]


def damaged_record(change):
    def damage(folder):
        record = json.loads((folder / "calibration.json").read_text())
        text = change(record)
        (folder / "calibration.json").write_text(json.dumps(record) if text is None else text)

    return damage


def damaged_tensors(change):
    def damage(folder):
        tensors = load_file(folder / "calibration.safetensors")
        change(tensors)
        save_file(tensors, folder / "calibration.safetensors")

    return damage


def set_cell(name, value):
    def change(tensors):
        tensors[name].view(-1)[3] = value

    return damaged_tensors(change)


DAMAGES = {
    "schema_version must be 2": damaged_record(lambda r: r.update(schema_version=3)),
    "schema_version must be 2, got True": damaged_record(lambda r: r.update(schema_version=True)),
    "unknown fields: extra": damaged_record(lambda r: r.update(extra=1)),
    "missing fields: n": damaged_record(lambda r: r.pop("n") and None),
    "signals must be": damaged_record(lambda r: r.update(signals=["S", "S"])),
    "signals must be one": damaged_record(lambda r: r.update(signals=["../S", "A"])),
    "signals must be one to 3": damaged_record(lambda r: r.update(signals=[["S"], 1])),
    "monotone must map": damaged_record(lambda r: r.update(monotone={"S": "up", "A": "increasing"})),
    "monotone must map each": damaged_record(lambda r: r.update(monotone={"S": ["none"], "A": "none"})),
    "n must be the sum": damaged_record(lambda r: r.update(n=r["n"] + 1)),
    "n must be an integer": damaged_record(lambda r: r.update(n=1.5)),
    "metadata must be": damaged_record(lambda r: r.update(metadata=[])),
    "NaN is no JSON number": damaged_record(lambda r: r.update(metadata={"x": float("nan")})),
    "json must hold an object": damaged_record(lambda r: "[]"),
    "json can't be read": damaged_record(lambda r: "{"),
    "json can't be read: a field stands twice": damaged_record(lambda r: '{"n": 1, "n": 2}'),
    "json can't be read: ": damaged_record(lambda r: "[" * 100_000),
    "json can't be read: calibration.json has": damaged_record(lambda r: " " * (1 << 21)),
    "unknown fields: more": damaged_tensors(lambda t: t.update(more=torch.zeros(1))),
    "missing fields: squares": damaged_tensors(lambda t: t.pop("squares")),
    "missing fields: edges.A": damaged_tensors(lambda t: t.pop("edges.A")),
    "number must be torch.int64": damaged_tensors(lambda t: t.update(number=t["number"].float())),
    "outcome must have the shape": damaged_tensors(lambda t: t.update(outcome=t["outcome"].flatten())),
    "number must have the shape": damaged_tensors(lambda t: t.update({"edges.S": t["edges.S"][1:].clone()})),
    "edges.S must have one dimension": damaged_tensors(lambda t: t.update({"edges.S": t["edges.S"][None]})),
    "number must have up to": damaged_tensors(lambda t: t.update({"edges.S": torch.arange(1 << 20).float()})),
    "edges.A must be finite and increasing": set_cell("edges.A", 0.0),
    "edges.S must be finite": set_cell("edges.S", float("nan")),
    "edges.S must be finite and": damaged_tensors(lambda t: t["edges.S"][-1:].fill_(float("inf"))),
    "number must lie in": set_cell("number", -1),
    "number must lie in 0": set_cell("number", 1 << 62),
    "outcome must lie": set_cell("outcome", float("nan")),
    "outcome must lie between": set_cell("outcome", -0.5),
    "outcome must lie between 0": set_cell("outcome", 1e9),
    "squares must be": set_cell("squares", float("inf")),
    "squares must be possible": set_cell("squares", 0.0),
    "safetensors can't be read": lambda folder: (folder / "calibration.safetensors").write_bytes(b"\xff" * 100),
    "calibration.safetensors can't be read": lambda folder: (folder / "calibration.safetensors").unlink(),
    "calibration.json can't be read": lambda folder: (folder / "calibration.json").unlink(),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_files_are_refused_by_name(message, table, tmp_path):
    table.save_pretrained(tmp_path)
    DAMAGES[message](tmp_path)
    with pytest.raises(ValueError, match=message.replace(".", r"\.").replace("(", r"\(")):
        CalibrationTable.from_pretrained(tmp_path)


def test_random_damage_is_refused_or_harmless(table, tmp_path):
    table.save_pretrained(tmp_path / "whole")
    draw, refused = random.Random(0), 0
    for attempt in range(300):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", folder, dirs_exist_ok=True)
        path = folder / draw.choice(["calibration.json", "calibration.safetensors"])
        content = bytearray(path.read_bytes())
        if attempt % 3 == 0:
            del content[draw.randrange(len(content)) :]
        else:
            start = draw.randrange(min(len(content), 600) if attempt % 3 == 1 else len(content))
            content[start : start + 4] = draw.randbytes(draw.randrange(1, 6))
        path.write_bytes(bytes(content))
        try:
            loaded = CalibrationTable.from_pretrained(folder)
        except ValueError:
            refused += 1
            continue
        found = loaded.predict({name: torch.linspace(-1, 2, 50) for name in loaded.names})
        assert ((found >= 0) & (found <= 1)).all()
    assert refused > 200
