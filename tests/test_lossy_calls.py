"""Lossy rules in whole calls: by name only, said aloud, and refused where they are not defined."""

import warnings

import pytest
import tiny
import torch

import hf_specverify as sv
from hf_specverify import integration

NO_END = {"eos_token_id": None}


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr(integration, "_WARNED", set())


def generate(target, draft, batch=2, **options):
    arguments = {"max_new_tokens": 20, "do_sample": True, "top_k": 0, "return_dict_in_generate": True, **options}
    with sv.enabled(target):
        return target.generate(**tiny.prompts(batch), assistant_model=draft, **arguments)


def test_the_report_names_the_rule_and_its_parameters_and_a_warning_comes_once():
    target = tiny.make_model(**NO_END)
    options = {"verification": "lenience", "verification_options": {"leniency": 0.25, "max_overshoot": 2.0}}
    with pytest.warns(UserWarning, match=r"'lenience\(.*leniency=0.25.*\)' is lossy"):
        report = generate(target, tiny.near_copy(target), **options).speculation
    assert report.verification == "lenience(max_overshoot=2.0, leniency=0.25)"
    assert not report.lossless
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        generate(target, tiny.near_copy(target), **options)


def test_parameters_reach_the_rule():
    """At λ = 0 every draft is accepted, at λ = 1 a stranger's rarely."""
    target, stranger = tiny.make_model(**NO_END), tiny.make_model(seed=9, scale=3.0, **NO_END)
    rates = []
    for weight in (0.0, 1.0):
        options = {"verification": "collaborative", "verification_options": {"weight": weight}}
        rates.append(generate(target, stranger, **options).speculation.acceptance_rate)
    assert rates[0] == 1.0
    assert rates[1] < 0.9


def test_a_greedy_target_gets_its_own_tokens_or_the_rule_is_refused():
    target = tiny.make_model(**NO_END)
    plain = target.generate(**tiny.prompts(2), max_new_tokens=20, do_sample=False)
    ours = generate(target, tiny.near_copy(target), do_sample=False, verification="typical")
    assert torch.equal(plain, ours.sequences)
    with pytest.raises(ValueError, match=r"verification='collaborative\(.*do_sample=False"):
        generate(target, tiny.near_copy(target), do_sample=False, verification="collaborative")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"verification": "min_p", "require_lossless": True}, ValueError, "'min_p' changes the output law"),
        ({"verification": "min_p", "verification_options": {"p_base": 2.0}}, ValueError, "p_base"),
        ({"verification": "min_p", "verification_options": {"base": 0.1}}, TypeError, r"no options \['base'\]"),
        ({"verification": "token", "verification_options": {"p_base": 0.1}}, TypeError, "no options"),
        ({"verification": "min_p", "verification_options": 3}, TypeError, "verification_options=3"),
        ({"verification": "min_p", "num_draft_paths": 2}, ValueError, "num_draft_paths=2"),
    ],
)
def test_what_is_refused(options, error, message):
    target = tiny.make_model()
    with pytest.raises(error, match=message):
        generate(target, tiny.near_copy(target), **options)


def test_a_rule_composes_with_cuts_of_a_schedule():
    from test_schedules import all_costs, table

    target = tiny.make_model(**NO_END)
    report = generate(
        target, tiny.near_copy(target), batch=3, verification="min_p", verify_length="goodput", calibration=table("q"),
        costs=all_costs(), num_draft_tokens=5,
    ).speculation  # fmt: skip
    assert report.committed == 60
    assert report.verification == "min_p(residual='target', p_base=0.1)"
