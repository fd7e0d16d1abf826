"""What verification was good for: rejected tokens, steps slower than plain ones, unequal rows, choices."""

import pytest
import tiny
from reporting import make_report, make_step
from test_schedules import generate, table

import hf_specverify as sv
from hf_specverify.report import SpeculationReport, StepRecord
from hf_specverify.scheduling import CostModel
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint


def timed(*steps: tuple[float, tuple[int, ...], float | None], mode: str = "speculative") -> SpeculationReport:
    """Each step: its seconds, tokens committed by row, seconds of a plain step."""
    records, elapsed = [], 0.0
    for seconds, committed, plain in steps:
        elapsed += seconds
        rows = [(4, 4, count - 1, count) for count in committed]
        records.append(make_step(*rows, mode=mode, elapsed=elapsed, plain_seconds=plain))
    return make_report(records)


def test_rejected_tokens_are_shares_of_draft_tokens_and_of_all_scored_ones():
    report = make_report([make_step((4, 4, 1, 2), (5, 2, 2, 3)), make_step((3, 3, 0, 1))])
    assert report.rejected == 3 + 0 + 3
    assert report.rejected_share == 6 / 9
    assert report.wasted_verification == 6 / (9 + 3)


def test_tokens_accepted_behind_a_cut_were_scored_but_not_rejected():
    """The verifier accepted four of five; the second ended the row."""
    report = make_report([make_step((5, 5, 4, 2))])
    assert (report.accepted, report.rejected) == (2, 1)
    assert (report.rejected_share, report.wasted_verification) == (1 / 5, 1 / 6)


def test_without_cuts_rejected_chains_complement_the_acceptance_rate():
    report = make_report([make_step((4, 4, 1, 2), (4, 3, 3, 4)), make_step((4, 2, 0, 1))])
    assert report.rejected_share == pytest.approx(1 - report.acceptance_rate)


def test_plain_steps_waste_nothing():
    report = make_report([make_step((0, 0, 0, 1), (0, 0, 0, 1), mode="plain")])
    assert (report.rejected, report.rejected_share, report.wasted_verification) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "committed", "plain", "share"),
    [
        (1.0, (3,), 0.5, 0.0),  # 3 tokens/s against 2
        (2.0, (3,), 0.5, 1.0),  # 1.5 against 2
        (1.5, (3,), 0.5, 0.0),  # as fast
        (1.0, (3, 1), 0.75, 0.0),  # 4 tokens/s against 2 rows in .75 s
        (2.0, (3, 1), 0.75, 1.0),  # 2 against 2.67: one row in .75 s would have been slower
    ],
)
def test_a_step_is_slower_than_plain_if_its_rows_got_fewer_tokens_per_second(
    seconds: float, committed: tuple[int, ...], plain: float, share: float
):
    assert timed((1.0, (1,), None), (seconds, committed, plain)).slower_than_plain == share


def test_the_step_that_reads_the_prompt_is_not_compared():
    assert timed((100.0, (1,), 0.5)).slower_than_plain is None
    assert timed((100.0, (1,), 0.5), (1.0, (3,), 0.5)).slower_than_plain == 0.0


def test_seconds_of_a_step_are_its_own():
    """The third step took a second, though three have gone by."""
    assert timed((1.0, (1,), 0.5), (1.0, (1,), 0.5), (1.0, (3,), 0.5)).slower_than_plain == 1 / 2


def test_only_speculative_steps_of_known_cost_are_compared():
    slow = (1.0, (1,), 0.5)
    assert timed(slow, slow, mode="plain").slower_than_plain is None
    assert timed(slow, (1.0, (1,), None)).slower_than_plain is None
    assert timed(slow, (1.0, (1,), None), slow, (1.0, (4,), 0.5)).slower_than_plain == 1 / 2


def test_verified_by_row_is_a_mean_over_the_passes_of_the_row():
    steps = [
        StepRecord("speculative", (0, 5), (4, 4), (4, 1), (0, 0), (1, 1), 1.0),
        StepRecord("speculative", (5,), (4,), (2,), (0,), (1,), 2.0),
    ]
    report = make_report(steps)
    assert report.verified_by_row == {0: 4.0, 5: 1.5}
    assert report.mean_verified_worst_rows == 1.5


@pytest.mark.parametrize(("count", "mean"), [(1, 1.0), (10, 1.0), (11, 1.5), (20, 1.5), (21, 2.0)])
def test_the_worst_rows_are_a_tenth_rounded_up(count: int, mean: float):
    """Row i verifies i + 1 tokens, the rows in falling order."""
    rows = [(30, length, 0, 1) for length in range(count, 0, -1)]
    assert make_report([make_step(*rows)]).mean_verified_worst_rows == mean


def test_the_tail_of_row_latency_interpolates_between_rows():
    """Rows 0 … 4 end after 1, 2, … 5 seconds with a token each."""
    steps = [StepRecord("plain", (row,), (0,), (0,), (0,), (1,), row + 1.0) for row in range(5)]
    tail = make_report(steps).row_latency_tail
    assert tail == {"p50": 3.0, "p95": pytest.approx(4.8), "max": 5.0}
    assert make_report(steps[:2]).row_latency_tail["p50"] == 1.5
    assert set(make_report(steps[:1]).row_latency_tail.values()) == {1.0}


