"""`specverify calibrate` `specverify profile` and `specverify explain`, on tiny models in folders."""

import json

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer
from typer.testing import CliRunner

from hf_specverify.cli import app
from hf_specverify.explain import explain
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.cost_points import Point
from hf_specverify.scheduling.fingerprint import Fingerprint


@pytest.fixture
def folders(tmp_path):
    target = tiny.make_model(vocabulary=259)
    models = {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=4)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"text number {n}"}) for n in range(4)))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def arguments(folder, **more):
    named = {
        "target": folder / "target", "draft": folder / "draft", "companion": folder / "companion",
        "prompts": folder / "prompts.jsonl", "out": folder / "out", "num-prompts": 4, "batch-size": 2,
        "max-new-tokens": 16, "dtype": "float32", **more,
    }  # fmt: skip
    return [part for name, value in named.items() for part in (f"--{name}", value)]


def test_calibrate_writes_a_table(folders):
    result = run("calibrate", *arguments(folders), "--signals", "q,S")
    assert result.exit_code == 0, result.output
    table = CalibrationTable.from_pretrained(folders / "out")
    assert table.names == ("q", "S")
    assert int(table.number.sum()) > 20
    assert table.metadata["num_prompts"] == 4
    assert "The companion adds" in result.output
    assert "AUC" in result.output


def test_another_run_does_not_go_on_where_one_ended(folders):
    assert run("calibrate", *arguments(folders), "--quiet").exit_code == 0
    again = run("calibrate", *arguments(folders, temperature=0.5), "--quiet")
    assert again.exit_code != 0
    assert "temperature=1.0" in str(again.exception) + again.output


def test_profile_writes_costs(folders):
    result = run(
        "profile", "--target", folders / "target", "--draft", folders / "draft", "--out", folders / "costs.json",
        "--batch-size", "1,2", "--tokens", "1,2", "--context", "8", "--dtype", "float32", "--budget", "2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    costs = CostModel.load(folders / "costs.json")
    assert costs.roles == ("target", "draft")
    assert costs.latency(2, 2, 8) > 0


def test_explain_says_what_to_do(folders):
    """A target that is dear beside its draft, and a draft that is dear beside its target."""
    assert run("calibrate", *arguments(folders), "--quiet").exit_code == 0
    result = run(
        "explain", "--target", folders / "target", "--draft", folders / "draft", "--companion", folders / "companion",
        "--calibration", folders / "out", "--dtype", "float32", "--batch-size", "1,2", "--context", "8", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [place["role"] for place in found["placements"]] == ["target", "draft", "companion"]
    assert all(place["size"] > 1000 and place["devices"] == ["cpu"] for place in found["placements"])
    assert [row["batch_size"] for row in found["expectations"]] == [1, 2]
    assert any("The companion adds" in line for line in found["advice"])
    assert found["acceptance_is_measured"]


@pytest.mark.parametrize(("draft_seconds", "words"), [(0.9, "a loss"), (0.05, "of plain decoding with")])
def test_advice_follows_the_costs(draft_seconds, words):
    model = tiny.make_model()
    points = [Point("target", 8, batch, tokens, 1.0) for batch in (1, 8) for tokens in (1, 64)]
    points += [Point("draft", 8, batch, tokens, draft_seconds) for batch in (1, 8) for tokens in (1, 64)]
    accepted = CalibrationTable.fit({"q": torch.rand(500)}, torch.full((500,), 0.4))
    found = explain(
        model, model, costs=CostModel(points, Fingerprint.of({})), calibration=accepted, batch_sizes=[1], context=8
    )
    assert any(words in line for line in found.advice)
    if draft_seconds == 0.9:  # 1.4 tokens for 1.9 passes
        assert found.expectations[0].gain == pytest.approx(1.4 / 1.9, abs=0.02)
        assert any("expected 0.7×" in line for line in found.advice)
