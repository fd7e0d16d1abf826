"""The report's figures against numbers computed by hand, and its invariants on random records."""

import json
import random

import pytest
from reporting import METRICS, documented_example, make_report, make_step, random_report

from hf_specverify.report import PHASES, SpeculationReport, StepRecord


def test_documented_example_gives_the_documented_values():
    report, documented = documented_example()
    assert len(documented) == 27
    for name, value in documented.items():
        field, _, kind = name.partition("[")
        computed = getattr(report, field)
        computed = computed[kind.strip('"]')] if kind else computed
        if not isinstance(value, list) or not isinstance(value[0], str):
            value = pytest.approx(value, abs=5e-5)
        assert computed == value, name


def test_every_figure_is_defined_in_the_docs():
    text = METRICS.read_text(encoding="utf-8")
    missing = [name for name in make_report([]).to_dict() if f"`{name}" not in text]
    assert missing == []


def test_hand_computed_blocks_without_a_cut():
    report = make_report([make_step((3, 3, 3, 4), (3, 3, 1, 2)), make_step((3, 2, 0, 1), (3, 3, 2, 3))])
    assert (report.drafted, report.verified, report.accepted, report.committed) == (12, 11, 6, 10)
    assert (report.target_passes, report.row_passes) == (2, 4)
    assert report.tokens_per_target_pass == 10 / 4
    assert report.acceptance_rate == 6 / 11
    assert report.acceptance_by_position["conditional"] == [3 / 4, 2 / 3, 1 / 2]
    assert report.acceptance_by_position["unconditional"] == [3 / 4, 2 / 4, 1 / 3]
    assert report.verify_lengths == {2: 1, 3: 3}
    assert report.draft_lengths == {3: 4}


def test_tokens_behind_a_cut_are_neither_accepted_nor_rejected():
    report = make_report([make_step((5, 5, 5, 2), (5, 5, 1, 2))])
    assert report.accepted == 2 + 1
    assert report.verified == 10
    assert report.acceptance_rate == 3 / (2 + 5)
    assert report.acceptance_by_position["conditional"] == [1.0, 1 / 2, 0.0, 0.0, 0.0]
    assert report.acceptance_by_position["unconditional"] == [1.0, 1 / 2, 0.0, 0.0, 0.0]


def test_a_cut_right_after_the_last_accepted_token_leaves_the_next_position_unobserved():
    cut = make_report([make_step((4, 4, 2, 2))])
    rejected = make_report([make_step((4, 4, 2, 3))])
    assert (cut.acceptance_rate, rejected.acceptance_rate) == (1.0, 0.5)
    blocks = [make_step((4, 4, 3, 4))]
    with_cut = make_report([make_step((4, 4, 2, 2)), *blocks]).acceptance_by_position
    with_rejection = make_report([make_step((4, 4, 2, 3)), *blocks]).acceptance_by_position
    assert with_cut == {"conditional": [1.0, 1.0, 1.0, 0.0], "unconditional": [1.0, 1.0, 1.0, 0.0]}
    assert with_rejection == {"conditional": [1.0, 1.0, 0.5, 0.0], "unconditional": [1.0, 1.0, 0.5, 0.0]}


def test_a_row_cut_before_its_first_token_counts_for_work_only():
    report = make_report([make_step((4, 4, 3, 0))])
    assert (report.accepted, report.committed, report.verified, report.row_passes) == (0, 0, 4, 1)
    assert report.acceptance_rate == 0.0
    assert report.seconds_per_token == {}


def test_rows_without_draft_tokens_count_as_passes_but_not_in_rates():
    report = make_report([make_step((0, 0, 0, 1), (2, 2, 1, 2), (2, 0, 0, 1))])
    assert report.tokens_per_target_pass == 4 / 3
    assert report.acceptance_rate == 1 / 2
    assert report.acceptance_by_position == {"conditional": [1.0, 0.0], "unconditional": [1.0, 0.0]}
    assert report.verify_lengths == {0: 2, 2: 1}
    assert report.draft_lengths == {0: 1, 2: 2}


def test_plain_steps_give_one_token_per_pass():
    report = make_report([make_step((0, 0, 0, 1), (0, 0, 0, 1), mode="plain")] * 3)
    assert report.mode_by_step == ["plain"] * 3
    assert report.tokens_per_target_pass == 1.0
    assert report.acceptance_rate == 0.0
    assert report.acceptance_by_position == {"conditional": [], "unconditional": []}
    assert report.verify_lengths == {0: 6}


