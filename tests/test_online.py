"""The calibration that follows a call."""

import pytest
import tiny
import torch
from test_sampling_law import model
from test_schedules import NO_END, SAMPLING, all_costs, check_law_with_cuts, generate, table

from hf_specverify.scheduling import CalibrationTable
from hf_specverify.scheduling.online import EVERY, WARM_UP, OnlineCalibration


def code_table():
    """Text where a draft that is sure is right: acceptance is q."""
    q = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    return CalibrationTable.fit({"q": q}, q, bins=8)


def chat(count, seed):
    """Text where it is right half as often."""
    q = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    return {"q": q}, q / 2


def test_it_follows_a_change_of_text_and_reports_the_drift():
    online = OnlineCalibration(code_table())
    assert not online.is_warm
    assert online.drift == 0
    sure = {"q": torch.tensor([0.9])}
    before = float(online.table.predict(sure))
    assert before == pytest.approx(0.9, abs=0.05)
    for step in range(40 * EVERY):
        online.learn(*chat(20, step))
    assert online.is_warm
    assert online.seen >= WARM_UP
    # The window holds 2000 positions, the prior counts for 500: four fifths of the way from .9 to .45.
    assert float(online.table.predict(sure)) == pytest.approx(0.9 - 0.8 * 0.45, abs=0.05)
    assert online.drift == pytest.approx(-0.25, abs=0.03)
    assert float(online.prior.predict(sure)) == before


def test_text_as_expected_changes_nothing():
    online = OnlineCalibration(code_table())
    for step in range(10 * EVERY):
        signals, outcome = chat(20, step)
        online.learn(signals, 2 * outcome)
    assert abs(online.drift) < 0.03
    values = {"q": torch.linspace(0.05, 0.95, 10)}
    assert (online.table.predict(values) - online.prior.predict(values)).abs().max() < 0.06


@pytest.mark.parametrize("options", [{"verify_length": "goodput"}, {"draft_length": "goodput"}])
def test_greedy_output_is_plain_output(options):
    target = tiny.make_model(**NO_END)
    plain = target.generate(**tiny.prompts(3), max_new_tokens=80, do_sample=False)
    ours = generate(
        target, tiny.near_copy(target), tiny.prompts(3), calibration=table("q", "position"), costs=all_costs(),
        num_draft_tokens=5, max_new_tokens=80, online_calibration=True, **options,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)


def test_nothing_is_cut_before_it_is_warm():
    target = tiny.make_model(**NO_END)
    report = generate(
        target, tiny.near_copy(target), tiny.prompts(3), calibration=table("q"), costs=all_costs(), num_draft_tokens=5,
        verify_length="goodput", online_calibration=True, max_new_tokens=12,
    ).speculation  # fmt: skip
    assert report.steps[0].verified == report.steps[0].drafted


def test_sampling_keeps_its_law():
    # The first step is the warm-up.
    check_law_with_cuts(model(8), step=1, calibration=table("q"), online_calibration=True, **SAMPLING)
