from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_specverify import verification
from hf_specverify.drafting.tree import DraftBatch, DraftTree
from hf_specverify.testing import Case, assert_lossless, cases, contexts, law_error, output_law
from hf_specverify.verification import TokenVerification, Verdict, Verifier, get_verifier, verifiers, verify_greedy
from hf_specverify.verification.base import leading_run
from hf_specverify.verification.draws import Draws, GeneratorDraws, inverse_cdf

LOSSLESS = [name for name, info in verifiers().items() if info.lossless]


def constant(law: list[float], length: int) -> dict[tuple[int, ...], Tensor]:
    return dict.fromkeys(contexts(length, len(law)), torch.tensor(law, dtype=torch.float64))


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_output_has_the_law_of_the_target(name: str, length: int, size: int) -> None:
    for seed in (0, 1):
        assert_lossless(get_verifier(name), (length,), (size,), seed)


def test_worked_value_of_token_verification() -> None:
    case = Case("worked", 2, constant([1 / 3, 2 / 3], 2), constant([2 / 3, 1 / 3], 2), {})
    for batched in (False, True):
        assert output_law(get_verifier("token"), case, batched).expected_accepted == pytest.approx(10 / 9, abs=1e-12)


def test_acceptance_at_one_position_is_the_overlap() -> None:
    for case in cases(1, 4):
        if not case.admitted:
            overlap = float(torch.minimum(case.p[()], case.q[()]).sum())
            assert output_law(get_verifier("token"), case).expected_accepted == pytest.approx(overlap, abs=1e-12)


def test_correction_of_a_cut_costs_no_acceptance() -> None:
    for case in cases(2, 3):
        corrected = output_law(get_verifier("token"), case).expected_accepted
        assert corrected == pytest.approx(output_law(UncorrectedCut(), case).expected_accepted, abs=1e-12)


class UncorrectedCut(TokenVerification):
    """After a cut, takes the next token from p."""

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        forgetful = torch.cat([tree.q[:-1], torch.zeros_like(tree.q[-1:])])
        return super().verify(DraftTree.chain(tree.tokens, forgetful), p, draws)


class Inverted(TokenVerification):
    """Accepts with probability min(1, q/p)."""

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        tokens = tree.tokens[:, None]
        ratio = tree.q[:-1].gather(1, tokens) / p[:-1].gather(1, tokens)
        accepted = int(leading_run(draws.accept(ratio.clamp(max=1).squeeze(1))))
        residual = (p[accepted] - tree.q[accepted]).clamp(min=0)
        next_token = draws.sample(residual if bool(residual.any()) else p[accepted])
        return Verdict(torch.arange(accepted), next_token)


def test_uncorrected_cut_on_the_drawn_token_breaks_the_law() -> None:
    admitted: dict[tuple[int, ...], Tensor] = {(): torch.tensor([True, False])}
    case = Case("cut", 1, constant([0.5, 0.5], 1), constant([0.9, 0.1], 1), admitted)
    first_token = output_law(UncorrectedCut(), case).law.sum(dim=1)
    assert first_token.tolist() == pytest.approx([0.55, 0.45], abs=1e-12)
    assert law_error(get_verifier("token"), case) < 1e-12
    for case in cases(2, 3):
        assert (law_error(UncorrectedCut(), case) > 1e-3) == bool(case.admitted)


def test_inverted_ratio_breaks_the_law() -> None:
    errors = {case.name: law_error(Inverted(), case) for case in cases(2, 3)}
    assert errors["random"] > 1e-3
    assert errors["p = q"] < 1e-12


@pytest.mark.parametrize("verifier", [UncorrectedCut(), Inverted()])
def test_assert_lossless_finds_a_biased_verifier(verifier: Verifier) -> None:
    with pytest.raises(AssertionError, match=r"token\.verify is off by"):
        assert_lossless(verifier, (2,), (3,))


def test_cases_with_cuts_cannot_be_batched() -> None:
    case = next(case for case in cases(1, 2) if case.admitted)
    with pytest.raises(ValueError, match="batched must be False"):
        output_law(get_verifier("token"), case, batched=True)


class FixedUniforms:
    """Draws from given uniform numbers: one tensor for the acceptances, one for the samples; keeps the weights."""

    def __init__(self, accept: Tensor, sample: Tensor) -> None:
        self.uniforms = accept, sample
        self.weights = torch.empty(0)

    def accept(self, probabilities: Tensor) -> Tensor:
        assert probabilities.shape == self.uniforms[0].shape
        assert bool(((probabilities >= 0) & (probabilities <= 1)).all())
        return self.uniforms[0] < probabilities

    def sample(self, weights: Tensor) -> Tensor:
        self.weights = weights
        return inverse_cdf(weights, self.uniforms[1])