def test_times():
    steps = [
        StepRecord("speculative", (0, 7), (2, 2), (2, 2), (1, 2), (2, 3), 0.5),
        StepRecord("speculative", (7,), (2,), (2,), (0,), (1,), 1.0),
        StepRecord("speculative", (7,), (2,), (2,), (2,), (0,), 1.5),
    ]
    report = make_report(steps, seconds={"target": 1.5, "verify": 0.25, "schedule": 0.125, "other": 0.125})
    assert report.seconds == {**dict.fromkeys(PHASES, 0.0), **report.seconds}
    assert report.total_seconds == 2.0
    assert report.tokens_per_second == 6 / 2
    assert report.time_outside_forwards == 0.25
    assert report.time_to_first_token == 0.5
    assert report.seconds_per_token == {0: 0.5 / 2, 7: 1.0 / 4}


def test_a_call_without_steps_has_a_report():
    report = make_report([], seconds={})
    assert (report.committed, report.tokens_per_target_pass, report.acceptance_rate) == (0, 0.0, 0.0)
    assert (report.tokens_per_second, report.time_outside_forwards, report.time_to_first_token) == (0.0, 0.0, 0.0)
    assert report.seconds_per_token == report.verified_by_row == report.choices == {}
    assert (report.rejected_share, report.wasted_verification, report.mean_verified_worst_rows) == (0.0, 0.0, 0.0)
    assert report.row_latency_tail == {"p50": 0.0, "p95": 0.0, "max": 0.0}
    assert report.slower_than_plain is None


@pytest.mark.parametrize("seed", range(200))
def test_invariants_on_random_records(seed: int):
    report = random_report(seed)
    rates = report.acceptance_by_position
    assert all(0 <= rate <= 1 for rate in [*rates["conditional"], *rates["unconditional"]])
    assert 0 <= report.acceptance_rate <= 1
    assert 0 <= report.time_outside_forwards <= 1
    assert len(rates["conditional"]) == len(rates["unconditional"]) == max(report.verify_lengths, default=0)
    assert 0 <= report.accepted <= report.verified <= report.drafted
    assert sum(report.verify_lengths.values()) == sum(report.draft_lengths.values()) == report.row_passes
    assert sum(length * times for length, times in report.verify_lengths.items()) == report.verified
    counts = [c for step in report.steps for c in zip(step.accepted, step.committed, strict=True)]
    cuts = sum(committed <= accepted for accepted, committed in counts)
    assert report.committed == report.accepted + report.row_passes - cuts
    assert report.verified == report.rejected + sum(accepted for accepted, _ in counts)
    assert 0 <= report.wasted_verification <= report.rejected_share <= 1
    assert report.slower_than_plain is None or 0 <= report.slower_than_plain <= 1
    by_row = report.verified_by_row.values()
    assert min(by_row, default=0) <= report.mean_verified_worst_rows <= max(by_row, default=0)
    tail = report.row_latency_tail
    assert tail["p50"] <= tail["p95"] <= tail["max"] == max(report.seconds_per_token.values(), default=0)
    assert sum(report.choices.values()) == sum(step.choice != "" for step in report.steps)


def test_conditional_rates_recover_independent_acceptance_in_spite_of_cuts():
    rng, steps = random.Random(0), []
    for _ in range(20_000):
        accepted = next((n for n in range(4) if rng.random() >= 0.7), 4)
        steps.append(make_step((4, 4, accepted, min(accepted + 1, rng.randint(1, 5)))))
    rates = make_report(steps).acceptance_by_position["conditional"]
    assert rates == pytest.approx([0.7] * 4, abs=0.03)


def test_trees_count_nodes_as_work_and_depth_as_progress():
    """Trees of 7 and 4 nodes, three and two levels deep: one is accepted to its end, the other not at all."""
    step = StepRecord("speculative", (0, 1), (9, 9), (7, 4), (3, 0), (4, 1), 1.0, depths=(3, 2))
    report = make_report([step])
    assert (report.drafted, report.verified, report.accepted, report.committed) == (18, 11, 3, 5)
    assert report.acceptance_rate == 3 / 5
    assert (report.rejected, report.rejected_share, report.wasted_verification) == (8, 8 / 11, 8 / 13)
    assert report.acceptance_by_position == {"conditional": [1 / 2, 1.0, 1.0], "unconditional": [1 / 2, 1 / 2, 1.0]}
    assert SpeculationReport.from_dict(json.loads(json.dumps(report.to_dict()))).steps == (step,)
