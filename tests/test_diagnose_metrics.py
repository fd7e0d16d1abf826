"""The metrics of a diagnosis, with known answers."""

from math import inf, log

import numpy as np
import pytest
import torch

from hf_specverify.diagnostics.bootstrap import Estimate, Ratio, compare, estimate
from hf_specverify.diagnostics.law_metrics import position_metrics
from hf_specverify.diagnostics.law_summary import Positions, shift_by_entropy, summarise_laws
from hf_specverify.diagnostics.samples import SequenceSample, short_numbers
from hf_specverify.diagnostics.steps import work_by_row
from hf_specverify.diagnostics.text_metrics import distinct_share, ending, loop_period, real_tokens, repetition
from hf_specverify.report import StepRecord


def metrics(p, law, matched=None):
    arguments = [None if values is None else torch.tensor([values]) for values in (p, law, matched)]
    return {name: float(value[0]) for name, value in position_metrics(*arguments).items()}


def test_laws_that_differ_in_two_tokens():
    found = metrics([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.5, 0.5, 0.0])
    assert found == pytest.approx(
        {
            "entropy": 1.5 * log(2),
            "tv": 0.25,
            "kl_target_law": 0.25 * log(2),
            "kl_law_target": 0.25 * log(2),
            "overshoot": 0.25,
            "max_ratio": 2.0,
            "tv_matched": 0.25,
            "kl_matched_law": 0.5 * log(2),
            "kl_law_matched": inf,
        }
    )


def test_the_two_directions_are_told_apart():
    found = metrics([0.5, 0.5, 0.0], [0.25, 0.5, 0.25])
    assert found["kl_target_law"] == pytest.approx(0.5 * log(2))
    assert found["kl_law_target"] == found["max_ratio"] == inf
    assert found["overshoot"] == found["tv"] == 0.25
    assert "tv_matched" not in found


def test_equal_laws_are_at_no_distance():
    found = metrics([1.0, 0.0], [1.0, 0.0], [1.0, 0.0])
    assert found.pop("max_ratio") == 1
    assert set(found.values()) == {0.0}


def test_numbers_in_files_are_short_and_finite():
    assert short_numbers([1.0, 0.123456789, inf, 0.0]) == [1.0, 0.123457, None, 0.0]


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [([1, 2, 1, 2], 1, 0.5), ([1, 2, 1, 2], 2, 2 / 3), ([1, 2, 3], 2, 1.0), ([1], 2, 1.0), ([], 1, 1.0)],
)
def test_distinct(tokens, n, share):
    assert distinct_share(tokens, n) == pytest.approx(share)


def test_repetition_counts_grams_of_four():
    assert repetition([7] * 8) == pytest.approx(4 / 5)
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repetition(list(range(8))) == 0
    with pytest.raises(ValueError, match="n=0"):
        distinct_share([1], 0)


@pytest.mark.parametrize(
    ("tokens", "period"),
    [
        ([9, 8, *[5] * 16], 1),
        ([5] * 15, None),
        ([1, 2] * 8, 2),
        ([9, *[1, 2, 3, 4, 5, 6] * 3], 6),
        ([*[1, 2, 3, 4, 5, 6] * 3, 9], None),
        ([1, 2, 3, 4, 5, 6] * 2, None),
        (list(range(64)) * 3, 64),
        (list(range(65)) * 3, None),
        (list(range(20)) * 2, None),
        ([], None),
    ],
)
def test_loops(tokens, period):
    assert loop_period(tokens) == period


def test_endings():
    assert ending([4, 5, 1], {1}, 3) == "eos"
    assert ending([1, 4, 5], {1}, 3) == "limit"
    assert ending([4, 5], {1}, 3) == "stop"
    assert ending([4] * 20, {1}, 20) == "loop"
    assert ending([*[4] * 19, 1], {1}, 20) == "eos"
    assert ending([4] * 20, set(), 21) == "stop"


def test_padding_is_no_output():
    assert real_tokens([4, 1, 1, 1], {1}, 1) == [4, 1]
    assert real_tokens([4, 5, 0, 0], {1}, 0) == [4, 5]
    assert real_tokens([4, 5, 0, 0], {1}, None) == [4, 5, 0, 0]
    assert real_tokens([0, 4], {1}, 0) == [0, 4]


