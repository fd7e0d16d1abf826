"""A feature head as companion."""

import pytest
import tiny
import torch
from heads import make_head

import hf_specverify as sv
from hf_specverify.drafting.heads import HeadModel
from hf_specverify.scheduling import CostModel
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint


@pytest.fixture(scope="module")
def target():
    return tiny.make_model()


def costs():
    """Verified tokens are dear, the companion is cheap: cuts pay."""
    forwards = {"target": (1.0, 0.3), "draft": (0.02, 0.0), "companion": (0.01, 0.0)}
    points = [
        Point(role, 8, batch, tokens, fixed + slope * tokens)
        for role, (fixed, slope) in forwards.items()
        for batch in (1, 8)
        for tokens in (1, 100)
    ]
    return CostModel(points, Fingerprint.of({}))


def calibrated(target, draft, companion, signals, **options):
    batches = [tiny.prompts(3, seed=seed) for seed in (1, 2)]
    return sv.calibrate(
        target, draft, batches, companion_model=companion, signals=signals, num_draft_tokens=4, max_new_tokens=20,
        **{"do_sample": True, **options},
    )  # fmt: skip


def test_its_laws_are_those_it_would_draft_from(target):
    head = make_head(target, draft=32)
    table = calibrated(target, sv.FeatureHead(head), sv.FeatureHead(head), ("S", "A"))
    assert len(table.samples.outcome) > 20
    for values in table.samples.signals.values():  # rows accept unequal numbers, so it was behind and caught up
        assert torch.allclose(values, torch.ones(()), atol=1e-5)
    other = calibrated(target, sv.FeatureHead(head), sv.FeatureHead(make_head(target, draft=32, seed=1)), ("S", "A"))
    assert other.samples.signals["S"].mean() < 0.9


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("do_sample", [False, True])
def test_goodput_asks_it_about_looked_up_tokens(target, batch, do_sample):
    companion = sv.FeatureHead(make_head(target))
    table = calibrated(target, sv.PromptLookup(1), companion, ("c",), do_sample=do_sample)
    inputs = tiny.prompts(batch)
    with sv.enabled(target):
        out = target.generate(
            **inputs, assistant_model=sv.PromptLookup(1), companion_model=companion, verify_length="goodput",
            calibration=table, costs=costs(), num_draft_tokens=4, max_new_tokens=24, do_sample=do_sample,
            pad_token_id=0, return_dict_in_generate=True,
        )  # fmt: skip
    choices = [step.choice for step in out.speculation.steps]
    assert choices[0] == "plain" and "cut with companion" in choices
    assert out.speculation.seconds["companion"] > 0
    if not do_sample:
        plain = target.generate(**inputs, max_new_tokens=24, do_sample=False, pad_token_id=0)
        assert torch.equal(out.sequences, plain)


def test_it_is_measured_token_by_token(target, monkeypatch):
    head, read = make_head(target, draft=32), []
    honest = HeadModel.forward

    def forward(self, tokens, *rest):
        read.append(tuple(tokens.shape))
        return honest(self, tokens, *rest)

    monkeypatch.setattr(HeadModel, "forward", forward)
    found = CostModel.profile(
        target, companion=sv.FeatureHead(head), batch_sizes=[2], tokens=[3], context=8, repeats=1, budget_seconds=60
    )
    assert found.roles == ("target", "companion")
    assert read == [(2, 8), *[(2, 1)] * 6]  # the context, then warming up and one turn of a block of three


def test_what_does_not_go_together_is_refused(target):
    def generate(draft, companion):
        options = {"companion_model": companion, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        with sv.enabled(target):
            target.generate(**tiny.prompts(1), assistant_model=draft, **options)

    low = sv.FeatureHead(make_head(target, target_layers=(0, 1)))
    with pytest.raises(ValueError, match=r"companion_model: its head reads .*\[0, 1\]"):
        generate(sv.FeatureHead(make_head(target)), low)
    generate(sv.PromptLookup(1), low)
    wide = tiny.make_model(vocabulary=128)
    with pytest.raises(ValueError, match="vocab"):
        generate(sv.PromptLookup(1), sv.FeatureHead(make_head(wide)))
