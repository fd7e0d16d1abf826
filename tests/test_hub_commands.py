"""`specverify push` and `tables`, what `specverify calibrate` records, and `generate(custom_generate=folder)`."""

import json

import pytest
import tiny
import torch
from hub_tables import full_table, small_costs
from tokenizing import byte_tokenizer
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify.cli import app
from hf_specverify.hub import pushing, shipped
from hf_specverify.hub.commanding import parse_forms, parse_names
from hf_specverify.hub.comparing import compare_models
from hf_specverify.hub.costs import fitting_costs
from hf_specverify.hub.repository import generate_from
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.fingerprint import Fingerprint


@pytest.fixture(scope="module")
def models():
    target = tiny.make_model(vocabulary=259)
    return {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=5)}


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, model in models.items():
        model.save_pretrained(folder / name)
        byte_tokenizer().save_pretrained(folder / name)
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"text number {n}"}) for n in range(4)))
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def calibrate(folders, out, *more):
    roles = [part for role in ("target", "draft", "companion") for part in (f"--{role}", folders / role)]
    settings = ["--num-prompts", 4, "--batch-size", 2, "--max-new-tokens", 16, "--dtype", "float32", "--quiet"]
    return run("calibrate", *roles, "--prompts", folders / "prompts.jsonl", "--out", out, *settings, *more)


def test_calibrate_records_where_its_table_is_from(folders, tmp_path):
    names = ["--name", "target=them/big@" + "a" * 40, "--name", "data=them/texts"]
    result = calibrate(folders, tmp_path / "out", "--signals", "q,S", "--seed", 5, *names)
    assert result.exit_code == 0, result.output
    table = CalibrationTable.from_pretrained(tmp_path / "out")
    origin = table.origin
    assert (origin.target.id, origin.target.revision) == ("them/big", "a" * 40)
    assert origin.draft.id is None
    assert origin.target.tokenizer_sha256 and origin.draft.vocabulary_sha256 == origin.target.vocabulary_sha256
    assert origin.data["name"] == "them/texts" and origin.data["file"] == "prompts.jsonl"
    assert len(origin.data["sha256"]) == 64
    assert origin.seed == 5
    assert origin.sampling["temperature"] == 1.0
    for part in (
        "specverify calibrate --target target",
        "--draft draft --companion companion",
        "--prompts prompts.jsonl",
    ):
        assert part in origin.command
    assert "--quiet" in origin.command and "--temperature" not in origin.command
    assert origin.figures.information["q"] >= origin.figures.information["position"] - 1
    for name in ("calibration.json", "README.md"):
        assert str(folders) not in (tmp_path / "out" / name).read_text()


def test_calibrate_records_what_weights_were_before(folders, models, tmp_path):
    """Weights that were quantised and are dense again are not the original's: that is warned of."""
    target = ["--name", "target=them/big", "--form", "target=gguf-q4_k_m"]
    result = calibrate(folders, tmp_path / "out", "--signals", "q", *target, "--form", "draft=gguf-q8_0")
    assert result.exit_code == 0, result.output
    table = CalibrationTable.from_pretrained(tmp_path / "out")
    assert table.origin.target.label == "them/big (gguf-q4_k_m)"
    assert table.origin.draft.quantization == "gguf-q8_0"
    noted = compare_models(table, {"target": tiny.make_model(seed=3, vocabulary=259), "draft": models["draft"]})
    assert any("target.quantization is 'gguf-q4_k_m'" in line for line in noted)
    for text in ("target", "other=q8", "target=", "target=a b"):
        with pytest.raises(ValueError, match="form="):
            parse_forms([text])


def test_names_of_another_form_are_refused():
    assert parse_names(["draft=a/b", "data=c/d@v1"]) == {"draft": ("a/b", None), "data": ("c/d", "v1")}
    for text in ("draft", "other=a/b", "draft=../b", "draft=a/b@x y"):
        with pytest.raises(ValueError, match="name="):
            parse_names([text])
    with pytest.raises(ValueError, match="once for each"):
        parse_names(["draft=a/b", "draft=a/c"])


@pytest.fixture
def pushed(monkeypatch):
    """What would have gone to the Hub."""
    found = {}

    def upload(folder, repo_id, **options):
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        found.update(files=files, repo_id=repo_id, **options)
        return "c" * 40

    monkeypatch.setattr(pushing, "upload", upload)
    return found


def test_push_checks_and_completes_a_folder(models, tmp_path, pushed):
    full_table(**models).save_pretrained(tmp_path, costs=small_costs({"target": models["target"]}))
    (tmp_path / "secret.txt").write_text("mine")
    (tmp_path / "custom_generate" / "generate.py").write_text("import os")
    result = run("push", tmp_path, "me/table", "--private", "--revision", "v2", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"repository": "me/table", "revision": "v2", "commit": "c" * 40}
    assert (pushed["repo_id"], pushed["private"], pushed["revision"]) == ("me/table", True, "v2")
    assert "secret.txt" not in pushed["files"]
    assert {"README.md", "cost_table.json", "custom_generate/requirements.txt"} < set(pushed["files"])
    assert b"generate_from" in pushed["files"]["custom_generate/generate.py"]
    assert b'calibration="me/table"' in pushed["files"]["README.md"]
    assert run("push", tmp_path, "me/table", "--quiet").stdout == ""
    assert pushed["private"] is None  # the account's default


