"""The report's figures against numbers computed by hand, its invariants on random records, and its three outputs."""

import json
import random
import re
import sys
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from hf_specverify.report import PHASES, SpeculationReport, StepRecord

METRICS = Path(__file__).parents[1] / "docs" / "metrics.md"
SECONDS = {"draft": 0.2, "companion": 0.05, "schedule": 0.02, "target": 0.45, "verify": 0.05, "other": 0.03}


def make_step(*rows: tuple[int, int, int, int], mode: str = "speculative", elapsed: float = 1.0) -> StepRecord:
    """Each row: drafted, verified, accepted, committed."""
    drafted, verified, accepted, committed = zip(*rows, strict=True) if rows else ((), (), (), ())
    return StepRecord(mode, tuple(range(len(rows))), drafted, verified, accepted, committed, elapsed)


def make_report(
    steps: Sequence[StepRecord],
    *,
    seconds: dict[str, float] = SECONDS,
    verification: str = "block",
    lossless: bool = True,
) -> SpeculationReport:
    return SpeculationReport.from_steps(
        steps, seconds=seconds, verification=verification, lossless=lossless, drafter="draft model", layout="packed"
    )


def random_report(seed: int) -> SpeculationReport:
    rng = random.Random(seed)
    steps, elapsed = [], 0.0
    for _ in range(rng.randint(0, 12)):
        rows = []
        for _ in range(rng.randint(1, 4)):
            drafted = rng.randint(0, 6)
            verified = rng.randint(0, drafted)
            accepted = rng.randint(0, verified)
            rows.append((drafted, verified, accepted, rng.choice([accepted + 1, rng.randint(0, accepted + 1)])))
        elapsed += rng.random()
        steps.append(make_step(*rows, mode=rng.choice(["speculative", "plain"]), elapsed=elapsed))
    return make_report(steps, seconds={phase: rng.random() for phase in PHASES})


def documented_example() -> tuple[SpeculationReport, dict[str, object]]:
    text = METRICS.read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.S).group(1), namespace)
    values = re.findall(r"^\| `([^`]+)` \|[^|]*\| `([^`]+)` \|$", text, re.M)
    return namespace["report"], {name: literal_eval(value) for name, value in values}


def test_documented_example_gives_the_documented_values():
    report, documented = documented_example()
    assert len(documented) == 18
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
    assert report.seconds_per_token == {}


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


def test_conditional_rates_recover_independent_acceptance_in_spite_of_cuts():
    rng, steps = random.Random(0), []
    for _ in range(20_000):
        accepted = next((n for n in range(4) if rng.random() >= 0.7), 4)
        steps.append(make_step((4, 4, accepted, min(accepted + 1, rng.randint(1, 5)))))
    rates = make_report(steps).acceptance_by_position["conditional"]
    assert rates == pytest.approx([0.7] * 4, abs=0.03)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mode": "fast"}, ValueError, "mode is 'fast'"),
        ({"drafted": (4,)}, ValueError, "drafted has 1 entries; rows has 2"),
        ({"verified": (4, 4, 4)}, ValueError, "verified has 3 entries"),
        ({"accepted": ()}, ValueError, "accepted has 0 entries"),
        ({"committed": (1,)}, ValueError, "committed has 1 entries"),
        ({"rows": (3, 3)}, ValueError, "rows is"),
        ({"rows": (-1, 0)}, ValueError, "rows is"),
        ({"verified": (5, 4)}, ValueError, "verified is .* at most drafted"),
        ({"accepted": (4, 4)}, ValueError, "accepted is .* at most depths"),
        ({"depths": (4, 3)}, ValueError, "depths is .* at most verified"),
        ({"depths": (3,)}, ValueError, "depths has 1 entries"),
        ({"accepted": (-1, 0)}, ValueError, "accepted is"),
        ({"committed": (4, 1)}, ValueError, r"committed is .* at most accepted \+ 1"),
        ({"committed": (-1, 1)}, ValueError, "committed is"),
        ({"elapsed": -0.1}, ValueError, "elapsed is"),
        ({"elapsed": float("nan")}, ValueError, "elapsed is"),
        ({"elapsed": "1"}, TypeError, "elapsed is"),
        ({"drafted": [4, 4]}, TypeError, "drafted is"),
        ({"drafted": (4.0, 4)}, TypeError, "drafted is"),
    ],
)
def test_contradictory_records_are_refused(change: dict[str, object], error: type[Exception], message: str):
    good = {"mode": "speculative", "rows": (0, 1), "drafted": (4, 4), "verified": (3, 3), "accepted": (2, 0)}
    good |= {"committed": (3, 1), "elapsed": 1.0}
    assert StepRecord(**good).committed == (3, 1)
    with pytest.raises(error, match=message):
        StepRecord(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seconds": {"lunch": 1.0}}, ValueError, "seconds has unknown fields: lunch"),
        ({"seconds": {"draft": -1.0}}, ValueError, r"seconds\['draft'\] is -1"),
        ({"seconds": {"draft": float("inf")}}, ValueError, r"seconds\['draft'\] is inf"),
        ({"lossless": "yes"}, TypeError, "lossless is 'yes'"),
        ({"verification": None}, TypeError, "verification is None"),
        ({"steps": [make_step(elapsed=2.0), make_step(elapsed=1.0)]}, ValueError, "elapsed is 1.0 after 2.0"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make_report(**{"steps": [], **change})


def test_the_report_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        make_report([]).lossless = False


@pytest.mark.parametrize("seed", range(20))
def test_round_trip_through_json(seed: int):
    report = random_report(seed)
    data = json.loads(json.dumps(report.to_dict()))
    assert data == report.to_dict()
    assert data["schema_version"] == SpeculationReport.schema_version == 2
    again = SpeculationReport.from_dict(data)
    assert again == report
    assert again.seconds_per_token == report.seconds_per_token


def spoil(data: dict[str, object], path: tuple[object, ...], value: object) -> None:
    for key in path[:-1]:
        data = data[key]
    if value is None:
        del data[path[-1]]
    else:
        data[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("colour",), "red", "report has unknown fields: colour"),
        (("drafter",), None, "report has missing fields: drafter"),
        (("acceptance_rate",), None, "report has missing fields: acceptance_rate"),
        (("seconds", "lunch"), 1.0, "seconds has unknown fields: lunch"),
        (("seconds", "target"), None, "seconds has missing fields: target"),
        (("steps", 0, "colour"), "red", "step has unknown fields: colour"),
        (("steps", 0, "accepted"), None, "step has missing fields: accepted"),
        (("schema_version",), 1, "schema_version is 1; allowed is 2"),
        (("schema_version",), None, "schema_version is None"),
        (("acceptance_rate",), 0.99, "acceptance_rate is 0.99; the steps give 0.5"),
    ],
)
def test_from_dict_names_the_field_that_it_refuses(path: tuple[object, ...], value: object, message: str):
    data = make_report([make_step((4, 4, 2, 3))]).to_dict()
    spoil(data, path, value)
    with pytest.raises(ValueError, match=re.escape(message)):
        SpeculationReport.from_dict(data)


