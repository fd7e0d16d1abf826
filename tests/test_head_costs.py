"""Feature heads have a price, and calibrations are of one head: what schedules need of a draft."""

from dataclasses import replace

import pytest
import test_sampling_law
import tiny
import torch
from heads import make_head
from test_sampling_law import check_law, model
from test_schedules import generate, table

import hf_specverify as sv
from hf_specverify.drafting.heads.model import HeadModel
from hf_specverify.hub.identifying import identify
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

OWN = ("q", "entropy", "max_q", "margin", "position")


def costs(draft):
    """A target pass takes 1 + .03 for each token, one of the head `draft`, one of the companion .02."""
    forwards = {"target": (1.0, 0.03), "draft": (draft, 0.0), "companion": (0.02, 0.0)}
    points = [
        Point(role, 8, batch, tokens, fixed + slope * tokens)
        for role, (fixed, slope) in forwards.items()
        for batch in (1, 8)
        for tokens in (1, 100)
    ]
    return CostModel(points, Fingerprint.of({}))


def profiled(target, draft, **options):
    return CostModel.profile(
        target, draft, batch_sizes=[1, 3], tokens=[1, 4], context=[8, 12], budget_seconds=1e-6, **options
    )


@pytest.mark.parametrize("given", ["drafter", "network"])
def test_a_head_is_measured_as_draft(given):
    target = tiny.make_model()
    head = make_head(target, draft=32)
    found = profiled(target, sv.FeatureHead(head) if given == "drafter" else head)
    assert found.roles == ("target", "draft")
    measured = {(point.context, point.batch, point.tokens) for point in found.points if point.role == "draft"}
    assert measured == {(context, rows, rows * width) for context in (8, 12) for rows in (1, 3) for width in (1, 2)}


def test_a_drafter_without_a_model_has_no_price():
    assert profiled(tiny.make_model(), sv.PromptLookup(2)).roles == ("target",)


def test_what_is_measured_is_reading_places_and_scoring_the_last(monkeypatch):
    target = tiny.make_model()
    head, read, fused, scored = make_head(target), [], [], []
    honest = HeadModel.forward, HeadModel.fuse, HeadModel.logits

    def forward(self, tokens, hidden, positions, mask, keys):
        read.append((tuple(tokens.shape), positions[:, 0].tolist(), mask.sum(-1)[:, 0, -1].tolist()))
        return honest[0](self, tokens, hidden, positions, mask, keys)

    monkeypatch.setattr(HeadModel, "forward", forward)
    monkeypatch.setattr(HeadModel, "fuse", lambda self, x: fused.append(x.shape[:2]) or honest[1](self, x))
    monkeypatch.setattr(HeadModel, "logits", lambda self, x: scored.append(x.shape[:2]) or honest[2](self, x))
    CostModel.profile(target, head, batch_sizes=[2], tokens=[1], context=8, repeats=2, budget_seconds=60)
    # Eight places, then warming up and two turns of one place and two: place 8 is read with the token at 9.
    one, two = ((2, 1), [9, 9], [9, 9]), ((2, 2), [9, 9], [10, 10])
    assert read == [((2, 8), [1, 1], [8, 8]), *[one, two] * 3]
    assert [tuple(shape) for shape in fused] == [shape for shape, _, _ in read]
    assert {tuple(shape) for shape in scored} == {(2, 1)}


def test_measuring_draws_nothing():
    target = tiny.make_model()
    head = make_head(target)
    profiled(target, head)  # the target is probed once
    before = torch.get_rng_state()
    profiled(target, head)
    assert torch.equal(before, torch.get_rng_state())


def test_costs_are_of_the_shape_of_a_head(tmp_path):
    target = tiny.make_model()
    profiled(target, make_head(target, draft=32)).save(tmp_path / "costs.json")
    for draft in (make_head(target, draft=32), make_head(target, draft=32, seed=1)):
        assert CostModel.load(tmp_path / "costs.json", {"target": target, "draft": draft}).roles == ("target", "draft")
    for draft in (make_head(target, draft=16), make_head(target, draft=32, norm_output=True), tiny.near_copy(target)):
        with pytest.raises(ValueError, match="models\\['draft'\\]: the costs were measured with another model"):
            CostModel.load(tmp_path / "costs.json", {"draft": draft})


