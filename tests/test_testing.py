"""The proof's own parts: what drafts propose, and how large cases are narrowed."""

from __future__ import annotations

import itertools

import pytest
import torch

from hf_specverify.drafting.tree import NULL
from hf_specverify.testing import Proposer, cases, contexts, draft_blocks, output_law, proofs, target_law
from hf_specverify.testing.proof import LARGEST
from hf_specverify.verification import get_verifier, verifiers

KINDS = [
    ("independent", (1, 1)),
    ("independent", (3, 1)),
    ("without_replacement", (3, 1)),
    ("without_replacement", (2, 2)),
    ("deterministic", (2, 1)),
]


@pytest.mark.parametrize(("drafts", "branching"), KINDS)
def test_probabilities_of_proposals_add_up(drafts: str, branching: tuple[int, ...]) -> None:
    for case in cases(2, 3):
        proposals = list(Proposer(case).proposals(drafts, branching))  # type: ignore[arg-type]
        assert sum(proposal.probability for proposal in proposals) == pytest.approx(1, abs=1e-12)
        assert len({proposal.walks for proposal in proposals}) <= len(proposals)


def test_draws_without_replacement_are_different_and_in_order() -> None:
    case = next(iter(cases(1, 3)))
    q = case.q[()].tolist()
    found = {p.walks: p.probability for p in Proposer(case).proposals("without_replacement", (2,))}
    assert len(found) == 6
    for first, second in itertools.permutations(range(3), 2):
        assert found[(first,), (second,)] == pytest.approx(q[first] * q[second] / (1 - q[first]), abs=1e-12)


def test_cut_of_a_walk_leaves_its_law_at_the_end() -> None:
    case = [case for case in cases(2, 3) if case.admitted][-1]
    proposer = Proposer(case)
    proposals = [p for p in proposer.proposals("independent", (2, 1)) if () in p.walks and len(set(p.walks)) == 2]
    assert proposals
    for proposal in proposals:
        tree = proposer.tree(proposal)
        assert sorted(tree.draws(-1)) == [NULL, 0]
        law = tree.law(-1)
        assert law is not None
        assert torch.equal(law, case.q[()] * case.admitted[()])
        batch = proposer.batch([proposal])
        single = batch.tree(0, 3)
        assert torch.equal(single.tokens, tree.tokens)
        assert torch.equal(single.q, tree.q)
        assert single.draws(-1) == tree.draws(-1)


def test_blocks_cover_the_draft() -> None:
    for case in cases(2, 3):
        blocks = list(draft_blocks(case))
        assert sum(probability for probability, _, _ in blocks) == pytest.approx(1, abs=1e-12)
        assert all(q.shape == (len(tokens) + 1, 3) for _, tokens, q in blocks)
        assert any(len(tokens) < 2 for _, tokens, _ in blocks) == bool(case.admitted)


def test_large_cases_are_narrowed_and_keep_the_target() -> None:
    sizes = []
    for proof in proofs(verifiers()["traversal"], (3,), (4,)):
        sizes.append(sum(1 for _ in Proposer(proof.case).proposals(proof.drafts, proof.branching)))
        original = next(case for case in cases(3, 4) if case.name == proof.case.name)
        assert all(torch.equal(proof.case.p[context], original.p[context]) for context in contexts(3, 4))
        assert all(float(law.sum()) == pytest.approx(1) for law in proof.case.q.values())
    assert max(sizes) <= LARGEST
    assert max(sizes) > LARGEST / 2
    narrow = [proof for proof in proofs(verifiers()["traversal"], (3,), (4,), (3,)) if proof.case.admitted]
    cut = [p for proof in narrow for p in Proposer(proof.case).proposals(proof.drafts, proof.branching)]
    assert any(min(map(len, p.walks)) < 3 <= max(map(len, p.walks)) for p in cut)


def test_proofs_cover_what_a_verifier_takes() -> None:
    plans = {(proof.drafts, proof.branching) for proof in proofs(verifiers()["traversal"], (2,), (2,))}
    assert {("independent", (3, 1)), ("without_replacement", (2, 1)), ("without_replacement", (2, 2))} <= plans
    assert ("deterministic", (2, 1)) in plans
    chains = {(proof.drafts, proof.branching) for proof in proofs(verifiers()["block"], (2,), (2,))}
    assert chains == {("independent", (1, 1)), ("deterministic", (1, 1))}


def test_output_law_is_a_law() -> None:
    for case in cases(2, 3):
        result = output_law(get_verifier("traversal"), case, 2, "without_replacement")
        assert float(result.law.sum()) == pytest.approx(1, abs=1e-12)
        torch.testing.assert_close(result.law, target_law(case), rtol=0, atol=1e-12)
        assert 0 <= result.expected_accepted <= 2 + 1e-12


def test_output_law_refuses_what_it_does_not_know() -> None:
    case = next(iter(cases(2, 2)))
    with pytest.raises(ValueError, match="drafts must be one of"):
        output_law(get_verifier("token"), case, drafts="drawn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="branching and num_paths must be 2 counts"):
        output_law(get_verifier("token"), case, num_paths=0)
    with pytest.raises(ValueError, match="branching and num_paths must be 2 counts"):
        output_law(get_verifier("token"), case, branching=(1,))
