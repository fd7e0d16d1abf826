"""Measured costs: their structure, the seconds between them, and files from elsewhere."""

import json
import warnings

import pytest
import tiny

from hf_specverify.scheduling import CostModel, goodput_length, schedule_batch
from hf_specverify.scheduling.cost_points import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

HERE = Fingerprint({"device": "cpu"}, {"target": "abc"})


def costs(*points):
    return CostModel([Point(*point) for point in points], HERE)


@pytest.fixture(scope="module")
def models():
    target = tiny.make_model()
    return {"target": target, "draft": tiny.near_copy(target), "companion": tiny.make_model(seed=2)}


@pytest.fixture(scope="module")
def measured(models):
    return CostModel.profile(**models, batch_sizes=[1, 2], tokens=[1, 2, 4], context=[8, 16], repeats=2)


def test_profile_measures_every_forward_once(measured):
    assert measured.roles == ("target", "draft", "companion")
    expected = {
        (role, context, batch, batch * width)
        for role in measured.roles
        for context in (8, 16)
        for batch in (1, 2)
        for width in ((1, 2) if role == "draft" else (1, 2, 4))
    }
    assert {(point.role, point.context, point.batch, point.tokens) for point in measured.points} == expected
    assert all(point.seconds > 0 for point in measured.points)


def test_profile_leaves_the_models_alone_and_takes_every_layout(models):
    before = models["target"].config.to_dict()
    for family, attention in (("bloom", "eager"), ("gpt_neo", "eager"), ("qwen3_next", "sdpa")):
        model = tiny.make_model(family, attention=attention)
        with pytest.warns(UserWarning, match="slower layout"):
            found = CostModel.profile(model, batch_sizes=[2], tokens=[1, 3], context=5, repeats=1)
        assert [point.tokens for point in found.points] == [2, 6], family
    assert models["target"].config.to_dict() == before


def test_latency_never_falls_along_tokens(measured):
    for role in measured.roles:
        for batch in (1, 2, 3):
            for context in (4, 8, 12, 40):
                seconds = [measured.latency(tokens, batch, context, role) for tokens in range(1, 20)]
                assert seconds == sorted(seconds) and seconds[0] > 0


def test_a_spent_budget_still_measures_everything(models):
    found = CostModel.profile(models["target"], batch_sizes=[1], tokens=[2], context=4, budget_seconds=1e-6, repeats=50)
    assert len(found.points) == 1


def test_interpolation_by_hand():
    found = costs(
        ("target", 0, 1, 1, 1.0), ("target", 0, 1, 4, 2.5), ("target", 0, 1, 8, 2.0), ("target", 0, 1, 10, 4.0),
        ("target", 0, 3, 3, 3.0), ("target", 0, 3, 9, 6.0),
        ("target", 100, 1, 1, 2.0), ("draft", 0, 1, 1, 0.5), ("companion", 0, 1, 1, 2.0), ("companion", 100, 1, 1, 1.0),
    )  # fmt: skip
    for tokens, seconds in ((1, 1.0), (0.5, 1.0), (2, 4 / 3), (4, 2.0), (6, 2.0), (8, 2.0), (9, 3.0), (12, 6.0)):
        assert found.latency(tokens, 1) == pytest.approx(seconds)
    assert found.latency(12, 3) == pytest.approx(7.5)
    assert found.latency(9, 5) == pytest.approx(6.0)  # beyond the measured batches
    assert found.latency(9, 2) == pytest.approx((3.0 + 6.0) / 2)
    assert found.latency(1, 1, context=50) == pytest.approx(1.5)
    assert found.latency(1, 1, context=200) == pytest.approx(3.0)
    assert found.latency(8, 1, context=200) == pytest.approx(3.0)
    assert found.latency(1, 1, 200, "companion") == pytest.approx(1.0)  # does not fall on with the context
    assert found.latency(7, 9, 300, "draft") == 0.5
    assert found.verify_table(1, 3).tolist() == pytest.approx([1.0, 4 / 3, 5 / 3, 2.0])
    for arguments, name in (((1, 1, 0, "host"), "role"), ((0, 1), "tokens"), ((1, 0), "batch")):
        with pytest.raises(ValueError, match=name):
            found.latency(*arguments)


