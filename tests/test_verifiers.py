"""Verifiers on batches as they come from a step: ragged, cut, in low precision, over larger vocabularies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from verifying import FixedUniforms, chain, laws, ragged_batch, random_trees

from hf_specverify import verification
from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import DraftTree
from hf_specverify.testing import Proposer, assert_lossless, cases, enumerate_outcomes
from hf_specverify.testing.laws import Decision, decision_law
from hf_specverify.verification import (
    BlockVerification,
    GeneratorDraws,
    TokenVerification,
    Verdict,
    Verifier,
    VerifierInfo,
    get_verifier,
    verifiers,
    verify_greedy,
)
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.residual import kept_weight

NAMES = list(verifiers())
LOSSLESS = [name for name, info in verifiers().items() if info.lossless]
ON_CHAINS = ["token", "block", "greedy_multipath_block"]
ON_PATHS = [name for name, info in verifiers().items() if info.structure != "chain"]


@pytest.mark.parametrize(("with_q", "with_cuts"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("vocabulary_size", [5, 700])
def test_token_verification_decides_like_single_rows(with_q: bool, with_cuts: bool, vocabulary_size: int) -> None:
    verifier, seen = TokenVerification(), set()
    for seed in range(30):
        drafts, p = ragged_batch(seed, vocabulary_size, with_q, with_cuts)
        uniforms = torch.rand(8, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        verdict = verifier.verify_batch(drafts, p, FixedUniforms(uniforms[:, :-1], uniforms[:, -1]))
        for row, length in enumerate(drafts.lengths):
            alone = FixedUniforms(uniforms[row, :length], uniforms[row, -1])
            expected = verifier.verify(drafts.tree(row, vocabulary_size), p[row, : length + 1], alone)
            assert expected.path.tolist() == list(range(int(verdict.accepted[row])))
            assert int(expected.next_token) == int(verdict.next_token[row])
            seen.add((len(expected.path), length))
    assert {(0, 0), (0, 4), (2, 4), (4, 4), (1, 1), (0, 1)} <= seen


class TwoRows:
    """The rows of a batch as one function of the draws, and their marginal laws."""

    def __init__(self, proposer: Proposer, proposals: list) -> None:  # type: ignore[type-arg]
        self.drafts = proposer.batch(proposals)
        parents = getattr(self.drafts, "parents", torch.arange(self.drafts.tokens.shape[1]).expand(2, -1) - 1)
        self.p = torch.full((2, self.drafts.tokens.shape[1] + 1, len(proposer.case.p[()])), float("nan")).double()
        for row, size in enumerate(self.drafts.lengths):
            self.p[row, : size + 1] = proposer.target(self.drafts.tokens[row, :size], parents[row, :size])

    def marginals(self, verifier: Verifier) -> list[dict[Decision, float]]:
        marginals: list[dict[Decision, float]] = [{}, {}]
        for probability, verdict in enumerate_outcomes(lambda draws: verifier.verify_batch(self.drafts, self.p, draws)):
            for row, law in enumerate(marginals):
                path = torch.arange(self.drafts.tokens.shape[1]) if verdict.path is None else verdict.path[row]
                tokens = self.drafts.tokens[row, path[: int(verdict.accepted[row])]]
                decision = tuple(tokens.tolist()), int(verdict.next_token[row])
                law[decision] = law.get(decision, 0) + probability
        return marginals


@pytest.mark.parametrize("name", LOSSLESS)
def test_rows_of_a_batch_do_not_touch_each_other(name: str) -> None:
    verifier = get_verifier(name)
    walks = 1 if verifier.info.structure == "chain" else 2
    case = [case for case in cases(2, 3) if case.admitted][-1]
    proposer = Proposer(case)
    proposals = list(proposer.proposals("independent", (walks, 1)))
    for place in range(0, len(proposals), max(1, len(proposals) // 6)):
        pair = [proposals[place], proposals[(3 * place + 5) % len(proposals)]]
        for proposal, found in zip(pair, TwoRows(proposer, pair).marginals(verifier), strict=True):
            expected = decision_law(verifier, proposer, proposal, False)
            for decision in {**expected, **found}:
                assert found.get(decision, 0) == pytest.approx(expected.get(decision, 0), abs=1e-12)


def hard_laws(dtype: torch.dtype) -> list[Tensor]:
    """(17, 16) tables that are hard on arithmetic: smooth, peaked, one-hot, tied, with zeros."""
    generator = torch.Generator().manual_seed(0)
    smooth, other = laws(generator, 17, 16), laws(generator, 17, 16)
    peaked = torch.softmax(40 * torch.randn(17, 16, generator=generator), -1)
    zeros = smooth * (torch.rand(17, 16, generator=generator) < 0.3)
    zeros = torch.where(zeros.sum(-1, keepdim=True) > 0, zeros, smooth)
    tables = [smooth, torch.nextafter(smooth, other), other, peaked, torch.eye(16)[torch.arange(17) % 16]]
    tables += [torch.full((17, 16), 1 / 16), zeros / zeros.sum(-1, keepdim=True)]
    return [table.to(dtype) for table in tables]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_gives_valid_verdicts(name: str, dtype: torch.dtype) -> None:
    verifier, generator = get_verifier(name), torch.Generator().manual_seed(1)
    draws, walks = GeneratorDraws(generator), 1 if verifier.info.structure == "chain" else 3
    for p_table in hard_laws(dtype):
        for q_table in hard_laws(dtype):
            for cut in (0.0, 0.3):
                trees, p = random_trees(
                    generator, p_table[None].expand(3, -1, -1), q_table[None].expand(3, -1, -1), walks, 3, cut
                )
                verdict = verifier.verify_batch(trees, p, draws)
                for row in range(3):
                    nodes = [] if verdict.path is None else verdict.path[row, : int(verdict.accepted[row])].tolist()
                    parents = trees.parents[row].tolist()
                    assert [-1, *nodes][: len(nodes)] == [parents[node] for node in nodes]
                    at = [-1, *nodes]
                    for parent, token in zip(
                        at, [*trees.tokens[row, nodes].tolist(), int(verdict.next_token[row])], strict=True
                    ):
                        assert float(p[row, parent + 1, token]) > 0


@pytest.mark.parametrize("name", LOSSLESS)
def test_tokens_that_the_draft_could_not_draw_do_no_harm(name: str) -> None:
    verifier, draws = get_verifier(name), GeneratorDraws(torch.Generator().manual_seed(0))
    for p_row in (torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])):
        q = torch.tensor([[0.0, 0.0, 1.0]]).expand(2, -1)
        for tokens in ([0, 1], [1, 0], [2, 0]):
            tree = chain(tokens, q)
            for _ in range(5):
                verdict = verifier.verify(tree, p_row.expand(3, -1), draws)
                assert float(p_row[int(verdict.next_token)]) > 0
                assert bool((p_row[tree.tokens[verdict.path]] > 0).all())


def test_rejection_without_residual_samples_the_target() -> None:
    p = torch.tensor([0.25, 0.75])
    tokens, reject = torch.tensor([1]), torch.ones(1)
    draws = FixedUniforms(reject, torch.tensor(0.1, dtype=torch.float64))
    TokenVerification().verify(chain([1], p[None]), torch.stack([p, p]), draws)
    assert torch.equal(draws.weights, p)
    batched = FixedUniforms(reject[None], torch.tensor([0.1], dtype=torch.float64))
    for verifier in (TokenVerification(), BlockVerification()):
        verifier.verify_batch(DraftBatch(tokens[None], (1,), p[None, None]), torch.stack([p, p])[None], batched)
        assert torch.equal(batched.weights, p[None])
    one_hot = torch.tensor([[[0.0, 0.9999999], [0.5, 0.5]]])
    TokenVerification().verify_batch(DraftBatch(tokens[None], (1,), None), one_hot, batched)
    assert torch.equal(batched.weights, one_hot[:, 0])


def test_chance_of_an_inner_node_has_a_value_everywhere() -> None:
    mass, weight = torch.tensor([0.0, 0.0, 0.25, 0.0, 0.3]), torch.tensor([1.0, 0.5, 0.5, 0.0, 1.0])
    assert kept_weight(mass, weight).tolist() == pytest.approx([1, 0, 1 / 3, 0, 1])


@pytest.mark.parametrize("name", ON_CHAINS)
@pytest.mark.parametrize(("with_q", "with_cuts"), [(True, False), (True, True), (False, False)])
def test_batch_changes_no_argument(name: str, with_q: bool, with_cuts: bool) -> None:
    drafts, p = ragged_batch(0, 6, with_q, with_cuts)
    before = p.clone(), drafts.tokens.clone(), None if drafts.q is None else drafts.q.clone()
    get_verifier(name).verify_batch(drafts, p, GeneratorDraws(torch.Generator().manual_seed(0)))
    torch.testing.assert_close((p, drafts.tokens, drafts.q), before, rtol=0, atol=0, equal_nan=True)


def test_trees_are_not_changed() -> None:
    generator = torch.Generator().manual_seed(0)
    trees, p = random_trees(generator, laws(generator, 2, 6, 5), laws(generator, 2, 6, 5), 3, 3, 0.2)
    assert trees.laws is not None
    before = p.clone(), trees.laws.clone(), trees.paths.clone()
    for name in ON_PATHS:
        get_verifier(name).verify_batch(trees, p, GeneratorDraws(generator))
        torch.testing.assert_close((p, trees.laws, trees.paths), before, rtol=0, atol=0)


class ShapesOnly:
    """Draws without values: on the meta device, any look at a value raises."""

    def accept(self, probabilities: Tensor) -> Tensor:
        return torch.empty_like(probabilities, dtype=torch.bool)

    def sample(self, weights: Tensor) -> Tensor:
        return torch.empty(weights.shape[:-1], dtype=torch.long, device=weights.device)


@pytest.mark.parametrize(("name", "with_q"), [("token", True), ("token", False), ("block", False)])
def test_batch_never_reads_a_value_on_the_host(name: str, with_q: bool) -> None:
    q = torch.empty(2, 4, 5, device="meta") if with_q else None
    cut = (False, True) if with_q else None
    drafts = DraftBatch(torch.empty(2, 3, dtype=torch.long, device="meta"), (3, 1), q, cut)
    verdict = get_verifier(name).verify_batch(drafts, torch.empty(2, 4, 5, device="meta"), ShapesOnly())
    assert verdict.accepted.shape == verdict.next_token.shape == (2,)
    verify_greedy(drafts, torch.empty(2, 4, dtype=torch.long, device="meta"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("with_q", [True, False])
def test_batch_without_any_draft_token(name: str, with_q: bool) -> None:
    drafts = DraftBatch(torch.zeros(3, 0, dtype=torch.long), (0, 0, 0), torch.zeros(3, 0, 4) if with_q else None)
    verdict = get_verifier(name).verify_batch(drafts, torch.eye(4)[[2, 0, 3]][:, None], GeneratorDraws())
    assert (verdict.accepted.tolist(), verdict.next_token.tolist()) == ([0, 0, 0], [2, 0, 3])


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize(("with_q", "with_cuts"), [(True, False), (True, True), (False, False)])
def test_one_hot_target_makes_verification_greedy(name: str, with_q: bool, with_cuts: bool) -> None:
    for seed in range(5):
        drafts, _ = ragged_batch(seed, 5, with_q, with_cuts)
        generator = torch.Generator().manual_seed(seed)
        agree = torch.rand(8, 5, generator=generator) < 0.7
        others = torch.randint(5, (8, 5), generator=generator)
        best = torch.where(agree, torch.nn.functional.pad(drafts.tokens, (0, 1)), others)
        verdict = get_verifier(name).verify_batch(drafts, torch.eye(5)[best], GeneratorDraws(generator))
        expected = verify_greedy(drafts, best)
        assert torch.equal(verdict.accepted, expected.accepted)
        assert torch.equal(verdict.next_token, expected.next_token)


def test_greedy_accepts_the_leading_run() -> None:
    drafts = DraftBatch(torch.tensor([[1, 2, 3], [1, 2, 3], [9, 2, 3], [1, 2, 3], [1, 2, 3]]), (3, 3, 3, 1, 0), None)
    best = torch.tensor([[1, 2, 3, 4], [1, 5, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    verdict = verify_greedy(drafts, best)
    assert verdict.accepted.tolist() == [3, 1, 0, 1, 0]
    assert verdict.next_token.tolist() == [4, 5, 1, 2, 1]
    with pytest.raises(ValueError, match="best must have the shape"):
        verify_greedy(drafts, best[:, :-1])


def test_wrong_arguments_are_refused() -> None:
    draws = GeneratorDraws()
    q = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    branches = DraftTree.from_parents(torch.tensor([0, 1]), torch.tensor([-1, -1]), q)
    certain = DraftTree.from_parents(torch.tensor([0, 1]), torch.tensor([-1, -1]), None)
    for name in NAMES:
        verifier = get_verifier(name)
        with pytest.raises(ValueError, match=r"p must have the shape \(2, 3\)"):
            verifier.verify(chain([0], q[:1]), torch.ones(1, 3), draws)
        if verifier.info.structure == "chain":
            with pytest.raises(ValueError, match=f"tree must be a chain for the verifier '{name}'"):
                verifier.verify(branches, torch.ones(3, 3), draws)
        if verifier.info.structure == "paths":
            with pytest.raises(ValueError, match=f"tree must have laws or be a chain for the verifier '{name}'"):
                verifier.verify(certain, torch.ones(3, 3), draws)
    drafts = DraftBatch(torch.zeros(1, 2, dtype=torch.long), (2,), torch.ones(1, 2, 4))
    for name in ON_CHAINS:
        for shape in ((1, 2, 4), (1, 3, 5), (2, 3, 4), (3, 4)):
            with pytest.raises(ValueError, match="p must have the shape"):
                get_verifier(name).verify_batch(drafts, torch.ones(shape), draws)
    generator = torch.Generator().manual_seed(0)
    trees, p = random_trees(generator, laws(generator, 1, 6, 5), laws(generator, 1, 6, 5), 2, 2)
    with pytest.raises(ValueError, match="p must have the shape"):
        get_verifier("greedy_multipath_block").verify_batch(trees, p[:, :-1], draws)


class Hesitant(Verifier):
    """A user's own rule: half as willing as token verification, of a single token."""

    info = VerifierInfo(
        "hesitant", True, "chain", "none", "Accept the first token with half of min(1, p/q).", ("independent",)
    )

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        law = tree.law(-1)
        if law is None:
            return Verdict(tree.tokens[:0], draws.sample(p[0]))
        half = torch.minimum(p[0], law) / 2
        if tree.num_nodes and bool(draws.accept(half[tree.tokens[0]] / law[tree.tokens[0]])):
            return Verdict(torch.zeros(1, dtype=torch.long), draws.sample(p[1]))
        return Verdict(tree.tokens[:0], draws.sample(p[0] - half))


