"""Schedules: the rule by hand, and the exact joint law of what comes out of them."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from toy_schedules import Cut, Row, Scheduler, at_drawn, joint_error, toy_rows, vocabulary_predictions

from hf_specverify.scheduling import (
    admitted,
    expected_accepted,
    goodput_by_length,
    goodput_length,
    schedule_batch,
    schedule_drawn,
    worth_drafting,
)
from hf_specverify.testing import Case, contexts

ACCEPTANCE = [0.95, 0.90, 0.88, 0.78, 0.55, 0.30, 0.12, 0.05]
LATENCY = [2.9, 3.0, 3.2, 3.4, 3.7, 4.1, 4.6, 5.2, 6.0]  # the example does not give the first, γ = 0


def test_worked_example():
    expected = expected_accepted(ACCEPTANCE)[1:].tolist()
    assert expected == pytest.approx([0.95, 1.81, 2.56, 3.15, 3.47, 3.57, 3.58, 3.58], abs=0.0075)
    rates = goodput_by_length(ACCEPTANCE, LATENCY)[1:].tolist()
    assert rates == pytest.approx([0.65, 0.88, 1.05, 1.12, 1.09, 0.99, 0.88, 0.76], abs=0.0075)
    assert goodput_length(ACCEPTANCE, LATENCY) == 4
    assert goodput_length(torch.tensor(ACCEPTANCE), torch.tensor(LATENCY)) == 4


def test_length_stops_at_the_first_fall():
    assert goodput_length([0.9, 0.9], [1.0, 2.0, 2.0]) == 0  # a global maximum would be 2
    assert goodput_length([], [1.0]) == 0
    assert goodput_length([1.0, 1.0], [1.0, 1.0, 1.0]) == 2
    assert goodput_length([0.5], [1.0, 1.5]) == 0  # equal is no rise
    for arguments, name in (
        (([1.1], [1.0, 1.0]), "acceptance"),
        (([float("nan")], [1.0, 1.0]), "acceptance"),
        (([0.5], [1.0]), "latency"),
        (([0.5], [1.0, 1.0, 1.0]), "latency"),
        (([0.5], [1.0, 0.0]), "latency"),
    ):
        with pytest.raises(ValueError, match=name):
            goodput_length(*arguments)


def random_batch(seed: int, rows: int = 5, longest: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    acceptance = torch.rand(rows, longest, generator=generator, dtype=torch.float64) ** 0.4
    acceptance[torch.rand(rows, longest, generator=generator) < 0.2] = 1.0  # ties
    steps = torch.rand(rows * longest, generator=generator, dtype=torch.float64)
    latency = torch.cat([torch.tensor([2.0]), 2 + (0.25 * steps * torch.arange(1, rows * longest + 1) / 8).cumsum(0)])
    return acceptance, latency, torch.randint(longest + 1, (rows,), generator=generator)


def random_weights(seed: int, rows: int) -> Tensor:
    """Positive, and `rows` in all."""
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(seed + 99), dtype=torch.float64) + 0.1
    return weights * rows / weights.sum()


def greedy_by_hand(
    acceptance: Tensor, latency: Tensor, drafted: list[int], weights: Tensor
) -> tuple[list[int], list[list[float]]]:
    rows, longest = acceptance.shape
    lengths, expected = [0] * rows, float(rows)
    threshold = [[float("inf")] * longest for _ in range(rows)]
    survival = (weights[:, None] * acceptance.cumprod(1)).tolist()
    while True:
        candidates = [(-survival[row][n], row) for row, n in enumerate(lengths) if n < drafted[row]]
        if not candidates:
            return lengths, threshold
        gain, row = min(candidates)
        k = sum(lengths)
        threshold[row][lengths[row]] = expected * (float(latency[k + 1]) / float(latency[k]) - 1)
        if (expected - gain) / float(latency[k + 1]) <= expected / float(latency[k]):
            return lengths, threshold
        lengths[row] += 1
        expected -= gain


@pytest.mark.parametrize("seed", range(12))
def test_batched_greedy(seed):
    acceptance, latency, drafted = random_batch(seed)
    weights = random_weights(seed, 5) if seed % 2 else torch.ones(5, dtype=torch.float64)
    lengths, threshold = greedy_by_hand(acceptance, latency, drafted.tolist(), weights)
    schedule = schedule_batch(acceptance.cumprod(1), latency, drafted, weights)
    assert schedule.lengths.tolist() == lengths
    assert schedule.threshold.flatten().tolist() == pytest.approx(list(itertools.chain(*threshold)), abs=1e-12)
    by_function = schedule_batch(acceptance.cumprod(1), lambda tokens: latency[tokens], drafted, weights)
    assert by_function.lengths.tolist() == lengths


def test_some_batches_are_cut_and_some_are_not():
    totals = [int(schedule_batch(a.cumprod(1), t, d).lengths.sum()) for a, t, d in map(random_batch, range(12))]
    assert min(totals) > 0 and len(set(totals)) > 4


@pytest.mark.parametrize("seed", range(8))
def test_one_row_is_the_rule_of_one_row(seed):
    acceptance, latency, _ = random_batch(seed, rows=1)
    expected = goodput_length(acceptance[0], latency)
    assert schedule_batch(acceptance.cumprod(1), latency).lengths.tolist() == [expected]
    drawn = schedule_drawn(acceptance, latency)
    assert drawn.lengths.tolist() == [expected]
    assert drawn.cut.tolist() == [expected < 6]
    survival = torch.cat([torch.ones(1, dtype=torch.float64), acceptance[0].cumprod(0)])
    for i in range(min(expected + 1, 6)):  # θ = (τ / surv) · (lat(i + 1) / lat(i) - 1)
        theta = float(expected_accepted(acceptance[0])[i] + 1) / survival[i] * (latency[i + 1] / latency[i] - 1)
        assert float(drawn.required[0, i]) == pytest.approx(float(theta))


@pytest.mark.parametrize("seed", range(8))
def test_drawn_schedule_ends_every_row_at_its_first_position_that_does_not_pay(seed):
    acceptance, latency, drafted = random_batch(seed)
    schedule = schedule_drawn(acceptance.float(), latency, drafted)
    for row, length in enumerate(schedule.lengths.tolist()):
        assert length == int(drafted[row]) or bool(schedule.cut[row])
        assert bool((acceptance[row, :length].float() > schedule.required[row, :length]).all())
        if bool(schedule.cut[row]):
            assert not bool(acceptance[row, length].float() > schedule.required[row, length])
        beyond = length + int(schedule.cut[row])
        assert bool(schedule.required[row, beyond:].isinf().all())
    flags = admitted(acceptance.float()[..., None], schedule.required)[..., 0]
    kept = flags & (torch.arange(6) < drafted[:, None])
    assert kept.long().cumprod(1).sum(1).tolist() == schedule.lengths.tolist()


def test_empty_and_free_batches():
    assert schedule_batch(torch.ones(3, 0), [1.0]).lengths.tolist() == [0, 0, 0]
    assert schedule_drawn(torch.ones(3, 0), [1.0]).lengths.tolist() == [0, 0, 0]
    free = torch.ones(13)
    assert schedule_batch(torch.full((3, 4), 0.1), free).lengths.tolist() == [4, 4, 4]
    assert schedule_drawn(torch.full((3, 4), 0.1), free).lengths.tolist() == [4, 4, 4]
    nothing_left = torch.tensor([[0.0, 0.5]])
    assert schedule_drawn(nothing_left, torch.tensor([3.0, 2.0, 1.0])).lengths.tolist() == [1]  # cheaper, yet hopeless
    rest: dict[object, tuple[None, ...]] = {schedule_batch: (), schedule_drawn: (None,)}
    for call in (schedule_batch, schedule_drawn):
        for arguments, name in (
            ((torch.tensor([[1.5]]), free), "survival|predicted"),
            ((torch.ones(2), free), "survival|predicted"),
            ((torch.ones(2, 7), free), "latency"),
            ((torch.ones(2, 2), free, torch.ones(3)), "drafted"),
            ((torch.ones(2, 2), free, None, *rest[call], torch.tensor([1.0])), "weights"),
            ((torch.ones(2, 2), free, None, *rest[call], torch.tensor([2.0, 0.0])), "weights"),
        ):
            with pytest.raises(ValueError, match=name):
                call(*arguments)
    with pytest.raises(ValueError, match="before"):
        schedule_drawn(torch.ones(2, 2), free, None, torch.ones(2, 3))
    with pytest.raises(ValueError, match="required"):
        admitted(torch.ones(2, 3, 5), torch.ones(2, 2))


def test_worth_drafting():
    def rows(gains, extra, **options):
        gains = torch.tensor(gains)
        arguments = {"rate": 2.0} | options
        return worth_drafting(torch.ones_like(gains), gains, extra_seconds=torch.tensor(extra), **arguments).tolist()

    assert rows([0.9, 0.1, 0.8], [0.0, 0.4, 0.5, 0.9]) == [True, False, True]  # 1.7 tokens for .5 s, at 2 per s
    assert rows([0.9, 0.1, 0.8], [0.0, 0.5, 1.0, 1.5]) == [False] * 3
    # A draft pass that no single row is worth, but two are.
    assert rows([0.9, 0.1, 0.8], [0.0, 0.5, 0.6, 1.5]) == [True, False, True]
    assert rows([0.9, 0.1, 0.8], [0.0, 0.3, 0.5, 0.9], drafting=torch.tensor([False, True, True])) == [
        False, False, True
    ]  # fmt: skip
    # The tokens of the last row are worth more than those of the first.
    weighted = rows([0.9, 0.1, 0.8], [0.0, 0.4, 0.9, 1.5], weights=torch.tensor([0.5, 0.5, 2.0]))
    assert weighted == [False, False, True]
    assert rows([0.0, 0.0], [0.0, 0.0, 0.0]) == [False, False]
    assert rows([], [0.0]) == []
    with pytest.raises(ValueError, match="extra_seconds"):
        rows([0.5], [0.0])
    with pytest.raises(ValueError, match="rate"):
        rows([0.5], [0.0, 1.0], rate=0.0)


def corrected(latency: list[float], ordered: bool = False, weights: Tensor | None = None) -> Scheduler:
    def schedule(rows: list[Row], blocks: list[tuple[int, ...]]) -> list[Cut]:
        predictions = vocabulary_predictions(rows, blocks)
        before = None
        if ordered:  # what is expected of a position before its token is drawn
            laws = [
                torch.stack([row[0].q[block[:i]] for i in range(row[0].length)]) for row, block in zip(rows, blocks)
            ]
            before = (torch.stack(laws) * predictions).sum(-1)
        found = schedule_drawn(at_drawn(predictions, blocks), torch.tensor(latency), before=before, weights=weights)
        flags = admitted(predictions, found.required)
        for row, (length, cut) in enumerate(zip(found.lengths.tolist(), found.cut.tolist(), strict=True)):
            assert cut == (length < len(blocks[row]))
        return [(n, flags[row]) for row, n in enumerate(found.lengths.tolist())]

    return schedule


def uncorrected(latency: list[float]) -> Scheduler:
    exact = corrected(latency)

    def schedule(rows: list[Row], blocks: list[tuple[int, ...]]) -> list[Cut]:
        cuts = exact(rows, blocks)
        return [(n, torch.cat([torch.ones_like(v[:n]), torch.zeros_like(v[n:])])) for n, v in cuts]

    return schedule


def global_maximum(latency: list[float], looks: bool) -> Scheduler:
    """The γ of the largest goodput over a whole block: even what is known before each token makes it biased."""

    def schedule(rows: list[Row], blocks: list[tuple[int, ...]]) -> list[Cut]:
        predictions = vocabulary_predictions(rows, blocks)
        seen = at_drawn(predictions, blocks) if looks else predictions.mean(-1)
        length = int(goodput_by_length(seen[0], latency).argmax())
        flags = torch.ones_like(predictions[0], dtype=torch.bool)
        if looks:
            flags = admitted(predictions, schedule_drawn(seen, torch.tensor(latency)).required)[0]
            for place, token in enumerate(blocks[0][:length]):
                flags[place, token] = True
        elif length < len(blocks[0]):
            flags[length] = False
        return [(length, flags)]

    return schedule


def known_before(latency: list[float], weights: Tensor | None = None) -> Scheduler:
    """The sorted greedy rule with predictions that do not look at the drawn token: no correction is needed."""

    def schedule(rows: list[Row], blocks: list[tuple[int, ...]]) -> list[Cut]:
        predictions = vocabulary_predictions(rows, blocks)
        found = schedule_batch(predictions.mean(-1).cumprod(1), torch.tensor(latency), weights=weights)
        cuts = []
        for row, length in enumerate(found.lengths.tolist()):
            flags = torch.ones_like(predictions[row])
            flags[length:] = 0
            cuts.append((length, flags))
        return cuts

    return schedule


def everything_else_fixed(latency: list[float]) -> Scheduler:
    """The sorted greedy rule by drawn tokens, each row corrected as if the other rows' tokens had been given."""

    def lengths(predictions: Tensor, blocks: list[tuple[int, ...]]) -> list[int]:
        return schedule_batch(at_drawn(predictions, blocks).cumprod(1), torch.tensor(latency)).lengths.tolist()

    def schedule(rows: list[Row], blocks: list[tuple[int, ...]]) -> list[Cut]:
        predictions = vocabulary_predictions(rows, blocks)
        flags = torch.zeros_like(predictions)
        for row, place, token in itertools.product(*map(range, predictions.shape)):
            other = list(blocks)
            other[row] = (*blocks[row][:place], token, *blocks[row][place + 1 :])
            flags[row, place, token] = lengths(predictions, other)[row] > place
        return [(n, flags[row]) for row, n in enumerate(lengths(predictions, blocks))]

    return schedule