def test_tables_go_into_schedules(measured):
    table = measured.verify_table(2, 8, context=12)
    assert table.shape == (9,)
    import torch

    schedule = schedule_batch(torch.full((2, 4), 0.9).cumprod(1), table)
    assert 0 <= int(schedule.lengths.sum()) <= 8
    assert 0 <= goodput_length([0.9] * 4, measured.verify_table(1, 4)) <= 4


def test_wrong_arguments_are_refused(models):
    target = models["target"]
    for options, name in (
        ({"batch_sizes": [0]}, "batch_sizes"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [1.5]}, "tokens"),
        ({"context": [0]}, "context"),
        ({"repeats": 0}, "repeats"),
        ({"budget_seconds": 0.0}, "budget_seconds"),
    ):
        with pytest.raises(ValueError, match=name):
            CostModel.profile(target, **options)
    with pytest.raises(ValueError, match="target"):
        CostModel.profile(None)
    with pytest.raises(ValueError, match="points"):
        costs()
    with pytest.raises(ValueError, match="points"):
        costs(("target", 0, 1, 1, 1.0), ("target", 0, 1, 1, 2.0))
    for point, name in (
        (("host", 0, 1, 1, 1.0), "role"),
        (("target", -1, 1, 1, 1.0), "context"),
        (("target", 0, True, 1, 1.0), "batch"),
        (("target", 0, 1, 1.0, 1.0), "tokens"),
        (("target", 0, 1, 1, float("nan")), "seconds"),
        (("target", 0, 1, 1, 0.0), "seconds"),
    ):
        with pytest.raises(ValueError, match=name):
            costs(point)


def test_saved_costs_come_back(measured, models, tmp_path):
    measured.save(tmp_path / "costs.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = CostModel.load(tmp_path / "costs.json", models)
        CostModel.load(tmp_path / "costs.json", {"draft": models["draft"]})
        CostModel.load(tmp_path / "costs.json")
    assert loaded.points == measured.points and loaded.fingerprint == measured.fingerprint
    assert loaded.latency(3, 2, 10) == measured.latency(3, 2, 10)


def test_costs_of_another_machine_warn_by_name(measured, models, tmp_path):
    measured.save(tmp_path / "costs.json")
    data = json.loads((tmp_path / "costs.json").read_text())
    data["machine"] |= {"cpu": "another", "threads": 99}
    (tmp_path / "costs.json").write_text(json.dumps(data))
    with pytest.warns(UserWarning) as caught:
        CostModel.load(tmp_path / "costs.json", models)
    assert sorted(str(warning.message).split()[0] for warning in caught) == ["cpu", "threads"]
    half = {"target": models["target"].bfloat16()}
    try:
        with pytest.warns(UserWarning) as caught:
            CostModel.load(tmp_path / "costs.json", half)
        assert any("dtype of the target is 'torch.bfloat16'" in str(warning.message) for warning in caught)
    finally:
        models["target"].float()


def test_costs_of_another_model_are_refused(measured, models, tmp_path):
    measured.save(tmp_path / "costs.json")
    other = tiny.make_model(num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"models\['target'\]"):
        CostModel.load(tmp_path / "costs.json", {"target": other})
    alone = CostModel.profile(models["target"], batch_sizes=[1], tokens=[1], context=4, repeats=1)
    alone.save(tmp_path / "alone.json")
    with pytest.raises(ValueError, match=r"models\['draft'\]: the costs were measured with none"):
        CostModel.load(tmp_path / "alone.json", models)
    renamed = tiny.make_model()
    renamed.config._name_or_path = "elsewhere"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CostModel.load(tmp_path / "alone.json", {"target": renamed})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"machine": []}, "machine"),
        ({"models": {"host": "x"}}, "models"),
        ({"models": {"target": 1}}, "models"),
        ({"points": {}}, "points"),
        ({"points": []}, "points"),
        ({"points": [{"role": "target"}]}, r"points\[0\]"),
        ({"points": [{"role": "target", "context": 0, "batch": 1, "tokens": 1, "seconds": -1.0}]}, "seconds"),
        ({"points": [{"role": [], "context": 0, "batch": 1, "tokens": 1, "seconds": 1.0}]}, "role"),
        ({"more": 1}, "unknown fields: more"),
    ],
)
def test_damaged_files_are_refused_by_name(change, message, tmp_path):
    path = tmp_path / "costs.json"
    costs(("target", 0, 1, 1, 1.0)).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        CostModel.load(path)