def test_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_REGISTRY", dict(verification._REGISTRY))
    assert NAMES[:5] == ["token", "block", "hierarchical", "greedy_multipath_block", "traversal"]
    assert NAMES[5:9] == ["multi_round", "multi_round_without_replacement", "k_seq", "naive"]
    assert all(verifiers()[name].lossless for name in NAMES[:9])
    assert isinstance(get_verifier("token"), TokenVerification)
    with pytest.raises(ValueError, match=r"verification must be one of .*token.*; got 'tokens'"):
        get_verifier("tokens")
    with pytest.raises(ValueError, match="verifier must have a new name, got 'token'"):
        verification.register_verifier(TokenVerification())
    with pytest.raises(TypeError, match="verifier must be an instance of Verifier"):
        verification.register_verifier(TokenVerification)  # type: ignore[arg-type]
    for wrong, message in (
        (VerifierInfo("new", True, "graph", "", ""), r"info\.structure must be one of"),  # type: ignore[arg-type]
        (VerifierInfo("new", True, "tree", "", "", ("drawn",)), r"info\.drafts must be some of"),  # type: ignore[arg-type]
        (VerifierInfo("new", True, "tree", "", "", ()), r"info\.drafts must be some of"),
    ):
        verifier = TokenVerification()
        verifier.info = wrong
        with pytest.raises(ValueError, match=message):
            verification.register_verifier(verifier)


