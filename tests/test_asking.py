"""Whether asking the companion is worth its pass."""

import pytest
import torch

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.scheduling import CalibrationTable
from hf_specverify.scheduling.asking import CompanionValue
from hf_specverify.scheduling.call_costs import CallCosts, StepCosts
from hf_specverify.scheduling.cost import CostModel, Point
from hf_specverify.scheduling.fingerprint import Fingerprint
from hf_specverify.scheduling.inquiry import Inquiry, rows_to_ask
from hf_specverify.scheduling.simulate import simulated_rates
from hf_specverify.scheduling.speed_up import SpeedUp, promised


def oracle():
    """After a match of length 1 half of the drafts are good and the companion knows which; longer ones all are."""
    generator = torch.Generator().manual_seed(0)
    length = torch.randint(1, 3, (8000,), generator=generator).float()
    c = torch.rand(8000, generator=generator)
    outcome = torch.where(length == 1, (c > 0.5).float(), torch.ones(8000))
    edges = {"match_length": torch.tensor([1.5]), "c": torch.tensor([0.25, 0.5, 0.75])}
    return CalibrationTable.fit({"match_length": length, "c": c}, outcome, edges=edges)


def test_an_answer_is_worth_what_it_saves():
    value = CompanionValue(oracle())
    signals = {"match_length": torch.tensor([[1.0], [2.0]])}
    worth, reach = value.worth(signals, torch.tensor([1, 1]), price=0.4)
    # Not asked: verify, for .5 - .4. Asked: half the time .6, else nothing.
    assert float(worth[0]) == pytest.approx(0.3 - 0.1, abs=0.02)
    assert float(worth[1]) == pytest.approx(0.0, abs=0.02)
    assert reach.tolist() == [1, 1]


def test_worth_over_a_block_is_that_of_the_best_prefix():
    """Two positions, each good half of the time, known exactly when asked: E max over 0, 1, 2 by hand."""
    value = CompanionValue(oracle())
    signals = {"match_length": torch.ones(1, 2)}
    worth, _ = value.worth(signals, torch.tensor([2]), price=0.4)
    asked = 0.25 * 1.2 + 0.25 * 0.6
    unasked = max(0.0, 0.5 - 0.4, 0.5 - 0.4 + 0.25 - 0.4)
    assert float(worth[0]) == pytest.approx(asked - unasked, abs=0.08)  # of 32 scenarios


def test_a_row_without_drafts_is_worth_nothing_and_dear_slots_end_the_asking():
    value = CompanionValue(oracle())
    signals = {"match_length": torch.ones(2, 3)}
    worth, reach = value.worth(signals, torch.tensor([0, 3]), price=0.4)
    assert float(worth[0]) == 0
    assert int(reach[0]) == 0
    worth, reach = value.worth(signals, torch.tensor([3, 3]), price=2.0)
    assert worth.tolist() == [0, 0]
    assert reach.tolist() == [0, 0]


def test_rows_are_asked_about_together_or_not_at_all():
    worth, reach = torch.tensor([0.1, 0.9, 0.5]), torch.tensor([2, 1, 3])
    cheap = torch.linspace(0, 0.6, 7)
    assert rows_to_ask(worth, reach, cheap, rate=1.0).tolist() == [False, True, True]
    assert rows_to_ask(worth, reach, 0.5 + cheap, rate=1.0).tolist() == [False, True, True]
    assert rows_to_ask(worth, reach, 2 + cheap, rate=1.0).tolist() == [False] * 3


def step(companion_seconds):
    verify = torch.linspace(1, 3, 9).double()
    return StepCosts(2, 0.0, verify, torch.full((9,), companion_seconds).double())


def batch():
    return DraftBatch(torch.zeros(2, 4, dtype=torch.long), (4, 2), None)


def test_an_inquiry_asks_row_by_row_where_a_cut_needs_no_correction():
    inquiry, own = Inquiry(hesitates=False), {"match_length": torch.tensor([[1.0] * 4, [2.0] * 4])}
    inquiry.follow(oracle())
    assert inquiry.lengths(batch(), own, False, step(0.05), rate=1.6) == [4, 0]
    assert inquiry.lengths(batch(), own, False, step(0.8), rate=1.6) == [0, 0]
    assert inquiry.lengths(batch(), own, True, step(0.8), rate=1.6) == [4, 2], "drawn: all, and it does not hesitate"


