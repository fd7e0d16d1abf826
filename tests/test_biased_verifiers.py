"""Rules with a mistake each: the proof must find every one, and the sizes of the errors are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from verifying import constant

from hf_specverify.drafting.tree import NULL, DraftTree
from hf_specverify.testing import Case, assert_lossless, assert_same_decisions, cases, law_error, output_law
from hf_specverify.verification import (
    BlockVerification,
    GreedyMultipathBlockVerification,
    KSeqVerification,
    MultiRoundVerification,
    MultiRoundWithoutReplacementVerification,
    NaiveVerification,
    TokenVerification,
    TraversalVerification,
    Verdict,
    Verifier,
    VerifierInfo,
    get_verifier,
    k_seq,
    laws,
    ranking,
    traversal,
)
from hf_specverify.verification.draws import Draws


class UncorrectedCut(TokenVerification):
    """After a cut, takes the next token from p."""

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        law_of = tree.law_of.clone()
        law_of[-1] = -1
        return super().verify(DraftTree(tree.tokens, tree.parents, tree.paths, tree.laws, law_of), p, draws)


class Inverted(TokenVerification):
    """Accepts with probability min(1, q/p)."""

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        for node, token in enumerate(tree.tokens.tolist()):
            law = laws.law_of_child(tree, node - 1, node, p[node])
            if not bool(draws.accept((law[token] / p[node, token]).clamp(max=1))):
                residual = (p[node] - law).clamp(min=0)
                next_token = draws.sample(residual if bool(residual.any()) else p[node])
                return Verdict(torch.arange(node), next_token)
        return Verdict(torch.arange(tree.num_nodes), draws.sample(p[-1]))


class Uncapped(BlockVerification):
    """Tests the last prefix with the joint ratio, not capped on the way."""

    def weights(self, tree: DraftTree, p: Tensor, laws: Sequence[Tensor | None]) -> list[Tensor]:
        weights = super().weights(tree, p, laws)
        ratio = torch.ones((), dtype=torch.float64)
        for node, token in enumerate(tree.tokens.tolist()):
            law = laws[node]
            assert law is not None
            ratio = ratio * p[node, token] / law[token]
        return [*weights[:-1], ratio.clamp(max=1)]


class OffByOne(BlockVerification):
    """Takes D from the target's law one position too early."""

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        shifted = super().verify(tree, torch.cat([p[:1], p[:-1]]), draws)
        return Verdict(shifted.path, draws.sample(p[len(shifted.path)]))


class FirstAmongTies(GreedyMultipathBlockVerification):
    """Among children of equal p/q follows the one that was drawn first."""

    def highest_child(self, tree: DraftTree, node: int, ratio: Tensor) -> int:
        children = [child for child in tree.children(node) if child != NULL]
        return max(children, key=lambda child: float(ratio[tree.tokens[child]]), default=NULL)


class WithReplacement(MultiRoundVerification):
    """Takes draws without replacement for independent ones."""

    info = VerifierInfo("with_replacement", True, "tree", "none", "A mistake.", ("without_replacement",))


class SecondChance(NaiveVerification):
    """Samples the target twice where the first token was not drafted."""

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        verdict = super().verify(tree, p, draws)
        return verdict if len(verdict.path) else super().verify(tree, p, draws)


BIASED = [UncorrectedCut, Inverted, Uncapped, OffByOne, FirstAmongTies, WithReplacement, SecondChance]


@pytest.mark.parametrize("rule", BIASED)
def test_proof_finds_a_biased_rule(rule: type[Verifier]) -> None:
    with pytest.raises(AssertionError, match=rf"{rule.info.name}\.verify is off by \d\.\de-0[1-4] on the case"):
        assert_lossless(rule(), (2,), (3,))


def test_uncorrected_cut_on_the_drawn_token() -> None:
    admitted: dict[tuple[int, ...], Tensor] = {(): torch.tensor([True, False])}
    case = Case("cut", 1, constant([0.5, 0.5], 1), constant([0.9, 0.1], 1), admitted)
    first_token = output_law(UncorrectedCut(), case).law.sum(dim=1)
    assert first_token.tolist() == pytest.approx([0.55, 0.45], abs=1e-12)
    for name in ("token", "block"):
        for batched in (False, True):
            assert law_error(get_verifier(name), case, batched=batched) < 1e-12
    for case in cases(2, 3):
        assert (law_error(UncorrectedCut(), case) > 1e-3) == bool(case.admitted)


def test_correction_of_a_cut_costs_no_acceptance() -> None:
    for case in cases(2, 3):
        corrected = output_law(get_verifier("token"), case).expected_accepted
        assert corrected == pytest.approx(output_law(UncorrectedCut(), case).expected_accepted, abs=1e-12)


def test_inverted_ratio_breaks_the_law() -> None:
    errors = {case.name: law_error(Inverted(), case) for case in cases(2, 3)}
    assert errors["random"] > 1e-3
    assert errors["p = q"] < 1e-12


def test_uncapped_hierarchical_accepts_more_than_it_may() -> None:
    errors = []
    for case in cases(2, 3):
        biased, exact = output_law(Uncapped(), case), output_law(get_verifier("hierarchical"), case)
        assert biased.expected_accepted >= exact.expected_accepted - 1e-12
        errors.append(law_error(Uncapped(), case))
    assert 1e-2 < max(errors) < 2e-2


def test_first_child_among_ties_is_biased_where_all_ratios_tie() -> None:
    case = Case("p = q", 2, constant([0.5, 0.5], 2), constant([0.5, 0.5], 2), {})
    for num_paths in (2, 3):
        assert 0.08 < law_error(FirstAmongTies(), case, num_paths) < 0.1
        assert law_error(GreedyMultipathBlockVerification(), case, num_paths) < 1e-12


def test_mistakes_in_the_parts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # K-SEQ needs an inflated draft
        patch.setattr(k_seq, "inflation", lambda p, q, count: 1.0)
        with pytest.raises(AssertionError, match=r"k_seq\.verify is off"):
            assert_lossless(KSeqVerification(), (1,), (3,), (3,))
    with monkeypatch.context() as patch:  # a parent's weight changes with every rejection
        patch.setattr(traversal, "kept_weight", lambda mass, weight: weight)
        with pytest.raises(AssertionError, match=r"traversal\.verify is off"):
            assert_lossless(TraversalVerification(), (2,), (3,), (2,))
    with monkeypatch.context() as patch:  # what was rejected leaves q
        patch.setattr(laws.RemainingLaw, "remove", lambda self, child: None)
        for rule in (TraversalVerification(), MultiRoundWithoutReplacementVerification()):
            with pytest.raises(AssertionError, match="verify is off"):
                assert_lossless(rule, (1,), (3,), (2,))
    with monkeypatch.context() as patch:  # the null token ranks below all others
        below = ranking.mass_below
        patch.setattr(
            "hf_specverify.verification.greedy_walk.mass_below",
            lambda p, q, token: below(p, q, token) - (1 - q.sum(dim=1)),
        )
        with pytest.raises(AssertionError, match=r"verify_batch is off by .*cut at"):
            assert_lossless(GreedyMultipathBlockVerification(), (1,), (3,), (2,))
        with pytest.raises(AssertionError, match=r"verify_batch decides .*cut at"):
            assert_same_decisions(GreedyMultipathBlockVerification(), (1,), (3,), (2,))
