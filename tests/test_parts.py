"""Numbered parts of a run, and who makes which."""

import json

import pytest
import torch

from hf_specverify import parts as parts_module
from hf_specverify.parts import Parts
from hf_specverify.placing import Placement
from hf_specverify.report.json_files import read_json, write_json
from hf_specverify.sharding import Team


def save(part, path):
    write_json(path, part)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_piece_of_work_has_one_process(size):
    numbers = [0, 3, 4, 8, 9]
    shares = [Team(rank, size).share(numbers) for rank in range(size)]
    assert sorted(number for share in shares for number in share) == numbers
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    together = [Team(rank, size, together=True) for rank in range(size)]
    assert all(team.share(numbers) == numbers for team in together)
    assert [team.keeps for team in together] == [rank == 0 for rank in range(size)]


def test_missing_parts_are_made_and_others_are_left(tmp_path):
    parts, made, told, warm = Parts(tmp_path / "parts"), [], [], []

    def make(number):
        made.append(number)
        return {"square": number**2}

    def complete():
        return parts.complete(
            Team(), 4, {"a": 1}, make, save, lambda *counts: told.append(counts), lambda: warm.append(1)
        )

    paths = complete()
    assert [read_json(path)["square"] for path in paths] == [0, 1, 4, 9]
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    paths[2].unlink()
    (tmp_path / "parts" / "000001.json.part").write_text("half")  # of a process that died
    made.clear()
    assert complete() == paths
    assert made == [2]
    complete()
    assert warm == [1, 1]  # not where nothing is left to do


def test_settings_are_those_of_the_first_run(tmp_path):
    parts = Parts(tmp_path)
    parts.begin({"seed": 0, "names": ("q", "S"), "draft": None})
    parts.begin({"seed": 0, "names": ["q", "S"], "draft": None})
    for settings, message in (
        ({"seed": 1, "names": ["q", "S"]}, "seed=0, now it is 1"),
        ({"seed": 0, "names": ["q"]}, r"names=\['q', 'S'\], now it is \['q'\]"),
        ({"seed": 0, "names": ["q", "S"], "more": 2}, "more=None, now it is 2"),
        ({"names": ["q", "S"]}, "seed=0, now it is None"),
    ):
        with pytest.raises(ValueError, match=message):
            parts.begin(settings)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(ValueError, match="an object"):
        parts.begin({})
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        parts.begin({})


def test_a_folder_that_another_machine_does_not_see(tmp_path, monkeypatch):
    monkeypatch.setattr(parts_module, "DELAY", 0.0)
    monkeypatch.setattr(Team, "decide", lambda team, make: [0])  # what the first process found, on its own disk
    with pytest.raises(ValueError, match=r"settings\.json .* all machines share"):
        Parts(tmp_path / "parts").complete(Team(1, 2), 1, {}, json.dumps, save)


def test_a_part_that_does_not_arrive(tmp_path, monkeypatch):
    monkeypatch.setattr(parts_module, "DELAY", 0.0)
    parts = Parts(tmp_path / "parts")
    parts.begin({})
    monkeypatch.setattr(Team, "decide", lambda team, make: make())
    monkeypatch.setattr(Team, "wait", lambda team: None)
    with pytest.raises(ValueError, match=r"000001\.json .* all machines share"):
        parts.complete(Team(0, 2), 2, {}, str, save)


def test_errors_of_the_first_process_are_everyone_s():
    with pytest.raises(OSError, match="no disk"):
        Team().decide(lambda: (_ for _ in ()).throw(OSError("no disk")))
    assert Team().decide(lambda: 3) == 3


@pytest.mark.parametrize("device_map", ["auto", "balanced"])
def test_an_automatic_map_takes_a_whole_machine(device_map, monkeypatch):
    monkeypatch.setattr(Team, "join", lambda together: Team(0, 4, 2, together=together))
    with pytest.raises(ValueError, match="2 processes on this machine"):
        Placement(device_map=device_map).join()
    assert Placement(device_map="cpu").join().size == 4
    assert Placement(tp_plan="auto").join().together
    monkeypatch.setattr(Team, "join", lambda together: Team(0, 4, 1, together=together))
    assert Placement(device_map=device_map).join().size == 4


def test_a_process_has_a_device():
    assert Team.join() == Team()
    assert Team().device == torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