def test_a_hesitating_inquiry_goes_by_the_steps_before():
    inquiry, own = Inquiry(hesitates=True), {"match_length": torch.ones(2, 4)}
    inquiry.follow(oracle())
    assert not inquiry.asks_all
    assert inquiry.lengths(batch(), own, True, step(0.05), rate=1.6) == [0, 0]
    assert inquiry.asks_all
    assert inquiry.lengths(batch(), own, True, step(0.05), rate=1.6) == [4, 2]
    for _ in range(20):
        inquiry.lengths(batch(), own, True, step(5.0), rate=1.6)
    assert not inquiry.asks_all


def test_speed_up_is_tokens_over_those_of_plain_decoding():
    costs, speed_up = step(0.0), SpeedUp()
    assert not speed_up.is_known
    speed_up.assume(2.0)
    assert speed_up.value == 2.0
    assert speed_up.rate(costs) == pytest.approx(2.0 * 2 / 1)
    for _ in range(200):
        speed_up.add(tokens=6.0, seconds=2.0, step=costs)  # plain: 2 tokens a second
    assert speed_up.value == pytest.approx(1.5)


def test_the_promised_speed_up_is_that_of_the_best_length():
    points = [Point("target", 8, 1, tokens, 1 + 0.1 * (tokens - 1)) for tokens in (1, 20)]
    points += [Point("draft", 8, 1, tokens, 0.2) for tokens in (1, 2)]
    prices = CallCosts(CostModel(points, Fingerprint.of({})), 8)
    by_hand = [sum(0.8**i for i in range(length + 1)) / (1 + 0.3 * length) for length in range(9)]
    assert promised(prices, 1, 8, 0.8) == pytest.approx(max(by_hand))
    assert promised(prices, 1, 8, 0.0) == 1.0
    fixed = prices.fixed_seconds(1, 8).tolist()
    assert fixed == pytest.approx([1 + 0.3 * length for length in range(9)])


def test_a_marginal_sums_the_other_signals_out():
    table = oracle()
    own = table.marginal(["match_length"])
    assert own.names == ("match_length",)
    assert own.number.tolist() == table.number.sum(1).tolist()
    assert float(own.predict({"match_length": torch.tensor([1.0])})) == pytest.approx(0.5, abs=0.03)
    with pytest.raises(ValueError, match="names"):
        table.marginal(["q"])


def simulated(table, draft=None, companion=None, slot=0.2, rows=4, longest=4):
    """Rates where a target's pass takes 1 s for its roots and `slot` for each draft token."""
    points = [Point("target", 8, rows, tokens, 1 + slot * (tokens - rows)) for tokens in (rows, 20 * rows)]
    for role, seconds in (("draft", draft), ("companion", companion)):
        if seconds is not None:
            points += [Point(role, 8, rows, tokens, seconds) for tokens in (rows, 20 * rows)]
    return simulated_rates(table, CallCosts(CostModel(points, Fingerprint.of({})), longest), rows, 8)


def test_simulated_rates_have_the_values_that_can_be_worked_out():
    sure = CalibrationTable.fit({"q": torch.rand(4000)}, torch.ones(4000))
    rates = simulated(sure, draft=0.1)
    assert rates["plain"] == pytest.approx(4.0)
    whole = 4 * 5 / (1 + 16 * 0.2 + 4 * 0.1)
    assert rates["fixed"] == pytest.approx(max(whole, 4 * 2 / (1 + 4 * 0.2 + 0.1)), rel=0.01)
    never = CalibrationTable.fit({"q": torch.rand(4000)}, torch.zeros(4000))
    rates = simulated(never)
    assert "stop" not in rates
    assert rates["cut"] == pytest.approx(4.0, rel=0.01), "nothing is verified, and drafts are free"


def test_simulated_schedules_gain_from_what_signals_tell():
    q = torch.rand(8000, generator=torch.Generator().manual_seed(0))
    told = simulated(CalibrationTable.fit({"q": q}, (q > 0.2).float()), draft=0.1, slot=0.1)
    blind = simulated(CalibrationTable.fit({"q": q}, torch.full((8000,), 0.8)), draft=0.1, slot=0.1)
    assert told["stop"] > 1.05 * told["fixed"]
    assert told["cut"] > 1.05 * blind["cut"]
    assert blind["stop"] > 0.95 * blind["fixed"], "nothing to stop by, and nothing lost"
    oracle_rates = simulated(oracle(), companion=0.01)
    assert oracle_rates["cut with companion"] > 1.03 * oracle_rates["cut"]
    assert simulated(oracle(), companion=3.0)["cut with companion"] < oracle_rates["cut"]
