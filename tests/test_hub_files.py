"""What a calibration says of itself: it comes back as it was, and what is not as it must be is refused by name."""

import copy
import json
import os
import random
import shutil

import pytest
import tiny
import torch
from hub_tables import full_table, small_costs, small_table
from huggingface_hub import ModelCard

from hf_specverify.hub.artefact import write_artefact
from hf_specverify.hub.names import UPLOADED
from hf_specverify.hub.origin import Origin, command_line, plain_settings
from hf_specverify.scheduling import CalibrationTable


@pytest.fixture(scope="module")
def table():
    target = tiny.make_model()
    return full_table(target, tiny.near_copy(target), tiny.near_copy(target, seed=5))


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables") / "whole"
    table.save_pretrained(folder)
    return folder


def damaged(whole, folder, change):
    shutil.copytree(whole, folder)
    record = json.loads((folder / "calibration.json").read_text())
    change(record)
    (folder / "calibration.json").write_text(json.dumps(record))
    return folder


def test_the_origin_comes_back(table, whole, tmp_path):
    loaded = CalibrationTable.from_pretrained(whole)
    assert loaded.origin == table.origin
    assert loaded.origin.companion.weights_sha256 == table.origin.companion.weights_sha256 is not None
    loaded.save_pretrained(tmp_path)
    for name in ("calibration.json", "calibration.safetensors", "README.md"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_a_table_without_an_origin_has_fields_of_null(tmp_path):
    bare = small_table()
    bare.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "calibration.json").read_text())
    names = ("target", "draft", "companion", "sampling", "drafting", "data", "figures", "versions", "command", "seed")
    assert [record[name] for name in names] == [None] * 10
    assert CalibrationTable.from_pretrained(tmp_path).origin == Origin()
    assert "Not recorded." in (tmp_path / "README.md").read_text()


def test_sums_keep_what_both_say(table):
    from dataclasses import replace

    other = replace(table, origin=replace(table.origin, seed=4))
    total = table + other
    assert total.origin.target == table.origin.target
    assert total.origin.sampling == table.origin.sampling
    assert total.origin.seed is None
    assert total.origin.figures is None  # of neither
    assert table.marginal(["q"]).origin.draft == table.origin.draft


def test_the_card(table, tmp_path):
    pytest.importorskip("matplotlib")
    write_artefact(table, tmp_path, plots=True, costs=small_costs({"target": tiny.make_model()}), place="me/mine")
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")} == set(UPLOADED)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.tags == ["speculative-decoding", "calibration"]
    assert card.data.base_model is None  # models of nobody's
    figures = table.origin.figures
    for part in (
        f"{figures.ece:.4f}", f"{figures.information['S,q']:.4f}", 'custom_generate="me/mine"', "temperature: 0.8",
        "reliability.png", "LlamaForCausalLM", table.origin.draft.weights_sha256[:12], "cost_table.json",
    ):  # fmt: skip
        assert part in card.content.replace("\\", "")
    assert str(tmp_path) not in card.content


def test_a_card_of_the_users_own_stays(tmp_path):
    (tmp_path / "README.md").write_text("My project")
    small_table().save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "My project"


def test_text_of_others_is_shown_as_it_is(tmp_path):
    hostile = "</table><script>x</script> | `a` [click](javascript:x) **b**"
    origin = Origin(data={"name": hostile}, command=hostile)
    small_table(origin=origin).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "<script" not in card.replace("\\<", "")
    assert "[click](" not in card
    assert hostile not in card
    assert ModelCard.load(tmp_path / "README.md").data.to_dict().keys() == {"library_name", "pipeline_tag", "tags"}


def test_what_could_not_be_read_is_not_written(tmp_path):
    for origin, field in (
        (Origin(command="two\nlines"), "command"),
        (Origin(seed=-1), "seed"),
        (Origin(sampling={"temperature": float("nan")}), "sampling.temperature"),
    ):
        with pytest.raises(ValueError, match=field):
            small_table(origin=origin).save_pretrained(tmp_path / "bad")
        assert not (tmp_path / "bad").exists()