def test_choices_are_counted_most_frequent_first():
    steps = [make_step((4, 4, 2, 3), choice=choice) for choice in ("stop", "", "fixed 5", "cut", "fixed 5")]
    assert list(make_report(steps).choices.items()) == [("fixed 5", 2), ("stop", 1), ("cut", 1)]
    assert make_report(steps).mode_by_step == ["speculative"] * 5


def test_schedule_and_drift_have_defaults():
    assert (make_report([]).schedule, make_report([]).drift) == ("fixed", None)
    assert make_report([], schedule="goodput", drift=-0.25).drift == -0.25


@pytest.mark.parametrize(("unit", "share"), [(1e-9, 1.0), (1e6, 0.0)])
def test_a_call_with_costs_says_what_its_steps_are_worth(unit: float, share: float):
    """By its costs plain decoding takes next to no time, or days."""
    shapes = [(batch, tokens) for batch in (1, 8) for tokens in (1, 100)]
    points = [Point("target", 8, batch, tokens, unit * (1 + 0.03 * tokens)) for batch, tokens in shapes]
    costs = CostModel(points, Fingerprint.of({}))
    target = tiny.make_model(eos_token_id=None)
    options = {"verify_length": "goodput", "calibration": table("q"), "num_draft_tokens": 3}
    report = generate(target, tiny.near_copy(target), tiny.prompts(3), costs=costs, **options).speculation
    assert (report.schedule, report.drift) == ("goodput", None)
    assert report.slower_than_plain == share
    expected = [unit * (1 + 0.03 * len(step.rows)) for step in report.steps]
    assert [step.plain_seconds for step in report.steps] == pytest.approx(expected, rel=1e-6)
    assert sum(report.choices.values()) == report.target_passes
    assert "cut" in report.choices
    assert report.expected_seconds is None  # what drafts cost is not known


@pytest.mark.parametrize("options", [{}, {"verify_length": "auto"}, {"draft_length": "goodput"}])
def test_the_passes_of_draft_and_companion_are_expected_too(options: dict[str, str]):
    """Target passes cost 1 and .01 a token, draft passes .1, of the companion .001 a token that it reads."""
    shapes = [(batch, tokens) for batch in (1, 8) for tokens in (1, 100)]
    prices = {"target": (1.0, 0.01), "draft": (0.1, 0.0), "companion": (0.0, 0.001)}
    points = [
        Point(role, 8, batch, tokens, fixed + each * tokens)
        for role, (fixed, each) in prices.items()
        for batch, tokens in shapes
    ]
    target = tiny.make_model(eos_token_id=None)
    more = options and {"calibration": table("q")}
    report = generate(
        target, tiny.near_copy(target), tiny.prompts(3), costs=CostModel(points, Fingerprint.of({})),
        num_draft_tokens=3, **options, **more,
    ).speculation  # fmt: skip
    expected = [
        1 + 0.01 * sum(1 + verified for verified in step.verified) + 0.1 * max(step.drafted) for step in report.steps
    ]
    assert [step.expected_seconds for step in report.steps] == pytest.approx(expected, rel=1e-6)
    assert report.expected_seconds == pytest.approx(sum(expected))
    assert f"{report.expected_seconds:.3f} s for the forwards of all steps" in str(report)
    assert any(sum(step.drafted) for step in report.steps)


def test_lookup_does_not_pay_for_another_drafter_s_passes():
    points = [Point(role, 8, 1, tokens, 1.0) for role in ("target", "draft") for tokens in (1, 100)]
    target, costs = tiny.make_model(eos_token_id=None), CostModel(points, Fingerprint.of({}))
    report = generate(target, sv.PromptLookup(2), tiny.prompts(1), num_draft_tokens=3, costs=costs).speculation
    assert any(sum(step.drafted) for step in report.steps)
    assert report.expected_seconds == report.target_passes


def test_what_a_companion_reads_is_expected():
    shapes = [(batch, tokens) for batch in (1, 8) for tokens in (1, 100)]
    prices = {"target": 1.0, "draft": 1e-9, "companion": 0.01}
    points = [Point(role, 8, *shape, each * shape[1]) for role, each in prices.items() for shape in shapes]
    target = tiny.make_model(eos_token_id=None)
    report = generate(
        target, tiny.near_copy(target), tiny.prompts(1), costs=CostModel(points, Fingerprint.of({})),
        companion_model=tiny.near_copy(target), num_draft_tokens=3, verify_length="goodput", calibration=table("A"),
        online_calibration=False,
    ).speculation  # fmt: skip
    read = [
        1 + step.verified[0] + 0.01 * (1 + step.drafted[0]) * (step.choice == "cut with companion")
        for step in report.steps
    ]
    assert "cut with companion" in report.choices
    assert [step.expected_seconds for step in report.steps] == pytest.approx(read, rel=1e-6)


def test_a_call_without_costs_has_no_plain_step_to_compare_with():
    target = tiny.make_model(eos_token_id=None)
    report = generate(target, tiny.near_copy(target), tiny.prompts(2), num_draft_tokens=3).speculation
    assert (report.schedule, report.drift, report.slower_than_plain) == ("fixed", None, None)
    assert report.expected_seconds is None
    assert SpeculationReport.from_dict(report.to_dict()) == report