JAGGED = [1.0, 1.18, 1.5, 1.55, 2.1, 2.3, 3.0]
VERIFIERS = ["token", "block"]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("seed", range(3))
def test_one_row_is_lossless(verifier, seed):
    for length, size in ((1, 3), (2, 3), (3, 2)):
        rows = toy_rows(seed, 1, length, size)
        for latency in ([1.0, 1.2, 1.5, 1.9], JAGGED[:4]):
            assert joint_error(rows, corrected(latency[: length + 1]), verifier)[0] < 1e-9
            assert joint_error(rows, known_before(latency[: length + 1]), verifier)[0] < 1e-9


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("seed", range(3))
def test_two_rows_are_jointly_lossless(verifier, seed):
    for length, size, latency in ((1, 3, JAGGED[:3]), (2, 2, JAGGED[:5]), (2, 2, [1.0, 1.1, 1.25, 1.4, 1.8])):
        rows = toy_rows(seed + 10, 2, length, size)
        uneven = torch.tensor([1.7, 0.3])
        for schedule in (
            corrected(latency),
            corrected(latency, ordered=True),
            corrected(latency, weights=uneven),
            known_before(latency),
            known_before(latency, uneven),
        ):
            assert joint_error(rows, schedule, verifier)[0] < 1e-9


