"""Rows that a call waits for."""

import pytest
import torch

from hf_specverify.scheduling import schedule_batch
from hf_specverify.scheduling.behind import RowsBehind
from hf_specverify.scheduling.call_costs import StepCosts


class Prices:
    """A forward costs `base` and `each` for a token."""

    longest = 5

    def __init__(self, base=10.0, each=1.0):
        self.base, self.each = base, each

    def step(self, rows, context):
        tokens = rows + torch.arange(rows * self.longest + 1).double()
        return StepCosts(rows, 0.0, self.base + self.each * tokens, None)


def test_rows_that_are_alike_weigh_one_each():
    behind = RowsBehind(Prices())
    assert behind.weights([0, 1, 2], [7, 7, 7], [50, 50, 50], 64).tolist() == pytest.approx([1.0] * 3)
    assert behind.weights([4], [7], [50], 64).tolist() == [1.0]


def test_a_row_that_is_behind_or_slower_weighs_more():
    behind = RowsBehind(Prices())
    weights = behind.weights([0, 1, 2], [40, 30, 20], [20, 30, 40], 64)
    assert weights.sum() == pytest.approx(3)
    assert weights[2] > 1.5 > weights[1] > weights[0] > 0
    for _ in range(8):
        behind.learn([0, 1, 2], torch.tensor([3.0, 3.0, 1.0]), [True] * 3)
    slow = behind.weights([0, 1, 2], [20, 20, 20], [40, 40, 40], 64)
    assert slow[2] > 2 and slow[0] == pytest.approx(float(slow[1]))
    assert slow.sum() == pytest.approx(3)
    assert behind.weights([0, 1], [20, 20], [40, 40], 64).tolist() == pytest.approx([1.0, 1.0])


def test_weights_matter_as_far_as_rows_share_a_step():
    for base, each, least, most in ((1e-9, 1.0, 0.99, 1.01), (1.0, 1e-9, 1.9, 2.0)):
        weights = RowsBehind(Prices(base, each)).weights([0, 1], [60, 10], [0, 50], 64)
        assert least < float(weights[1]) < most


def test_a_row_whose_drafts_were_left_out_is_not_taken_for_slow():
    behind = RowsBehind(Prices())
    for _ in range(20):
        behind.learn([0, 1], torch.tensor([3.0, 1.0]), [True, False])
    first, second = behind.tokens_per_step([0, 1]).tolist()
    assert first == pytest.approx(second, abs=0.2) and second > 2.5


def test_without_a_near_limit_a_row_that_got_less_counts_as_behind():
    """A limit far away says nothing of when an answer ends."""
    behind = RowsBehind(Prices())
    for _ in range(8):
        behind.learn([0, 1], torch.tensor([4.0, 2.0]), [True] * 2)
    ahead, after = behind.weights([0, 1], [10, 100], [4000, 3910], 128).tolist()
    assert ahead > after  # the faster row has got so much less that it would end later


def made(weighted: bool, acceptance: list[float], limit: int) -> float:
    """Seconds until all rows have `limit` tokens, each row getting what its acceptance says."""
    prices, rows = Prices(), list(range(len(acceptance)))
    behind, tokens, seconds = RowsBehind(prices), [0.0] * len(rows), 0.0
    while rows:
        step, had = prices.step(len(rows), 64), [int(tokens[row]) for row in rows]
        room = [limit - count - 1 for count in had]
        weights = behind.weights(rows, had, room, 64) if weighted else None
        survival = torch.tensor([[acceptance[row]] * 5 for row in rows], dtype=torch.float64).cumprod(1)
        drafted = torch.tensor([min(5, space) for space in room])
        lengths = schedule_batch(survival, step.verify, drafted, weights).lengths.tolist()
        seconds += float(step.verify[sum(lengths)])
        got = torch.tensor([1 + float(row[:n].sum()) for row, n in zip(survival, lengths, strict=True)])
        behind.learn(rows, got, [n > 0 for n in lengths])
        for row, value in zip(rows, got.tolist(), strict=True):
            tokens[row] += value
        rows = [row for row in rows if tokens[row] < limit]
    return seconds


@pytest.mark.parametrize("acceptance", [[0.9, 0.9, 0.8, 0.8, 0.7, 0.7, 0.6, 0.5], [0.95, 0.9, 0.8, 0.6]])
def test_a_call_ends_sooner(acceptance):
    assert made(True, acceptance, 64) < 0.95 * made(False, acceptance, 64)


def test_a_call_of_equal_rows_is_what_it_was():
    assert made(True, [0.8] * 4, 64) == pytest.approx(made(False, [0.8] * 4, 64), rel=0.02)