def test_a_users_own_verifier_can_be_registered_and_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_REGISTRY", dict(verification._REGISTRY))
    verification.register_verifier(Hesitant())
    assert verifiers()["hesitant"].structure == "chain"
    assert_lossless(get_verifier("hesitant"), (1, 2), (2, 3))


@pytest.mark.parametrize("name", ["traversal", "multi_round_without_replacement"])
def test_rounding_is_no_null_token(name: str) -> None:
    """A peaked float32 law lacks 1e-7 to 1; with the likely token taken out, that would weigh as much as the rest."""
    q = torch.tensor([0.99999988, 8.4e-10, 6.5e-8, 1.8e-8])
    p = torch.tensor([0.5, 0.2, 0.2, 0.1])
    exact = q.double() / q.double().sum()
    law = torch.zeros(4, dtype=torch.float64)
    for first in range(4):
        rest = exact.clone()
        rest[first] = 0
        for second in range(4):
            if second == first:
                continue
            tree = DraftTree.from_parents(
                torch.tensor([first, second]), torch.tensor([-1, -1]), torch.stack([q, torch.zeros(4), torch.zeros(4)])
            )
            drawn = float(exact[first] * rest[second] / rest.sum())
            laws = p.repeat(3, 1)
            for chance, verdict in enumerate_outcomes(lambda draws, t=tree: get_verifier(name).verify(t, laws, draws)):
                path = verdict.path.tolist()
                law[int(tree.tokens[path[0]]) if path else int(verdict.next_token)] += drawn * chance
    assert (law - p).abs().max() < 1e-5