def laws(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.softmax(2 * torch.randn(*shape, generator=generator), -1)


def ragged_batch(seed: int, vocabulary_size: int, with_q: bool) -> tuple[DraftBatch, Tensor, FixedUniforms]:
    generator = torch.Generator().manual_seed(seed)
    lengths = (0, 1, 4, 2, 4, 3, 0, 4)
    rows, longest = len(lengths), 4
    p = 0.4 * laws(generator, rows, longest + 1, vocabulary_size)
    peaks = torch.randint(vocabulary_size, (rows, longest + 1, 1), generator=generator)
    p.scatter_add_(2, peaks, torch.full(peaks.shape, 0.6))
    q = 0.6 * p[:, :-1] + 0.4 * laws(generator, rows, longest, vocabulary_size)
    uniforms = torch.rand(rows, longest, generator=generator, dtype=torch.float64)
    tokens = inverse_cdf(q if with_q else p[:, :-1] ** 2, uniforms)
    for row, length in enumerate(lengths):
        q[row, length:], p[row, length + 1 :] = float("nan"), float("nan")
    uniforms = torch.rand(rows, longest + 1, generator=generator, dtype=torch.float64)
    return DraftBatch(tokens, lengths, q if with_q else None), p, FixedUniforms(uniforms[:, :-1], uniforms[:, -1])


@pytest.mark.parametrize("name", list(verifiers()))
@pytest.mark.parametrize("with_q", [True, False])
@pytest.mark.parametrize("vocabulary_size", [5, 700])
def test_batch_decides_like_single_rows(name: str, with_q: bool, vocabulary_size: int) -> None:
    verifier, seen = get_verifier(name), set()
    for seed in range(30):
        drafts, p, draws = ragged_batch(seed, vocabulary_size, with_q)
        verdict = verifier.verify_batch(drafts, p, draws)
        for row, length in enumerate(drafts.lengths):
            alone = FixedUniforms(draws.uniforms[0][row, :length], draws.uniforms[1][row])
            expected = verifier.verify(drafts.tree(row, vocabulary_size), p[row, : length + 1], alone)
            assert expected.path.tolist() == list(range(int(verdict.accepted[row])))
            assert int(expected.next_token) == int(verdict.next_token[row])
            seen.add((len(expected.path), length))
    assert {(0, 0), (0, 4), (2, 4), (4, 4), (1, 1), (0, 1)} <= seen


@pytest.mark.parametrize("name", list(verifiers()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_no_nan_in_low_precision(name: str, dtype: torch.dtype, uniform: float) -> None:
    verifier = get_verifier(name)
    generator = torch.Generator().manual_seed(0)
    random, other = (laws(generator, 64).to(dtype) for _ in range(2))
    hard = torch.softmax(40 * torch.randn(64, generator=generator), -1).to(dtype)
    one_hot = torch.eye(64, dtype=dtype)[3]
    for p_row in (random, hard, one_hot):
        for q_row in (random, other, hard, one_hot, torch.nextafter(random.float(), other.float()).to(dtype)):
            tokens = torch.stack([q_row.argmax(), q_row.argmin(), torch.tensor(3)])
            p, q = p_row.expand(4, -1), q_row.expand(3, -1)
            tree = DraftTree.chain(tokens, torch.cat([q, torch.zeros_like(q[:1])]))
            draws = FixedUniforms(torch.full((3,), uniform), torch.tensor(uniform, dtype=torch.float64))
            verdict = verifier.verify(tree, p, draws)
            assert bool(draws.weights.isfinite().all())
            assert float(p_row[int(verdict.next_token)]) > 0
            drafts = DraftBatch(tokens[None], (3,), q[None])
            draws = FixedUniforms(torch.full((1, 3), uniform), torch.tensor([uniform], dtype=torch.float64))
            batch = verifier.verify_batch(drafts, p[None], draws)
            assert bool(draws.weights.isfinite().all())
            assert (int(batch.accepted), int(batch.next_token)) == (len(verdict.path), int(verdict.next_token))


def test_rejection_without_residual_samples_the_target() -> None:
    p = torch.tensor([0.25, 0.75])
    tokens, reject = torch.tensor([1]), torch.ones(1)
    draws = FixedUniforms(reject, torch.tensor(0.1, dtype=torch.float64))
    TokenVerification().verify(DraftTree.chain(tokens, torch.stack([p, 0 * p])), torch.stack([p, p]), draws)
    assert torch.equal(draws.weights, p)
    batched = FixedUniforms(reject[None], torch.tensor([0.1], dtype=torch.float64))
    TokenVerification().verify_batch(DraftBatch(tokens[None], (1,), p[None, None]), torch.stack([p, p])[None], batched)
    assert torch.equal(batched.weights, p[None])
    one_hot = torch.tensor([[[0.0, 0.9999999], [0.5, 0.5]]])
    TokenVerification().verify_batch(DraftBatch(tokens[None], (1,), None), one_hot, batched)
    assert torch.equal(batched.weights, one_hot[:, 0])


@pytest.mark.parametrize("with_q", [True, False])
def test_batch_changes_no_argument(with_q: bool) -> None:
    drafts, p, draws = ragged_batch(0, 6, with_q)
    before = p.clone(), drafts.tokens.clone(), None if drafts.q is None else drafts.q.clone()
    TokenVerification().verify_batch(drafts, p, draws)
    torch.testing.assert_close((p, drafts.tokens, drafts.q), before, rtol=0, atol=0, equal_nan=True)


class ShapesOnly:
    """Draws without values: on the meta device, any look at a value raises."""

    def accept(self, probabilities: Tensor) -> Tensor:
        return torch.empty_like(probabilities, dtype=torch.bool)

    def sample(self, weights: Tensor) -> Tensor:
        return torch.empty(weights.shape[:-1], dtype=torch.long, device=weights.device)


@pytest.mark.parametrize("name", list(verifiers()))
@pytest.mark.parametrize("with_q", [True, False])
def test_batch_never_reads_a_value_on_the_host(name: str, with_q: bool) -> None:
    q = torch.empty(2, 3, 5, device="meta") if with_q else None
    drafts = DraftBatch(torch.empty(2, 3, dtype=torch.long, device="meta"), (3, 1), q)
    verdict = get_verifier(name).verify_batch(drafts, torch.empty(2, 4, 5, device="meta"), ShapesOnly())
    assert verdict.accepted.shape == verdict.next_token.shape == (2,)
    verify_greedy(drafts, torch.empty(2, 4, dtype=torch.long, device="meta"))


@pytest.mark.parametrize("with_q", [True, False])
def test_batch_without_any_draft_token(with_q: bool) -> None:
    drafts = DraftBatch(torch.zeros(3, 0, dtype=torch.long), (0, 0, 0), torch.zeros(3, 0, 4) if with_q else None)
    verdict = TokenVerification().verify_batch(drafts, torch.eye(4)[[2, 0, 3]][:, None], GeneratorDraws())
    assert (verdict.accepted.tolist(), verdict.next_token.tolist()) == ([0, 0, 0], [2, 0, 3])


def test_greedy_accepts_the_leading_run() -> None:
    drafts = DraftBatch(torch.tensor([[1, 2, 3], [1, 2, 3], [9, 2, 3], [1, 2, 3], [1, 2, 3]]), (3, 3, 3, 1, 0), None)
    best = torch.tensor([[1, 2, 3, 4], [1, 5, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    verdict = verify_greedy(drafts, best)
    assert verdict.accepted.tolist() == [3, 1, 0, 1, 0]
    assert verdict.next_token.tolist() == [4, 5, 1, 2, 1]
    with pytest.raises(ValueError, match="best must have the shape"):
        verify_greedy(drafts, best[:, :-1])


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("with_q", [True, False])
def test_one_hot_target_makes_verification_greedy(name: str, with_q: bool) -> None:
    for seed in range(10):
        drafts, _, draws = ragged_batch(seed, 5, with_q)
        generator = torch.Generator().manual_seed(seed)
        agree = torch.rand(8, 5, generator=generator) < 0.7
        others = torch.randint(5, (8, 5), generator=generator)
        best = torch.where(agree, torch.nn.functional.pad(drafts.tokens, (0, 1)), others)
        verdict = get_verifier(name).verify_batch(drafts, torch.eye(5)[best], draws)
        expected = verify_greedy(drafts, best)
        assert torch.equal(verdict.accepted, expected.accepted)
        assert torch.equal(verdict.next_token, expected.next_token)


def test_wrong_shapes_are_refused() -> None:
    tree = DraftTree.chain(torch.tensor([0]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match=r"p must have the shape of tree\.q"):
        TokenVerification().verify(tree, torch.ones(1, 2), GeneratorDraws())
    branches = DraftTree(torch.tensor([0, 1]), torch.tensor([-1, -1]), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="tree must be a chain for the verifier 'token'"):
        TokenVerification().verify(branches, torch.ones(3, 2), GeneratorDraws())
    drafts = DraftBatch(torch.zeros(1, 2, dtype=torch.long), (2,), torch.ones(1, 2, 4))
    for shape in ((1, 2, 4), (1, 3, 5), (2, 3, 4), (3, 4)):
        with pytest.raises(ValueError, match="p must have the shape"):
            TokenVerification().verify_batch(drafts, torch.ones(shape), GeneratorDraws())


def test_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_REGISTRY", dict(verification._REGISTRY))
    assert verifiers()["token"].lossless
    assert isinstance(get_verifier("token"), TokenVerification)
    with pytest.raises(ValueError, match=r"verification must be one of .*token.*; got 'tokens'"):
        get_verifier("tokens")
    with pytest.raises(ValueError, match="verifier must have a new name, got 'token'"):
        verification.register_verifier(TokenVerification())
    with pytest.raises(TypeError, match="verifier must be an instance of Verifier"):
        verification.register_verifier(TokenVerification)  # type: ignore[arg-type]

    class Renamed(TokenVerification):
        info = verification.VerifierInfo("renamed", True, "chain", "none", "The same rule.")

    verification.register_verifier(Renamed())
    assert isinstance(get_verifier("renamed"), Renamed)
