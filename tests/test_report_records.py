"""Records and arguments that contradict themselves are refused by name."""

from dataclasses import FrozenInstanceError

import pytest
from reporting import make_report, make_step

from hf_specverify.report import StepRecord


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
        ({"plain_seconds": -0.1}, ValueError, "plain_seconds is -0.1"),
        ({"plain_seconds": float("inf")}, ValueError, "plain_seconds is inf"),
        ({"plain_seconds": "1"}, TypeError, "plain_seconds is '1'"),
        ({"expected_seconds": -0.1}, ValueError, "expected_seconds is -0.1"),
        ({"expected_seconds": True}, TypeError, "expected_seconds is True"),
        ({"choice": None}, TypeError, "choice is None; allowed is a str"),
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
        ({"schedule": None}, TypeError, "schedule is None; allowed is a str"),
        ({"drift": "0.1"}, TypeError, "drift is '0.1'; allowed are a float and None"),
        ({"drift": True}, TypeError, "drift is True"),
        ({"drift": float("nan")}, ValueError, "drift is nan; allowed are a finite number and None"),
        ({"steps": [make_step(elapsed=2.0), make_step(elapsed=1.0)]}, ValueError, "elapsed is 1.0 after 2.0"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make_report(**{"steps": [], **change})


def test_the_report_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        make_report([]).lossless = False
