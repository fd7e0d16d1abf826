from __future__ import annotations

import itertools

import pytest
import torch
from verifying import constant

from hf_specverify.testing import Case, Proposer, assert_lossless, assert_same_decisions, cases, output_law
from hf_specverify.testing.laws import decision_law
from hf_specverify.verification import Verifier, get_verifier, optimal_acceptance, verifiers

INFOS = verifiers()
LOSSLESS = [name for name, info in INFOS.items() if info.lossless]
ON_PATHS = [name for name, info in INFOS.items() if info.structure != "chain"]
BATCHED = [name for name in LOSSLESS if type(get_verifier(name)).verify_batch is not Verifier.verify_batch]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("length", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_output_has_the_law_of_the_target(name: str, length: int) -> None:
    assert_lossless(get_verifier(name), (length,))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LOSSLESS if INFOS[name].structure == "chain"])
def test_output_of_chains_has_the_law_of_the_target_on_other_tables(name: str) -> None:
    for seed in (1, 2):
        assert_lossless(get_verifier(name), seed=seed)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "greedy_multipath_block" else name for name in BATCHED],
)
def test_batched_form_decides_as_the_readable_one(name: str) -> None:
    assert_same_decisions(get_verifier(name))


@pytest.mark.parametrize(("name", "expected"), [("token", 10 / 9), ("block", 11 / 9), ("hierarchical", 11 / 9)])
def test_worked_values(name: str, expected: float) -> None:
    case = Case("worked", 2, constant([1 / 3, 2 / 3], 2), constant([2 / 3, 1 / 3], 2), {})
    for batched in (False, True):
        result = output_law(get_verifier(name), case, batched=batched)
        assert result.expected_accepted == pytest.approx(expected, abs=1e-12)


def test_block_verification_accepts_at_least_as_much_as_token_verification() -> None:
    gains = []
    for length, size, seed in itertools.product((1, 2, 3), (2, 3, 4), (0, 1)):
        for case in cases(length, size, seed):
            block, token = (output_law(get_verifier(name), case).expected_accepted for name in ("block", "token"))
            assert block >= token - 1e-12, case.name
            gains.append(block - token)
    assert max(gains) > 0.05


def test_acceptance_at_one_position_is_the_overlap() -> None:
    for case in cases(1, 4):
        overlap = float(torch.minimum(case.p[()], case.q[()] * case.admitted.get((), 1)).sum())
        for name in ("token", "block"):
            assert output_law(get_verifier(name), case).expected_accepted == pytest.approx(overlap, abs=1e-12)


REDUCTIONS = [
    ("greedy_multipath_block", "block"),
    ("traversal", "block"),
    ("hierarchical", "block"),
    ("multi_round", "token"),
    ("multi_round_without_replacement", "token"),
    ("k_seq", "token"),
]


@pytest.mark.parametrize(("name", "single"), REDUCTIONS)
def test_one_path_is_the_single_path_rule(name: str, single: str) -> None:
    for case in cases(2, 3):
        proposer = Proposer(case)
        for drafts in ("independent", "deterministic"):
            for proposal in proposer.proposals(drafts, (1, 1)):
                expected, found = (
                    decision_law(get_verifier(verifier), proposer, proposal, False) for verifier in (single, name)
                )
                for decision in {**expected, **found}:
                    assert found.get(decision, 0) == pytest.approx(expected.get(decision, 0), abs=1e-12), case.name


@pytest.mark.parametrize("num_paths", [1, 2, 3])
def test_naive_acceptance(num_paths: int) -> None:
    for case in cases(1, 4):
        p, q = case.p[()], case.q[()] * case.admitted.get((), 1)
        expected = float((p * (1 - (1 - q) ** num_paths)).sum())
        result = output_law(get_verifier("naive"), case, num_paths)
        assert result.expected_accepted == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ON_PATHS)
@pytest.mark.parametrize("num_paths", [1, 2, 3])
def test_no_rule_accepts_more_than_the_bound(name: str, num_paths: int) -> None:
    for size, seed in itertools.product((2, 3, 4), (0, 1)):
        for case in cases(1, size, seed):
            bound = float(optimal_acceptance(case.p[()], case.q[()] * case.admitted.get((), 1), num_paths))
            accepted = output_law(get_verifier(name), case, num_paths).expected_accepted
            assert accepted <= bound + 1e-12, case.name


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_paths", [1, 2, 3, 5])
def test_bound_is_the_minimum_over_all_sets(size: int, num_paths: int) -> None:
    for seed, case in itertools.product((0, 1), range(9)):
        if size == 1:
            p, q = torch.ones(1), torch.tensor([0.1 + 0.1 * case])
        else:
            chosen = list(cases(1, size, seed))[case]
            p, q = chosen.p[()], chosen.q[()] * chosen.admitted.get((), 1)
        lacking = 1 - q.sum()
        values = []
        for flags in itertools.product((False, True), repeat=size):
            members = torch.tensor(flags)
            values.append(float(p[members].sum() + 1 - (q[members].sum() + lacking) ** num_paths))
        assert float(optimal_acceptance(p, q, num_paths)) == pytest.approx(max(0, min(values)), abs=1e-6)
    both = torch.stack([p, p]), torch.stack([q, q])
    assert optimal_acceptance(*both, num_paths).shape == (2,)


def test_bound_refuses_what_makes_no_sense() -> None:
    p = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match="p and q must have the same shape"):
        optimal_acceptance(p, p[:1], 2)
    with pytest.raises(ValueError, match="num_paths must be an integer of at least 1, got 0"):
        optimal_acceptance(p, p, 0)


def expected_accepted(name: str, case: Case, num_paths: int) -> float:
    return output_law(get_verifier(name), case, num_paths).expected_accepted


def test_more_paths_can_accept_less() -> None:
    """At p = q block verification accepts everything; the best of two paths has another law than the target."""
    case = next(case for case in cases(2, 3) if case.name == "p = q")
    single = expected_accepted("greedy_multipath_block", case, 1)
    assert single == pytest.approx(2, abs=1e-12)
    assert expected_accepted("greedy_multipath_block", case, 2) < single - 0.05


def test_neither_greedy_multipath_nor_traversal_is_the_better_one() -> None:
    differences = []
    for case in cases(2, 3):
        greedy, traversal = (expected_accepted(name, case, 2) for name in ("greedy_multipath_block", "traversal"))
        differences.append(greedy - traversal)
    assert min(differences) < -0.01
    assert max(differences) > 0.01


def test_deterministic_drafts_of_two_tokens_accept_the_mass_of_both() -> None:
    for name in ("traversal", "multi_round_without_replacement", "naive"):
        for case in list(cases(1, 4))[:7]:
            best = case.q[()].argsort(descending=True, stable=True)[:2]
            result = output_law(get_verifier(name), case, 2, "deterministic")
            assert result.expected_accepted == pytest.approx(float(case.p[()][best].sum()), abs=1e-12)