def test_the_interval_of_a_mean_is_that_of_the_normal_law():
    """400 values of 0 and 1, half each: ±1.96·0.5/20."""
    found = estimate(Ratio(np.tile([0.0, 1.0], 200), np.ones(400)))
    assert found.value == 0.5
    assert found.low == pytest.approx(0.451, abs=0.008)
    assert found.high == pytest.approx(0.549, abs=0.008)


def test_sums_are_divided_not_averaged():
    ratio = Ratio(np.array([1.0, 9.0]), np.array([1.0, 1.0 / 3]))
    assert ratio.value() == pytest.approx(7.5)
    assert Ratio(ratio.above, ratio.below, np.log).value() == pytest.approx(log(7.5))


def test_comparisons_are_paired():
    """Prompts differ much, and each by exactly 1 between the two: the difference has no spread."""
    values = np.random.default_rng(1).normal(0, 100, 50)
    first, second = Ratio(values + 1, np.ones(50)), Ratio(values, np.ones(50))
    found = compare(first, second)
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    doubled = compare(Ratio(2 * values, np.ones(50)), second, relative=True)
    assert (doubled.value, doubled.low, doubled.high) == pytest.approx((2.0, 2.0, 2.0))
    with pytest.raises(ValueError, match="50 prompts, second 1"):
        compare(first, Ratio(np.ones(1), np.ones(1)))


def test_what_can_not_be_said_is_left_out():
    assert estimate(Ratio(np.zeros(3), np.zeros(3))) == Estimate(None)
    assert estimate(Ratio(np.ones(1), np.ones(1))) == Estimate(1.0)
    assert str(Estimate(None)) == "–"
    assert str(Estimate(0.51234, 0.4, 0.6)) == "0.5123 [0.4, 0.6]"


def sample(prompt, drafted, entropy, tv, kl):
    positions = {"drafted": drafted, "entropy": entropy, "tv": tv, "kl_law_target": kl}
    return SequenceSample(prompt, len(tv), "limit", -1.0, 1, 1, 0, 1.0, 1, 1, 1, positions=positions)


def test_laws_are_summed_up_over_positions():
    positions = Positions.of(
        [
            sample(0, [1, 0, 1], [0.1, 0.1, 2.5], [0.2, 0.0, 0.4], [0.3, 0.0, None]),
            sample(1, [1], [0.1], [0.6], [0.5]),
        ]
    )
    laws = summarise_laws(positions, 2)
    assert laws["tv"].drafted.value == pytest.approx(0.4)
    assert laws["tv"].all.value == pytest.approx(0.3)
    assert (laws["tv"].median, laws["tv"].largest, laws["tv"].infinite) == (0.4, 0.6, 0)
    assert laws["kl_law_target"].drafted.value == pytest.approx(0.4)
    assert laws["kl_law_target"].largest is None
    assert laws["kl_law_target"].infinite == pytest.approx(1 / 3)
    low, high = shift_by_entropy(positions, 2)
    assert (low.low, low.high, low.positions, high.positions) == (0.05, 0.2, 2, 1)
    assert low.means["tv"].value == pytest.approx(0.4)
    assert high.means["kl_law_target"].value is None
    assert Positions.of([]) is None


def test_rows_get_their_own_part_of_the_steps():
    steps = [
        StepRecord("speculative", (0, 1), (3, 3), (3, 3), (3, 1), (4, 2), 0.1),
        StepRecord("speculative", (1,), (2,), (2,), (2,), (1,), 0.2),  # cut off by the end of the row
        StepRecord("plain", (1,), (0,), (0,), (0,), (1,), 0.3),
    ]
    first, second = work_by_row(steps, 2)
    assert first.drafted == [True, True, True, False]
    assert (first.passes, first.verified, first.accepted) == (1, 3, 3)
    assert second.drafted == [True, True, True, False]
    assert (second.passes, second.verified, second.accepted) == (3, 4, 2)
    assert second.blocks == [(0, 3, 3), (2, 2, 2), (3, 0, 0)]