def test_three_rows_are_jointly_lossless():
    assert joint_error(toy_rows(20, 3, 1, 3), corrected([1.0, 1.18, 1.5, 1.55]), "token")[0] < 1e-9


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_without_the_correction_the_law_is_off(verifier):
    assert joint_error(toy_rows(0, 1, 2, 3), uncorrected([1.0, 1.2, 1.5]), verifier)[0] > 1e-3
    assert joint_error(toy_rows(10, 2, 2, 2), uncorrected(JAGGED[:5]), verifier)[0] > 1e-3


@pytest.mark.parametrize("looks", [False, True])
def test_a_global_maximum_is_biased(looks):
    errors = [
        joint_error(toy_rows(seed, 1, 2, 3), global_maximum([1.0, 1.5, 1.55], looks), "token")[0] for seed in range(4)
    ]
    assert max(errors) > 1e-3


def test_the_sorted_order_cannot_be_corrected_row_by_row():
    latency = [1.0, 1.2, 1.75]
    errors = [joint_error(toy_rows(seed, 2, 1, 3), everything_else_fixed(latency), "token") for seed in range(10, 14)]
    assert max(single for _, single in errors) < 1e-9
    assert max(joint for joint, _ in errors) > 1e-5


def test_stopping_by_the_tokens_of_all_rows_and_cutting_afterwards_is_biased():
    size, length = 2, 3

    def row(q: list[float], predicted: Callable[[tuple[int, ...]], float]) -> Row:
        laws = [torch.tensor(law, dtype=torch.float64) for law in ([0.5, 0.5], q)]
        p, draft = (dict.fromkeys(contexts(length, size), law) for law in laws)
        predictions = {x: torch.full((size,), predicted(x), dtype=torch.float64) for x in contexts(length - 1, size)}
        return Case("toy", length, p, draft, {}), predictions

    rows = [row([0.9, 0.1], lambda x: {(0,): 0.9, (1,): 0.1}.get(x, 0.5)), row([0.5, 0.5], lambda x: 0.99)]

    def stop_and_cut(rows: list[Row], blocks: list[tuple[int, ...]], cuts: bool) -> list[Cut]:
        survival = at_drawn(vocabulary_predictions(rows, blocks), blocks).cumprod(1)
        goes_on = worth_drafting(
            survival[:, 1],
            torch.full((2,), 0.9),
            rate=0.9,
            extra_seconds=torch.tensor([0.0, 1.0, 1.1]),
        )
        lengths = 2 + goes_on.long()
        if cuts:
            lengths = schedule_batch(survival, [1.0, 1.1, 1.2, 1.44, 1.44, 2.0, 3.0], lengths).lengths
        flags = [(torch.arange(length) < n)[:, None].expand(length, size) for n in lengths.tolist()]
        return list(zip(lengths.tolist(), flags, strict=True))

    assert joint_error(rows, lambda r, b: stop_and_cut(r, b, cuts=False), "token")[0] < 1e-12
    assert joint_error(rows, lambda r, b: stop_and_cut(r, b, cuts=True), "token")[1] > 5e-3  # .05 in the first token