WRONG = {
    "schema_version must be 2, got 1": lambda r: r.update(schema_version=1),
    "missing fields: target": lambda r: r.pop("target"),
    "target must be an object": lambda r: r.update(target=[]),
    "target must be an object with the fields": lambda r: r["target"].pop("dtype"),
    "draft must be an object": lambda r: r["draft"].update(more=1),
    "target.id must be": lambda r: r["target"].update(id="../../etc/passwd"),
    "draft.id must be": lambda r: r["draft"].update(id="a/b/c"),
    "draft.id must be null or a name": lambda r: r["draft"].update(id=7),
    "companion.revision must be": lambda r: r["companion"].update(revision="../main"),
    "target.revision must be": lambda r: r["target"].update(revision="a b"),
    "target.vocab_size must be": lambda r: r["target"].update(vocab_size=0),
    "draft.vocab_size must be an integer": lambda r: r["draft"].update(vocab_size=64.0),
    "target.weights_sha256 must be": lambda r: r["target"].update(weights_sha256="0" * 63),
    "target.weights_sha256 must be null or": lambda r: r["target"].update(weights_sha256="Z" * 64),
    "target.architecture must be": lambda r: r["target"].update(architecture=None),
    "draft.dtype must be": lambda r: r["draft"].update(dtype="\x1b[31m"),
    "draft.device must be": lambda r: r["draft"].update(device=["cpu"]),
    "sampling must be": lambda r: r.update(sampling=[1]),
    "sampling.temperature must be": lambda r: r["sampling"].update(temperature=[1]),
    "data must be an object with names": lambda r: r["data"].update({"../x": 1}),
    "data.name must be": lambda r: r["data"].update(name="a\nb"),
    "drafting must be null or an object of up to": lambda r: r.update(drafting={f"x{n}": n for n in range(99)}),
    "versions.torch must be": lambda r: r["versions"].update(torch="x" * 5000),
    "command must be": lambda r: r.update(command="a\u202eb"),
    "seed must be": lambda r: r.update(seed=1 << 70),
    "seed must be an integer of": lambda r: r.update(seed=True),
    "figures must be": lambda r: r["figures"].pop("auc"),
    "figures.ece must be": lambda r: r["figures"].update(ece=-0.1),
    "figures.brier must be": lambda r: r["figures"].update(brier="0"),
    "figures.entropy must be": lambda r: r["figures"].update(entropy=1e400),
    "figures.information must be": lambda r: r["figures"].update(information=[]),
    "figures.information.S must be": lambda r: r["figures"]["information"].update(S=None),
    "figures.positions must be": lambda r: r["figures"].update(positions={"../1": {}}),
    "figures.positions.1 must be": lambda r: r["figures"].update(positions={"1": {"ece": 0}}),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_fields_are_refused_by_name(message, whole, tmp_path):
    folder = damaged(whole, tmp_path / "table", WRONG[message])
    if message.startswith("figures.entropy"):  # JSON has no infinity, but 1e999
        text = (folder / "calibration.json").read_text().replace("Infinity", "1e999")
        (folder / "calibration.json").write_text(text)
    with pytest.raises(ValueError, match=message.replace(".", r"\.").replace("[", r"\[")):
        CalibrationTable.from_pretrained(folder)


def places(value, path=()):
    """Every place in nested JSON."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


JUNK = (None, True, -1, 0, 3.7, 1e308, 10**400, "", "x", "../../x", "\x00", "a\nb", "\u202e", "é" * 9000, [], [[]],
        {}, {"": 1}, {"x": {"y": []}}, ["S"], "float32", "0" * 64)  # fmt: skip


def test_random_records_are_refused_or_harmless(whole, tmp_path):
    record = json.loads((whole / "calibration.json").read_text())
    draw, refused, everywhere = random.Random(1), 0, list(places(record))[1:]
    folder = tmp_path / "table"
    shutil.copytree(whole, folder)
    for _ in range(600):
        changed = copy.deepcopy(record)
        for path in draw.sample(everywhere, draw.choice((1, 1, 1, 2, 3))):
            inner = changed
            try:
                for key in path[:-1]:
                    inner = inner[key]
                if draw.random() < 0.1 and isinstance(inner, dict):
                    inner["extra"] = inner.pop(path[-1])
                else:
                    inner[path[-1]] = draw.choice(JUNK)
            except (KeyError, TypeError, IndexError):
                continue  # gone with an earlier change
        (folder / "calibration.json").write_text(json.dumps(changed))
        try:
            loaded = CalibrationTable.from_pretrained(folder)
        except ValueError:
            refused += 1
            continue
        found = loaded.predict({name: torch.linspace(0, 1, 9) for name in loaded.names})
        assert ((found >= 0) & (found <= 1)).all()
        loaded.save_pretrained(tmp_path / "again")
        ModelCard.load(tmp_path / "again" / "README.md")
    assert 300 < refused < 600


def test_nothing_is_unpickled(whole, tmp_path):
    """A pickle in place of a file is refused, and what it holds is not run."""
    import pickle

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    for name in ("calibration.json", "calibration.safetensors"):
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(ValueError, match="can't be read"):
            CalibrationTable.from_pretrained(folder)
    assert not (tmp_path / "sprung").exists()


def tensor_file(header, content=b"\0" * 64):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def entry(shape, end, dtype="I64"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


HEADERS = {
    "of a size that is not there": {"number": entry([1 << 40], 8 << 40)},
    "of a shape that overflows": {"number": entry([1 << 33, 1 << 33], 64)},
    "of a negative shape": {"number": entry([-8], 64)},
    "with a path for a name": {"../../number": entry([8], 64)},
    "of no known type": {"number": entry([8], 64, "OBJECT")},
}


@pytest.mark.parametrize("header", HEADERS)
def test_hostile_tensors_are_refused(header, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "table")
    (tmp_path / "table" / "calibration.safetensors").write_bytes(tensor_file(HEADERS[header]))
    with pytest.raises(ValueError, match=r"calibration\.safetensors (can't be read|has unknown fields)"):
        CalibrationTable.from_pretrained(tmp_path / "table")
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device")
@pytest.mark.parametrize("name", ["calibration.json", "calibration.safetensors"])
def test_devices_are_no_files(name, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "table")
    (tmp_path / "table" / name).unlink()
    (tmp_path / "table" / name).symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is no file"):
        CalibrationTable.from_pretrained(tmp_path / "table")


def test_commands_are_written_without_places():
    line = command_line(["calibrate", "--target", "/home/me/small", "--out=/tmp/x/out", "--draft", "a/b", "../p"])
    assert line == "specverify calibrate --target small --out=out --draft a/b p"
    line = command_line(["bench", "--draft", "head:/home/me/h", "--draft", "head:a/b", "--prompts=/home/a:b/c"])
    assert line == "specverify bench --draft head:h --draft head:a/b --prompts=c"
    assert len(command_line(["x" * 10_000])) <= 4096
    assert plain_settings({"do_sample": True, "eos_token_id": [1], "_x": 1, "t": float("inf"), "s": "a\nb"}) == {
        "do_sample": True
    }


def test_the_templates_are_those_of_the_code():
    from pathlib import Path

    from hf_specverify.hub.templates import templates

    folder = Path(__file__).parents[1] / "model_cards"
    for name, text in templates().items():
        assert (folder / name).read_text() == text, f"python -m hf_specverify.hub.templates {folder.name}"