def test_text_says_whether_the_output_is_exact():
    steps = [make_step((4, 4, 2, 3), (4, 3, 3, 4))]
    text = str(make_report(steps))
    assert "block (lossless)" in text and "LOSSY" not in text
    assert "8 drafted, 7 verified, 5 accepted, 7 committed" in text
    assert "3.50 per row" in text
    assert "1.00 1.00 0.50 0.00" in text
    assert 10 <= len(text.splitlines()) <= 14 and max(map(len, text.splitlines())) <= 120
    lossy = str(make_report(steps, verification="typical", lossless=False))
    assert "LOSSY: typical" in lossy and "lossless" not in lossy
    assert "StepRecord" not in repr(make_report(steps))


def test_plot_shows_the_figures_in_three_panels(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    report, _ = documented_example()
    figure = report.plot(tmp_path / "report.png")
    assert isinstance(figure, Figure)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    acceptance, lengths, times = figure.axes
    conditional, unconditional = acceptance.lines
    assert list(conditional.get_ydata()) == report.acceptance_by_position["conditional"]
    assert list(unconditional.get_ydata()) == report.acceptance_by_position["unconditional"]
    assert [text.get_text() for text in acceptance.get_legend().get_texts()] == ["conditional", "unconditional"]
    assert [bar.get_height() for bar in lengths.patches] == list(report.verify_lengths.values())
    assert [bar.get_width() for bar in times.patches] == list(report.seconds.values())
    assert [label.get_text() for label in times.get_yticklabels()] == list(PHASES)


def test_plot_of_an_empty_report_and_of_unreached_positions():
    pytest.importorskip("matplotlib")
    assert len(make_report([], seconds={}).plot().axes) == 3
    acceptance = make_report([make_step((4, 4, 1, 2))]).plot().axes[0]
    assert list(acceptance.lines[0].get_ydata()) == [1.0, 0.0]
    assert list(acceptance.lines[1].get_ydata()) == [1.0, 0.0, 0.0, 0.0]


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hf_specverify[plot]'")):
        make_report([]).plot()


def test_plot_does_without_global_state(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert make_report([make_step((4, 4, 1, 2))]).plot().axes


def test_trees_count_nodes_as_work_and_depth_as_progress():
    """Trees of 7 and 4 nodes, three and two levels deep: one is accepted to its end, the other not at all."""
    step = StepRecord("speculative", (0, 1), (9, 9), (7, 4), (3, 0), (4, 1), 1.0, depths=(3, 2))
    report = make_report([step])
    assert (report.drafted, report.verified, report.accepted, report.committed) == (18, 11, 3, 5)
    assert report.acceptance_rate == 3 / 5
    assert report.acceptance_by_position == {"conditional": [1 / 2, 1.0, 1.0], "unconditional": [1 / 2, 1 / 2, 1.0]}
    assert SpeculationReport.from_dict(json.loads(json.dumps(report.to_dict()))).steps == (step,)