def calibrated(target, drafter):
    return sv.calibrate(
        target, drafter, [tiny.prompts(2)], num_draft_tokens=2, max_new_tokens=10, do_sample=False, sets=[("q",)]
    )  # fmt: skip


def test_a_calibration_is_of_one_head(tmp_path):
    target = tiny.make_model()
    calibrated(target, sv.FeatureHead(make_head(target))).save_pretrained(tmp_path)
    origin = CalibrationTable.from_pretrained(tmp_path).origin
    assert (origin.draft.architecture, origin.drafting["drafter"]) == ("HeadModel", "FeatureHead")
    options = {"verify_length": "goodput", "calibration": tmp_path, "costs": costs(0.1), "max_new_tokens": 6}
    inputs = tiny.prompts(2)
    ours = generate(target, sv.FeatureHead(make_head(target)), inputs, **options)  # the same weights
    assert ours.speculation.drafted > 0
    others = {
        r"draft\.weights_sha256": sv.FeatureHead(make_head(target, seed=1)),
        r"draft\.architecture": sv.DraftModel(tiny.near_copy(target)),
        "there is none here": sv.PromptLookup(2),
    }
    for message, other in others.items():
        with pytest.raises(ValueError, match=message):
            generate(target, other, inputs, **options)
    with pytest.warns(UserWarning, match=r"draft\.dtype is 'float32' in the calibration, and here it is 'bfloat16'"):
        generate(target, sv.FeatureHead(make_head(target).to(torch.bfloat16)), inputs, **options)
    calibrated(target, tiny.near_copy(target)).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"draft\.architecture"):
        options["calibration"] = tmp_path / "other"
        generate(target, sv.FeatureHead(make_head(target)), inputs, **options)


def test_a_head_is_known_by_its_name_on_the_hub(tmp_path, monkeypatch):
    target = tiny.make_model()
    sv.FeatureHead(make_head(target)).save_pretrained(tmp_path)
    local = sv.FeatureHead.from_pretrained(tmp_path, target)
    assert identify(local.model).id is None
    monkeypatch.setattr("hf_specverify.drafting.heads.files.snapshot_download", lambda name, **options: tmp_path)
    found = sv.FeatureHead.from_pretrained("user/head", target)
    assert identify(found.model) == replace(identify(local.model), id="user/head")
    assert found.head.config == local.head.config


@pytest.mark.parametrize("sampling", [False, True])
def test_its_signals_are_those_of_a_draft_model(sampling):
    target = tiny.make_model(eos_token_id=None)
    options = {"do_sample": sampling, "top_k": 0} if sampling else {"do_sample": False}
    companion = tiny.near_copy(target, 0.01)
    found = sv.calibrate(
        target, sv.FeatureHead(make_head(target, draft=32)), [tiny.prompts(3)], companion_model=companion,
        max_new_tokens=24, sets=[("q", "S"), *[(name,) for name in (*OWN, "S", "A")]], **options,
    )  # fmt: skip
    assert sv.FeatureHead.signals == sv.DraftModel.signals == set(OWN) - {"position"}
    assert found.names == ("q", "S")
    assert {names for names, _ in found.information_gain().items()} == {("q", "S"), *[(n,) for n in (*OWN, "S", "A")]}
    assert (found.origin.draft.architecture, found.origin.companion.architecture) == ("HeadModel", "LlamaForCausalLM")


