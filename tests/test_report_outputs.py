"""The report's three outputs: JSON, text and plot."""

import json
import re
import sys
from pathlib import Path

import pytest
from reporting import documented_example, make_report, make_step, random_report

from hf_specverify.report import PHASES, SpeculationReport


@pytest.mark.parametrize("seed", range(20))
def test_round_trip_through_json(seed: int):
    report = random_report(seed)
    data = json.loads(json.dumps(report.to_dict()))
    assert data == report.to_dict()
    assert data["schema_version"] == SpeculationReport.schema_version == 4
    again = SpeculationReport.from_dict(data)
    assert again == report
    assert again.seconds_per_token == report.seconds_per_token
    assert (again.schedule, again.drift) == (report.schedule, report.drift)


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
        (("schema_version",), 3, "schema_version is 3; allowed is 4"),
        (("drift",), "0", "drift is '0'"),
        (("steps", 0, "choice"), 5, "choice is 5"),
        (("rejected_share",), 0.9, "rejected_share is 0.9; the steps give 0.5"),
        (("schema_version",), None, "schema_version is None"),
        (("acceptance_rate",), 0.99, "acceptance_rate is 0.99; the steps give 0.5"),
    ],
)
def test_from_dict_names_the_field_that_it_refuses(path: tuple[object, ...], value: object, message: str):
    data = make_report([make_step((4, 4, 2, 3))]).to_dict()
    spoil(data, path, value)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        SpeculationReport.from_dict(data)


def test_text_says_whether_the_output_is_exact():
    steps = [make_step((4, 4, 2, 3), (4, 3, 3, 4))]
    text = str(make_report(steps))
    assert "block (lossless)" in text and "LOSSY" not in text
    assert "8 drafted, 7 verified, 5 accepted, 7 committed" in text
    assert "3.50 per row" in text
    assert "1.00 1.00 0.50 0.00" in text
    assert 10 <= len(text.splitlines()) <= 18 and max(map(len, text.splitlines())) <= 120
    lossy = str(make_report(steps, verification="typical", lossless=False))
    assert "LOSSY: typical" in lossy and "lossless" not in lossy
    assert "StepRecord" not in repr(make_report(steps))


def lines_of(report: SpeculationReport) -> dict[str, str]:
    return {line[:17].strip(): line[17:] for line in str(report).splitlines()}


def test_text_says_what_verification_was_good_for():
    lines = lines_of(documented_example()[0])
    assert lines["schedule"] == "auto, drift -0.040; steps: fixed 4: 2, plain: 1, fixed 3: 1"
    assert lines["rejected"] == "37.5% of the verified tokens, 27.3% of all scored ones"
    assert lines["worst rows"].startswith("2.00 verified per pass")
    assert lines["by row"] == "p50 0.095, p95 0.100, max 0.100 s per token"
    assert lines["slower steps"].startswith("50.0% of the speculative ones")
    unknown = lines_of(make_report([make_step((4, 4, 2, 3))]))
    assert unknown["schedule"] == "fixed" and "slower steps" not in unknown


def test_plot_shows_the_figures_in_six_panels(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    report, _ = documented_example()
    figure = report.plot(tmp_path / "report.png")
    assert isinstance(figure, Figure)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    acceptance, lengths, use, rows, steps, times = figure.axes
    conditional, unconditional = acceptance.lines
    assert list(conditional.get_ydata()) == report.acceptance_by_position["conditional"]
    assert list(unconditional.get_ydata()) == report.acceptance_by_position["unconditional"]
    assert [text.get_text() for text in acceptance.get_legend().get_texts()] == ["conditional", "unconditional"]
    assert [bar.get_height() for bar in lengths.patches] == list(report.verify_lengths.values())
    assert [bar.get_width() for bar in use.patches] == [6, 10, 6]
    assert [label.get_text() for label in use.get_yticklabels()] == ["roots", "accepted", "rejected"]
    assert [bar.get_height() for bar in rows.patches] == [4.0, 2.0]
    assert list(rows.lines[0].get_ydata()) == [2.0, 2.0]
    assert [bar.get_width() for bar in steps.patches] == [2, 1, 1]
    assert [label.get_text() for label in steps.get_yticklabels()] == ["fixed 4", "plain", "fixed 3"]
    assert steps.get_title() == "Steps (speculative: 50% slower than plain)"
    assert [bar.get_width() for bar in times.patches] == list(report.seconds.values())
    assert [label.get_text() for label in times.get_yticklabels()] == list(PHASES)


def test_plot_of_an_empty_report_and_of_unreached_positions():
    pytest.importorskip("matplotlib")
    assert len(make_report([], seconds={}).plot().axes) == 6
    acceptance, *_, steps, _ = make_report([make_step((4, 4, 1, 2))]).plot().axes
    assert [label.get_text() for label in steps.get_yticklabels()] == ["speculative"]
    assert steps.get_title() == "Steps"
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
