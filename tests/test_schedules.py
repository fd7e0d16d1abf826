"""Schedules in whole calls: what is verified changes, the output does not."""

from types import SimpleNamespace

import pytest
import tiny
import torch
from test_sampling_law import check_law, model
from test_trees import fed_tokens

import hf_specverify as sv
from hf_specverify.calibrating import CalibrationSamples, default_signals
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.auto import AutoSchedule
from hf_specverify.scheduling.call_costs import CallCosts
from hf_specverify.scheduling.companion import Companion
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint
from hf_specverify.scheduling.goodput_schedule import GoodputSchedule

NO_END = {"eos_token_id": None}


def costs(slope=0.1, **models):
    """A target whose forward takes 1 + slope per token, and a companion that takes a fiftieth of that."""
    shapes = [(batch, tokens) for batch in (1, 8) for tokens in (1, 100)]
    points = [Point("target", 8, batch, tokens, 1 + slope * tokens) for batch, tokens in shapes]
    points += [Point("companion", 8, batch, tokens, 0.02 + 0.02 * slope * tokens) for batch, tokens in shapes]
    return CostModel(points, Fingerprint.of(models))


def table(*names, **options):
    """Acceptance that follows the first signal, from .2 to 1; entropy the other way round."""
    generator = torch.Generator().manual_seed(0)
    signals = {name: torch.rand(4000, generator=generator) for name in names}
    first = 1 - signals["entropy"] if names[0] == "entropy" else signals[names[0]]
    return CalibrationTable.fit(signals, 0.2 + 0.8 * first, sets=[names], bins=8, **options)


def generate(target, draft, inputs, **options):
    arguments = {"max_new_tokens": 30, "do_sample": False, "return_dict_in_generate": True, **options}
    with sv.enabled(target):
        return target.generate(**inputs, assistant_model=draft, **arguments)