SCHEDULES = {
    "cut": ({"verify_length": "goodput"}, ("q",)),
    "stop": ({"draft_length": "goodput"}, ("max_q", "margin", "position")),
    "stop and cut": ({"verify_length": "goodput", "draft_length": "goodput"}, ("entropy",)),
    "cut with companion": ({"verify_length": "goodput"}, ("S", "A")),
    "auto": ({"verify_length": "auto"}, ("q", "position")),
    "auto with companion": ({"verify_length": "auto"}, ("q", "S")),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scheduled_greedy_output_is_plain_output(schedule, batch):
    target, (options, names) = tiny.make_model(), SCHEDULES[schedule]
    drafter, companion = sv.FeatureHead(make_head(target)), tiny.near_copy(target, 0.01)
    inputs = tiny.prompts(batch)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    with_companion = {"companion_model": companion} if "S" in names else {}
    ours = generate(
        target, drafter, inputs, costs=costs(0.02), calibration=table(*names), num_draft_tokens=5, max_new_tokens=20,
        **options, **with_companion,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    assert ours.speculation.drafted > 0


def test_a_pass_of_the_head_counts():
    """The dearer it is, the less is drafted: stopped early, and by `auto` not begun."""
    target = tiny.make_model(eos_token_id=None)
    drafter, inputs = sv.FeatureHead(make_head(target)), tiny.prompts(3)
    stop, auto = [], []
    for price in (0.001, 3.0):
        common = {"costs": costs(price), "num_draft_tokens": 6, "max_new_tokens": 16}
        stopped = generate(target, drafter, inputs, draft_length="goodput", calibration=table("max_q"), **common)
        stop.append(stopped.speculation.drafted)
        auto.append(generate(target, drafter, inputs, verify_length="auto", **common).speculation.drafted)
    assert stop[0] > stop[1] and auto[0] > auto[1] == 0


@pytest.mark.parametrize("options", [{"verify_length": "auto"}, {"draft_length": "goodput"}])
def test_costs_measured_by_the_call_have_the_head_as_draft(monkeypatch, options):
    from hf_specverify.scheduling import costs_of_a_call

    monkeypatch.setattr(costs_of_a_call, "LAZY_SECONDS", 0.1)
    target, found = tiny.make_model(), []
    honest = CostModel.profile
    monkeypatch.setattr(CostModel, "profile", lambda *given, **more: found.append(honest(*given, **more)) or found[-1])
    if "draft_length" in options:
        options = {**options, "calibration": table("q")}
    inputs = tiny.prompts(2)
    plain = target.generate(**inputs, max_new_tokens=30, do_sample=False)
    with pytest.warns(UserWarning, match="measuring the models"):
        ours = generate(target, sv.FeatureHead(make_head(target)), inputs, **options)
    assert torch.equal(plain, ours.sequences)
    generate(target, sv.FeatureHead(make_head(target, seed=1)), inputs, **options)  # one of the same shape
    assert [each.roles for each in found] == [("target", "draft")]


@pytest.mark.slow
def test_the_law_while_sampling(monkeypatch):
    """A step of two draft tokens, some of which are cut, behind the first step, which has none."""
    monkeypatch.setattr(test_sampling_law, "TOKENS", 4)
    monkeypatch.setattr(test_sampling_law, "SAMPLES", 3000)
    target = model(7)
    drafter = sv.FeatureHead(make_head(target))
    # For a batch of five hundred rows: a draft token must promise nearly as much as a row's own.
    points = [Point("target", 8, rows, tokens, 750.0 + 10 * tokens) for rows in (1, 8) for tokens in (1, 5000)]
    priced = CostModel([*points, Point("draft", 8, 1, 1, 30.0)], Fingerprint.of({}))
    options = {"verify_length": "goodput", "calibration": table("q"), "costs": priced}
    ids = torch.tensor([[1, 4, 2, 1, 4]]).repeat(500, 1)
    report = generate(
        target, drafter, {"input_ids": ids}, do_sample=True, top_k=0, max_new_tokens=4, num_draft_tokens=2, **options
    ).speculation
    assert 0.05 < sum(report.steps[1].verified) / 1000 < 0.95
    check_law(target, drafter, {}, None, **options)
