from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hf_specverify.testing import ScriptedDraws, enumerate_outcomes
from hf_specverify.verification.draws import Draws, GeneratorDraws, inverse_cdf


def seeded(seed: int = 0) -> GeneratorDraws:
    return GeneratorDraws(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [3, 512, 513, 1400])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_token_gets_exactly_its_share_of_the_uniforms(size: int, dtype: torch.dtype) -> None:
    weights = torch.randint(0, 4, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    weights[0], weights[-1] = 0, 2
    total = int(weights.double().sum())
    uniforms = (torch.arange(2 * total, dtype=torch.float64) + 0.5) / (2 * total)
    tokens = inverse_cdf(weights.expand(2 * total, size), uniforms)
    assert torch.equal(tokens.bincount(minlength=size).double(), 2 * weights.double())
    assert tokens.tolist() == sorted(tokens.tolist())


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53, 1.0])
def test_no_token_of_weight_zero_at_the_ends(uniform: float) -> None:
    weights = torch.zeros(3, 1300)
    weights[0, [5, 700]] = torch.tensor([1e-30, 3.0])
    weights[1, [512, 1023]] = torch.tensor([2.0, 1e-38])
    weights[2, [1290, 1299]] = torch.tensor([1.0, 3.0])
    tokens = inverse_cdf(weights, torch.full((3,), uniform, dtype=torch.float64))
    assert bool((weights.gather(1, tokens[:, None]) > 0).all())
    if uniform == 0:
        assert tokens.tolist() == [5, 512, 1290]


def test_sample_keeps_leading_dimensions() -> None:
    weights = torch.eye(6).reshape(2, 3, 6)
    assert seeded().sample(weights).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert seeded().sample(weights[0, 1]).shape == ()
    assert seeded().sample(weights[:0]).shape == (0, 3)


def test_sample_follows_the_weights() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.zeros(1100)
    support = torch.randperm(1100, generator=generator)[:40]
    weights[support] = torch.rand(40, generator=generator) + 0.2
    draws = seeded(2)
    tokens = torch.cat([draws.sample(weights.expand(4000, -1)) for _ in range(5)])
    expected = weights / weights.sum() * len(tokens)
    counts = tokens.bincount(minlength=1100)
    assert int(counts[weights == 0].sum()) == 0
    chi_square = float(((counts - expected)[support] ** 2 / expected[support]).sum())
    assert chi_square < 39 + 4 * (2 * 39) ** 0.5


def test_accept_follows_the_probabilities() -> None:
    probabilities = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]).expand(20000, 5)
    shares = seeded().accept(probabilities).double().mean(dim=0)
    assert (float(shares[0]), float(shares[4])) == (0, 1)
    assert torch.allclose(shares, probabilities[0].double(), atol=0.015)


def test_flips_are_independent() -> None:
    flips = seeded().accept(torch.full((20000, 2), 0.5)).double()
    assert abs(float((flips[:, 0] * flips[:, 1]).mean()) - 0.25) < 0.015


def test_same_seed_same_draws() -> None:
    weights, probabilities = torch.rand(50, 700), torch.rand(50)
    results = []
    for seed in (3, 3, 4):
        draws = seeded(seed)
        results.append((*draws.accept(probabilities).tolist(), *draws.sample(weights).tolist()))
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_without_a_generator_the_global_one_is_used() -> None:
    weights = torch.rand(50, 700)
    torch.manual_seed(5)
    first = GeneratorDraws().sample(weights)
    torch.manual_seed(5)
    assert torch.equal(GeneratorDraws(device="cpu").sample(weights), first)
    assert not torch.equal(GeneratorDraws().sample(weights), first)


def test_generator_of_another_device_than_the_tensors() -> None:
    assert seeded().accept(torch.empty(2, 3, device="meta")).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cpu_generator_gives_the_same_draws_on_cuda() -> None:
    weights, probabilities = torch.rand(20, 1400), torch.rand(20)
    assert torch.equal(seeded().sample(weights.cuda()).cpu(), seeded().sample(weights))
    assert torch.equal(seeded().accept(probabilities.cuda()).cpu(), seeded().accept(probabilities))


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
@pytest.mark.parametrize("draws", [seeded(), ScriptedDraws()])
def test_weights_without_a_law_are_refused(draws: Draws, row: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be finite, with at least one positive weight in every row"):
        draws.sample(torch.tensor([[1.0, 1.0], row]))


def two_stage(draws: Draws) -> tuple[object, ...]:
    if bool(draws.accept(torch.tensor(0.25, dtype=torch.float64))):
        return ("early",)
    flags = draws.accept(torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    return (*flags.tolist(), *draws.sample(torch.tensor([[3.0, 0.0, 1.0], [0.0, 2.0, 0.0]])).tolist())


def test_enumeration_walks_every_way_once() -> None:
    outcomes = {result: probability for probability, result in enumerate_outcomes(two_stage)}
    assert outcomes == {
        ("early",): 0.25,
        (True, True, False, 0, 1): 0.75 * 0.5 * 0.75,
        (True, True, False, 2, 1): 0.75 * 0.5 * 0.25,
        (True, False, False, 0, 1): 0.75 * 0.5 * 0.75,
        (True, False, False, 2, 1): 0.75 * 0.5 * 0.25,
    }
    assert len(list(enumerate_outcomes(two_stage))) == 5


def test_enumeration_agrees_with_real_draws() -> None:
    draws, runs = seeded(7), 4000
    counts: dict[tuple[object, ...], int] = {}
    for _ in range(runs):
        result = two_stage(draws)
        counts[result] = counts.get(result, 0) + 1
    for probability, outcome in enumerate_outcomes(two_stage):
        assert counts[outcome] / runs == pytest.approx(probability, abs=0.03)


def test_function_without_draws_has_one_outcome() -> None:
    assert list(enumerate_outcomes(lambda draws: "nothing")) == [(1.0, "nothing")]


def test_scripted_draws_keep_the_shape_of_their_argument() -> None:
    draws = ScriptedDraws()
    accepted: Tensor = draws.accept(torch.ones(2, 3))
    assert accepted.shape == (2, 3)
    assert draws.accept(torch.ones(2, 0)).shape == (2, 0)
    assert draws.sample(torch.ones(2, 3, 4)).shape == (2, 3)
    assert draws.probability == 4.0**-6