@pytest.mark.parametrize("names", [("q",), ("entropy",), ("q", "entropy", "position"), ("S", "A"), ("max_q", "margin")])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_output_is_plain_output(names, batch):
    target = tiny.make_model()
    inputs = tiny.prompts(batch)
    plain = target.generate(**inputs, max_new_tokens=30, do_sample=False)
    ours = generate(
        target, tiny.near_copy(target), inputs, verify_length="goodput", calibration=table(*names), costs=costs(0.03),
        companion_model=tiny.near_copy(target, 0.01, seed=2), num_draft_tokens=5,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    report = ours.speculation
    assert 0 < report.verified < report.drafted, "some drafts must be cut for this to test anything"
    assert (report.seconds["companion"] > 0) == ("S" in names)


@pytest.mark.parametrize("names", [("match_length",), ("match_length", "match_count", "position"), ("c", "position")])
def test_lookup_drafts_have_signals_of_their_own(names):
    target = tiny.make_model(**NO_END)
    inputs = tiny.prompts(3)
    plain = target.generate(**inputs, max_new_tokens=60, do_sample=False)
    ours = generate(
        target, sv.PromptLookup(2), inputs, verify_length="goodput", calibration=table(*names), costs=costs(),
        companion_model=tiny.near_copy(target), num_draft_tokens=5, max_new_tokens=60,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    assert ours.speculation.drafted > 0


def crowd_costs():
    """For a batch of a thousand rows: a place in the forward must promise about .4 tokens."""
    target = [Point("target", 8, batch, tokens, 1500.0 + 1.3 * tokens) for batch in (1, 8) for tokens in (1, 5000)]
    draft = [Point("draft", 8, batch, tokens, 100.0) for batch in (1, 8) for tokens in (1, 5000)]
    companion = [Point("companion", 8, batch, tokens, 100.0) for batch in (1, 8) for tokens in (1, 5000)]
    return CostModel([*target, *draft, *companion], Fingerprint.of({}))


SAMPLING = {"verify_length": "goodput", "companion_model": model(9), "costs": crowd_costs()}


def check_law_with_cuts(draft, step=0, **options):
    """The law, after making sure that some tokens are verified and some are cut, or not even drafted."""
    target = model(7)
    ids = torch.tensor([[1, 4, 2, 1, 4]]).repeat(1000, 1)
    report = generate(
        target, draft, {"input_ids": ids}, do_sample=True, top_k=0, max_new_tokens=3, num_draft_tokens=2, **options
    ).speculation
    # Rows have room for two draft tokens in the first step; of later ones only what was drafted is known.
    seen = report.steps[step]
    possible = sum(seen.drafted) if step else 2 * len(seen.rows)
    assert 0.05 < sum(seen.verified) / possible < 0.95
    check_law(target, draft, {}, None, **options)


@pytest.mark.parametrize("verification", ["token", "block", pytest.param("traversal", marks=pytest.mark.slow)])
@pytest.mark.parametrize("names", [("q",), ("A", "S"), ("entropy",), ("max_q", "position")])
def test_sampling_keeps_its_law(names, verification):
    check_law_with_cuts(model(8), calibration=table(*names), verification=verification, **SAMPLING)


def test_without_the_null_token_the_law_would_be_wrong(monkeypatch):
    from hf_specverify.drafting.batch import DraftBatch

    def uncorrected(self, lengths, cut, admitted):
        return self.shortened(lengths)

    monkeypatch.setattr(DraftBatch, "corrected", uncorrected)
    with pytest.raises(AssertionError):
        check_law(model(7), model(8), {}, None, calibration=table("q"), **SAMPLING)


def test_the_target_is_fed_what_is_verified_and_nothing_else(monkeypatch):
    monkeypatch.setattr("hf_specverify.decoding.row_runner.PACK_BELOW", 1.0)
    target = tiny.make_model(**NO_END)
    options = {"verify_length": "goodput", "calibration": table("q"), "costs": costs(0.02), "num_draft_tokens": 5}
    draft, inputs = tiny.near_copy(target), tiny.prompts(4)
    generate(target, draft, inputs, **options)  # the probe has its own forwards
    counts = fed_tokens(target)
    report = generate(target, draft, inputs, **options).speculation
    assert counts[1:] == [len(step.rows) + sum(step.verified) for step in report.steps[1:]]
    assert any(len(set(step.verified)) > 1 for step in report.steps)


def test_companion_laws_are_those_of_a_fresh_forward():
    """In a call with rejections, cuts and rows that leave, every law equals the companion's own, uncached."""
    target = tiny.make_model()
    companion, seen = tiny.near_copy(target, seed=5), []
    honest = Companion.laws

    def watched(self, state, drafts):
        laws = honest(self, state, drafts)
        for place, (row, length, drafted) in enumerate(zip(state.rows, state.lengths, drafts.lengths, strict=True)):
            text = torch.cat([state.ids[row, state.host_padding[row] : length], drafts.tokens[place, :drafted]])
            fresh = companion(input_ids=text[None]).logits[0, -drafted - 1 : -1].softmax(-1) if drafted else laws[:0, 0]
            seen.append(float((laws[place, :drafted] - fresh).abs().max()) if drafted else 0.0)
        return laws

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Companion, "laws", watched)
        generate(
            target, tiny.near_copy(target), tiny.prompts(3), verify_length="goodput", calibration=table("S", "A"),
            costs=costs(), companion_model=companion, num_draft_tokens=4, do_sample=True, top_k=0,
        )  # fmt: skip
    assert len(seen) > 10
    assert max(seen) < 1e-5


@pytest.mark.parametrize("do_sample", [False, True])
def test_calibrate_records_every_reached_position(do_sample):
    target = tiny.make_model(**NO_END)
    draft, batches = tiny.near_copy(target), [tiny.prompts(3), tiny.prompts(2, seed=9)]
    torch.manual_seed(0)
    fitted = sv.calibrate(
        target, draft, batches, companion_model=tiny.near_copy(target, seed=3), num_draft_tokens=4, max_new_tokens=20,
        do_sample=do_sample, temperature=1.0, top_k=0,
    )  # fmt: skip
    torch.manual_seed(0)
    observed = 0
    for inputs in batches:
        out = generate(target, draft, inputs, num_draft_tokens=4, max_new_tokens=20, do_sample=do_sample, top_k=0)
        observed += sum(
            min(accepted + 1, verified)
            for step in out.speculation.steps
            for accepted, verified in zip(step.accepted, step.verified, strict=True)
        )
    assert len(fitted.samples.outcome) == observed
    assert set(fitted.samples.signals) == {"S", "A", "q", "entropy", "max_q", "margin", "position"}
    assert len(fitted.samples.groups.unique()) == 5
    assert not do_sample or 0 < float(fitted.samples.outcome.min()) < 1


def test_an_interrupted_calibration_goes_on(tmp_path):
    target = tiny.make_model(**NO_END)
    draft = tiny.near_copy(target)
    batches = [tiny.prompts(2, seed=seed) for seed in range(3)]
    options = {"num_draft_tokens": 3, "max_new_tokens": 16, "do_sample": False}
    path = tmp_path / "samples.safetensors"

    def stop(found):
        found.save(path)
        if found.batches == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sv.calibrate(target, draft, batches, on_batch=stop, **options)
    samples = CalibrationSamples.load(path, default_signals(draft))
    assert samples.batches == 2
    resumed = sv.calibrate(target, draft, batches, samples=samples, **options)
    whole = sv.calibrate(target, draft, batches, **options)
    assert torch.equal(resumed.number, whole.number)
    assert torch.equal(resumed.samples.groups, whole.samples.groups)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged"):
        CalibrationSamples.load(path, default_signals(draft))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibration": None}, "calibration=None"),
        ({"calibration": 3}, "calibration=3"),
        ({"calibration": lambda: table("S")}, "companion_model=None: the calibration's signal 'S'"),
        ({"calibration": lambda: table("match_length")}, "signal 'match_length' is not given by"),
        ({"calibration": lambda: table("mine", monotone=None)}, "signal 'mine' is unknown"),
        ({"num_draft_paths": 2, "verification": "naive"}, "num_draft_paths=2: verify_length='goodput'"),
    ],
)
def test_what_is_refused(options, message):
    target = tiny.make_model()
    options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        generate(target, tiny.near_copy(target), tiny.prompts(1), verify_length="goodput", costs=costs(), **options)