def test_push_refuses_what_is_no_calibration(models, tmp_path, pushed):
    result = run("push", tmp_path, "me/table")
    assert result.exit_code != 0
    assert "has no calibration.json" in str(result.exception)
    full_table(**models).save_pretrained(tmp_path)
    (tmp_path / "cost_table.json").write_text("{}")
    assert "cost_table.json has missing fields" in str(run("push", tmp_path, "me/table").exception)
    assert not pushed


def test_push_does_not_follow_a_link_to_another_file(models, tmp_path, pushed):
    full_table(**models).save_pretrained(tmp_path / "table")
    (tmp_path / "private").write_text("mine alone")
    (tmp_path / "table" / "README.md").unlink()
    (tmp_path / "table" / "README.md").symlink_to(tmp_path / "private")
    assert run("push", tmp_path / "table", "me/table").exit_code == 0
    assert b"mine alone" not in pushed["files"]["README.md"]


def test_tables_lists_what_fits(folders, models, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "PLACES", (tmp_path,))
    assert "No calibrations come with" in run("tables").output
    full_table(**models).save_pretrained(tmp_path / "small" / "chat")
    full_table(models["draft"], models["target"], names=("q",)).save_pretrained(tmp_path / "odd")
    rows = json.loads(run("tables", "--json").stdout)
    assert [(row["name"], row["fits"]) for row in rows] == [("odd", None), ("small/chat", None)]
    given = ["--target", folders / "target", "--draft", folders / "draft", "--dtype", "float32"]
    result = run("tables", *given, "--json")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["small/chat"]["fits"] is True
    assert rows["odd"]["fits"] is False
    assert "target.weights_sha256" in rows["odd"]["reason"]
    assert run("tables", *given, "--quiet").stdout.split() == ["small/chat"]
    monkeypatch.setenv("COLUMNS", "250")
    shown = run("tables", *given).stdout
    assert "small/chat" in shown and "target.weights_sha256" in shown


def call(models, folder, **more):
    return models["target"].generate(
        **tiny.prompts(2), custom_generate=str(folder), trust_remote_code=True, assistant_model=models["draft"],
        max_new_tokens=10, do_sample=False, return_dict_in_generate=True, **more,
    )  # fmt: skip


@pytest.fixture
def modules(monkeypatch, tmp_path):
    """The place where the host puts code from repositories."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


def test_custom_generate_of_a_folder(models, tmp_path, modules):
    target = models["target"]
    table = full_table(**models)
    table.save_pretrained(tmp_path / "table", costs=small_costs(models))
    plain = target.generate(**tiny.prompts(2), max_new_tokens=10, do_sample=False)
    found = call(models, tmp_path / "table", companion_model=models["companion"], num_draft_tokens=3)
    assert torch.equal(found.sequences, plain)
    assert found.speculation.schedule == "auto"
    assert "generate" not in vars(target)
    goodput = call(models, tmp_path / "table", companion_model=models["companion"], verify_length="goodput")
    assert goodput.speculation.schedule == "goodput"
    with pytest.raises(ValueError, match="companion_model=None"):
        call(models, tmp_path / "table", verify_length="goodput")
    with pytest.raises(ValueError, match="assistant_model=None"):
        call(models | {"draft": None}, tmp_path / "table")
    with pytest.raises(ValueError, match="trust_remote_code"):
        target.generate(**tiny.prompts(2), custom_generate=str(tmp_path / "table"), assistant_model=models["draft"],
                        trust_remote_code=False)  # fmt: skip


def test_costs_are_taken_where_they_are_of_this_machine_and_these_models(models, tmp_path):
    costs = small_costs(models)
    costs.save(tmp_path / "cost_table.json")
    assert fitting_costs(tmp_path, models).points == costs.points
    assert fitting_costs(tmp_path, {"target": models["target"], "draft": None, "companion": None})
    assert fitting_costs(tmp_path, models | {"draft": tiny.make_model("gpt2")}) is None
    elsewhere = {**costs.fingerprint.machine, "threads": 99}
    CostModel(costs.points, Fingerprint(elsewhere, costs.fingerprint.models)).save(tmp_path / "cost_table.json")
    assert fitting_costs(tmp_path, models) is None
    small_costs({"target": models["target"]}).save(tmp_path / "cost_table.json")
    assert fitting_costs(tmp_path, models) is None  # none of the draft
    assert fitting_costs(tmp_path / "nowhere", models) is None


def test_a_repository_needs_a_name_or_a_calibration(models):
    arguments = {**tiny.prompts(2), "assistant_model": models["draft"], "max_new_tokens": 4, "do_sample": False}
    with pytest.raises(ValueError, match="calibration=None"):
        generate_from(None, models["target"], dict(arguments))
    given = {**arguments, "calibration": full_table(**models, names=("q",)), "costs": small_costs(models)}
    assert generate_from(None, models["target"], given).shape[0] == 2
    assert not sv.integration.is_enabled(models["target"])