def all_costs(draft_seconds=0.02):
    draft = [Point("draft", 8, batch, tokens, draft_seconds) for batch in (1, 8) for tokens in (1, 16)]
    return CostModel([*costs(0.01).points, *draft], Fingerprint.of({}))


@pytest.mark.parametrize("verify_length", ["fixed", "goodput"])
@pytest.mark.parametrize("batch", [1, 3])
def test_drafting_stops_where_it_does_not_pay(verify_length, batch):
    target = tiny.make_model()
    inputs = tiny.prompts(batch)
    plain = target.generate(**inputs, max_new_tokens=30, do_sample=False)
    ours = generate(
        target, tiny.near_copy(target), inputs, draft_length="goodput", verify_length=verify_length,
        calibration=table("q", "entropy"), costs=all_costs(0.05), num_draft_tokens=6,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    lengths = ours.speculation.draft_lengths
    assert len(lengths) > 2, "some rows must stop earlier than others for this to test anything"


@pytest.mark.parametrize("verify_length", ["fixed", "goodput"])
def test_stopping_keeps_the_law(verify_length):
    options = {"draft_length": "goodput", "verify_length": verify_length}
    check_law_with_cuts(model(8), calibration=table("q"), **{**SAMPLING, **options})


def test_stopping_needs_the_draft_s_own_signals():
    target = tiny.make_model()
    options = {"companion_model": target, "draft_length": "goodput"}
    for calibration, price in ((table("S"), all_costs()), (table("q"), costs())):
        with pytest.raises(ValueError, match="draft_length='goodput'"):
            generate(target, tiny.near_copy(target), tiny.prompts(1), calibration=calibration, costs=price, **options)


def priced(draft_seconds):
    points = [Point("draft", 8, batch, tokens, draft_seconds) for batch in (1, 8) for tokens in (1, 400)]
    return CostModel([*costs(0.02).points, *points], Fingerprint.of({}))


@pytest.mark.parametrize("do_sample", [False, True])
def test_auto_never_calls_a_draft_that_cannot_pay(do_sample):
    target = tiny.make_model(**NO_END)
    draft = tiny.near_copy(target)
    options = {"verify_length": "auto", "costs": priced(5.0), "do_sample": do_sample}
    generate(target, draft, tiny.prompts(2), num_draft_tokens=1, max_new_tokens=2)  # the probe has its own forwards
    counts = fed_tokens(draft)
    report = generate(target, draft, tiny.prompts(2), **options).speculation
    assert counts == []
    assert set(report.mode_by_step) == {"plain"}


def test_auto_finds_the_length_that_acceptance_allows():
    """With a free draft: the target itself as draft is given long blocks, a stranger short ones."""
    target = tiny.make_model(**NO_END)
    lengths = {}
    for name, draft in (("itself", target), ("stranger", tiny.make_model(seed=9, **NO_END))):
        options = {"verify_length": "auto", "costs": priced(0.001), "max_new_tokens": 80}
        plain = target.generate(**tiny.prompts(2), max_new_tokens=80, do_sample=False)
        ours = generate(target, draft, tiny.prompts(2), **options)
        assert torch.equal(plain, ours.sequences)
        lengths[name] = ours.speculation.steps[-2].drafted[0]
    assert lengths["itself"] >= 5
    assert lengths["stranger"] <= 2


def test_auto_keeps_the_law():
    check_law(model(7), model(8), {}, None, verify_length="auto", costs=priced(0.01))


def test_auto_stops_drafts_without_a_calibration():
    """The probability of a drafted token says something of its acceptance even before anything was measured."""
    target = tiny.make_model(**NO_END)
    options = {"verify_length": "auto", "costs": priced(0.02), "max_new_tokens": 80}
    plain = target.generate(**tiny.prompts(1), max_new_tokens=80, do_sample=False)
    ours = generate(target, tiny.near_copy(target), tiny.prompts(1), **options)
    assert torch.equal(plain, ours.sequences)
    report = ours.speculation
    assert len(report.draft_lengths) > 3
    assert any("stop" in step.choice for step in report.steps)
    assert report.schedule == "auto"


def test_auto_returns_to_plain_decoding_when_drafts_get_worse():
    """The draft is assumed to be good and is a stranger: after some steps nothing is drafted any more."""
    target = tiny.make_model(**NO_END)
    options = {"verify_length": "auto", "costs": priced(0.3), "max_new_tokens": 100}
    report = generate(target, tiny.make_model(seed=9, **NO_END), tiny.prompts(2), **options).speculation
    assert report.mode_by_step[0] == "speculative"
    assert report.mode_by_step[-3:] == ["plain"] * 3


def test_auto_stays_with_plain_decoding_for_a_while():
    """Whatever the rates promise: they are of rows that were stopped. It tries again after 64 steps."""
    prices = CallCosts(priced(0.02), 4)
    inner = GoodputSchedule(4, table("q"), prices, None, False, stops=True)
    schedule, state = AutoSchedule(prices, 0.9, inner), SimpleNamespace(lengths=[10], rows=[0], prompt_length=4)
    assert schedule.draft_lengths([100], state) == [4]
    inner.speed_up.assume(0.5)
    assert [schedule.draft_lengths([100], state)[0] for _ in range(66)] == [0] * 64 + [4, 4]


@pytest.mark.parametrize("names", [("c", "match_length"), ("c",)])
def test_auto_asks_the_companion_about_looked_up_drafts(names):
    target = tiny.make_model(**NO_END)
    inputs = tiny.prompts(3)
    plain = target.generate(**inputs, max_new_tokens=60, do_sample=False)
    ours = generate(
        target, sv.PromptLookup(2), inputs, verify_length="auto", calibration=table(*names), costs=costs(0.3),
        companion_model=tiny.near_copy(target), num_draft_tokens=5, max_new_tokens=60,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    report = ours.speculation
    assert any("companion" in step.choice for step in report.steps)
    assert 0 < report.verified < report.drafted


@pytest.mark.parametrize("names", [("q", "S"), ("q",), ("entropy", "A")])
def test_auto_with_a_companion_keeps_the_law(names):
    check_law(
        model(7), model(8), {}, None, verify_length="auto", calibration=table(*names), costs=crowd_costs(),
        companion_model=model(9),
    )  # fmt: skip


@pytest.mark.parametrize("role", ["target", "draft", "companion"])
def test_a_file_of_costs_must_be_of_the_models_of_the_call(role, tmp_path):
    target = tiny.make_model(eos_token_id=None)
    models = {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=2)}
    points = [Point(one, 8, 1, tokens, 0.1) for one in models for tokens in (1, 100)]
    options = {"companion_model": models["companion"], "verify_length": "goodput", "calibration": table("q", "A")}
    for others in ({}, {role: tiny.make_model("gpt2")}):
        CostModel(points, Fingerprint.of(models | others)).save(tmp_path / "costs.json")
        options["costs"] = tmp_path / "costs.json"
        if others:
            with pytest.raises(ValueError, match=rf"models\['{role}'\]: the costs were measured with another model"):
                generate(target, models["draft"], tiny.prompts(1), **options)
        else:
            assert generate(target, models["draft"], tiny.prompts(1), **options).speculation.target_passes
