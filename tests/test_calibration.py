"""Calibration on laws that are known."""

import pytest
import torch

from hf_specverify.scheduling import CalibrationTable, admission_cutoff, admitted
from hf_specverify.scheduling.binning import make_edges
from hf_specverify.scheduling.isotonic import monotone, shrunken
from hf_specverify.scheduling.quality import quality

N = 50_000


def law(overlap, signal):
    """Acceptance that rises with both, and jumps where the companion accepts for sure."""
    return 0.05 + 0.25 * overlap + 0.4 * signal * overlap + 0.2 * (signal == 1)


def sample(n=N, seed=0):
    generator = torch.Generator().manual_seed(seed)
    overlap = torch.rand(n, generator=generator) ** 0.5
    signal = (1.5 * torch.rand(n, generator=generator)).clamp(max=1)
    chance = law(overlap, signal)
    accepted = (torch.rand(n, generator=generator) < chance).float()
    return {"S": overlap, "A": signal}, chance, accepted, torch.arange(n) // 5


@pytest.fixture(scope="module")
def table():
    signals, _, accepted, groups = sample()
    return CalibrationTable.fit(signals, accepted, groups, metadata={"target": "a", "n": [1, 2.5, None]})


def test_known_law_is_reproduced(table):
    fresh, chance, *_ = sample(20_000, seed=1)
    error = (table.predict(fresh) - chance).abs()
    assert error.mean() < 0.025
    soft = CalibrationTable.fit(sample()[0], sample()[1])
    assert (soft.predict(fresh) - chance).abs().mean() < 0.012
    assert int(table.number.sum()) == N
    assert float(table.outcome.sum()) == float(sample()[2].sum())


def test_certain_acceptance_by_the_companion_is_an_atom(table):
    overlap = torch.full((2,), 0.7)
    below, at = table.predict({"S": overlap, "A": torch.tensor([0.998, 1.0])}).tolist()
    assert below == pytest.approx(float(law(0.7, 0.998)), abs=0.05)
    assert at == pytest.approx(float(law(0.7, torch.tensor(1.0))), abs=0.05)
    assert at - below > 0.12


def test_edges_follow_the_data():
    dense = torch.cat([torch.rand(9_000) * 0.1, torch.rand(1_000)])
    edges = make_edges("max_q", dense, 20)
    assert (edges < 0.1).sum() >= 15
    atoms = torch.cat([torch.zeros(5_000), torch.rand(5_000)])
    counts = torch.bincount(torch.bucketize(atoms, make_edges("entropy", atoms, 10), right=True))
    assert counts[0] == 5_000 and counts[1:].max() < 700
    assert make_edges("position", torch.tensor([1.0, 2.0, 3.0, 2.0]), 16).tolist() == [1.5, 2.5]
    assert make_edges("A", torch.tensor([0.5, 0.5]), 16).tolist() == pytest.approx([1 - 1e-6])
    assert make_edges("q", torch.tensor([0.5, 0.5]), 16).tolist() == []


def test_predictions_are_monotone():
    generator = torch.Generator().manual_seed(0)
    n = 3_000
    signals = {name: torch.rand(n, generator=generator) for name in ("S", "A", "entropy")}
    accepted = (torch.rand(n, generator=generator) < 0.3 + 0.2 * (signals["A"] < 0.5)).float()  # against expectation
    table = CalibrationTable.fit(signals, accepted, torch.arange(n), bins=6)
    grid = table.probabilities
    assert grid.shape[0] >= 6
    assert (grid.diff(dim=0) >= 0).all() and (grid.diff(dim=1) >= 0).all() and (grid.diff(dim=2) <= 0).all()
    free = CalibrationTable.fit(signals, accepted, torch.arange(n), bins=6, monotone=None).probabilities
    assert (free.diff(dim=1) < -0.05).any()
    turned = CalibrationTable.fit(signals, accepted, bins=6, monotone={"A": "decreasing"})
    assert (turned.probabilities.diff(dim=1) <= 0).all()
    assert abs(float(turned.predict(signals)[signals["A"] < 0.4].mean()) - 0.5) < 0.05


def test_pooling_is_the_least_squares_fit():
    values = torch.tensor([[0.1, 0.5, 0.2, 0.4, 0.3]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 1.0, 2.0, 1.0, 3.0]], dtype=torch.float64)
    fitted = monotone(values, weights, [0, 1])
    assert fitted[0].tolist() == pytest.approx([0.1, 0.3, 0.3, 1.3 / 4, 1.3 / 4], abs=1e-3)
    assert torch.allclose(monotone(-values, weights, [0, -1]), -fitted)
    assert torch.equal(monotone(values, weights, [0, 0]), values)


def test_sparse_cells_lean_on_their_marginals():
    number = torch.full((4, 4), 200)
    rates = torch.linspace(0.2, 0.8, 4, dtype=torch.float64)[:, None].expand(4, 4).clone()
    number[2, 1], rates[2, 1] = 0, 0.0
    number[0, 0], rates[0, 0] = 1, 1.0
    outcome = number * rates
    estimate = shrunken(number, outcome, outcome)
    row, column = (float(outcome.sum(axis)[at] / number.sum(axis)[at]) for axis, at in ((1, 2), (0, 1)))
    assert column < 0.48 < 0.55 < float(estimate[2, 1]) < row + 0.01  # rows tell more than columns, and count for more
    both = number * (rates + rates.T) / 2
    both[2, 1] = 0
    assert float(shrunken(number, both, both)[2, 1]) == pytest.approx(0.5, abs=0.03)
    assert float(estimate[0, 0]) < 0.5
    assert float(estimate[3, 3]) == pytest.approx(0.8, abs=0.02)
    empty = shrunken(torch.zeros(3, dtype=torch.long), *torch.zeros(2, 3, dtype=torch.float64))
    assert empty.tolist() == [0.5] * 3


def test_empty_cells_give_way_to_their_neighbours():
    signals, chance, _, _ = sample(10_000)
    signals["S"] *= 0.9  # so that the bins of S = 1 are empty
    table = CalibrationTable.fit(signals, chance, bins=7)
    assert int(table.number[-1].sum()) == 0
    cells = table.number[:-1] > 0
    mean = (table.outcome / table.number.clamp(min=1))[:-1][cells]
    assert (table.probabilities[:-1][cells] - mean).abs().max() < 0.03
    assert (table.probabilities[-1] >= table.probabilities[-2]).all()


def test_counts_add():
    signals, chance, accepted, groups = sample(6_001)
    for outcome in (chance, accepted):
        whole = CalibrationTable.fit(signals, outcome, groups)
        halves = [
            CalibrationTable.fit(
                {k: v[part] for k, v in signals.items()}, outcome[part], groups[part], edges=whole.edges
            )
            for part in (slice(0, 3_000), slice(3_000, None))
        ]
        for merged in (halves[0] + halves[1], halves[1] + halves[0]):
            for name in ("number", "outcome", "squares"):
                assert torch.equal(getattr(merged, name), getattr(whole, name)), name
            assert torch.equal(merged.predict(signals), whole.predict(signals))
            assert len(merged.samples.outcome) == 6_001
            assert merged.information_gain()["S"].bits == pytest.approx(whole.information_gain()["S"].bits, abs=5e-3)
    assert whole.samples is not None


def test_only_equal_tables_add(table):
    signals, _, accepted, groups = sample(2_000)
    for other, field in (
        (CalibrationTable.fit(signals, accepted, groups), "edges"),
        (CalibrationTable.fit({"S": signals["S"]}, accepted, groups), "names"),
        (CalibrationTable.fit(signals, accepted, groups, edges=table.edges, monotone=None), "directions"),
    ):
        with pytest.raises(ValueError, match=field):
            table + other
    with pytest.raises(TypeError):
        table + 1
    same = CalibrationTable.fit(signals, accepted, edges=table.edges, metadata={"target": "a", "n": 3})
    assert (table + same).metadata == {"target": "a"}


def test_predict_takes_any_shape_and_ignores_other_signals(table):
    signals = {"S": torch.rand(2, 3, 4), "A": torch.rand(2, 3, 4), "entropy": torch.rand(7)}
    found = table.predict(signals)
    assert found.shape == (2, 3, 4) and found.dtype == torch.float32
    flat = table.predict({name: signals[name].flatten() for name in ("S", "A")})
    assert torch.equal(found.flatten(), flat)
    wide = table.predict({"S": torch.rand(2, 1), "A": torch.rand(2, 9)})
    assert wide.shape == (2, 9)
    assert table.predict({"S": torch.tensor(0.5), "A": torch.tensor(-3.0)}).shape == ()
    with pytest.raises(ValueError, match="'S'"):
        table.predict({"A": torch.rand(3)})


def test_cutoff_is_the_same_as_a_lookup(table):
    generator = torch.Generator().manual_seed(0)
    overlap, required = (torch.rand(5, 6, generator=generator) for _ in range(2))
    required = required.double()
    required[0, 0], required[0, 1] = float("inf"), -1.0
    required[1] = table.predict({"S": overlap[1], "A": torch.full((6,), 0.5)}).double()  # equal is not above
    signal = torch.rand(5, 6, 300, generator=generator)
    signal[..., :4] = torch.tensor([0.0, 1.0, 1 - 1e-6, 0.5])
    expected = admitted(table.predict({"S": overlap[..., None], "A": signal}), required)
    assert torch.equal(signal >= admission_cutoff(table, "A", required, {"S": overlap})[..., None], expected)
    assert 0.1 < expected.float().mean() < 0.9
    alone = CalibrationTable.fit({"q": sample()[0]["A"]}, sample()[1])
    found = signal >= admission_cutoff(alone, "q", required, {})[..., None]
    assert torch.equal(found, admitted(alone.predict({"q": signal}), required))
    with pytest.raises(ValueError, match="name"):
        admission_cutoff(table, "q", required, {"S": overlap})
    with pytest.raises(ValueError, match="signals must hold"):
        admission_cutoff(table, "A", required, {})


def test_information_of_what_is_known():
    generator = torch.Generator().manual_seed(0)
    accepted = (torch.rand(N, generator=generator) < 0.3).float()
    noise = torch.rand(N, generator=generator)
    signals = {"q": accepted * 0.5 + 0.2, "max_q": noise, "c": accepted * 0.5 + 0.2}
    gains = CalibrationTable.fit(signals, accepted, torch.arange(N) // 7).information_gain()
    entropy = 0.8813  # H(.3)
    assert gains.entropy == pytest.approx(entropy, abs=0.01)
    assert gains["q"].bits == pytest.approx(gains.entropy, abs=0.01)
    assert gains["q"].share == pytest.approx(1, abs=0.01)
    assert abs(gains["max_q"].bits) < 0.005
    assert len(gains) == 7 and gains["c", "q"] is gains["q", "c"]
    assert abs(gains.companion_bits) < 0.005  # the companion is a copy
    with pytest.raises(KeyError):
        gains["entropy"]


def test_information_of_noise_is_nothing_even_with_few_samples():
    bits = []
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        signals = {name: torch.rand(2_000, generator=generator) for name in ("position", "margin", "match_count")}
        accepted = (torch.rand(2_000, generator=generator) < 0.6).float()
        gains = CalibrationTable.fit(signals, accepted, torch.arange(2_000) // 5).information_gain()
        bits += [entry.bits for entry in gains.values()]
    assert abs(sum(bits) / len(bits)) < 0.005


def test_information_against_its_true_value():
    signals, chance, accepted, groups = sample()
    for outcome in (chance, accepted):
        gains = CalibrationTable.fit(signals, outcome, groups).information_gain()
        conditional = -(chance * chance.log2() + (1 - chance) * (1 - chance).log2()).mean()
        assert gains["S", "A"].bits == pytest.approx(gains.entropy - float(conditional), abs=0.01)
        assert gains["S", "A"].bits > gains["A"].bits > gains["S"].bits > 0.02
        assert gains.companion_bits is None  # nothing of the draft's own to compare with
    signals["margin"] = signals["S"]
    gains = CalibrationTable.fit(signals, chance, groups, sets=[("margin",), ("S", "A")]).information_gain()
    assert list(gains) == [("margin",), ("S", "A")]
    assert gains.companion_bits == pytest.approx(gains["S", "A"].bits - gains["margin"].bits)
    assert gains.companion_bits > 0.05


def test_sequences_are_held_out():
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(4_000) // 40
    by_sequence = (torch.rand(100, generator=generator) < 0.5).float()[groups]
    signals = {"position": groups.float()}  # tells everything about sequences seen, nothing about others
    held = CalibrationTable.fit(signals, by_sequence, groups).information_gain()["position"].bits
    leaking = CalibrationTable.fit(signals, by_sequence).information_gain()["position"].bits
    assert held < 0.05 < 0.2 < leaking


def test_more_than_three_signals_choose_the_telling_ones():
    signals, chance, _, groups = sample(8_000)
    generator = torch.Generator().manual_seed(1)
    signals = {f"noise_{i}": torch.rand(8_000, generator=generator) for i in range(2)} | signals
    table = CalibrationTable.fit(signals, chance, groups)
    assert table.names == ("S", "A")
    assert CalibrationTable.fit(signals, chance, groups, sets=[("A",), ("S", "A")]).names == ("A",)


def test_no_signal_is_chosen_that_tells_nothing_more():
    generator = torch.Generator().manual_seed(1)
    signals = {f"noise_{i}": torch.rand(2_000, generator=generator) for i in range(4)}
    groups = torch.arange(2_000) // 8
    accepted = (torch.rand(2_000, generator=generator) < signals["noise_2"]).float()
    assert CalibrationTable.fit(signals, accepted, groups).names == ("noise_2",)
    assert len(CalibrationTable.fit(signals, torch.ones(2_000), groups).names) == 1  # nothing to tell: still a table


def test_calibration_error_and_reliability(table, tmp_path):
    signals, chance, accepted, groups = sample(20_000)
    signals["position"] = 1.0 + torch.arange(20_000) % 3
    found = CalibrationTable.fit(signals, accepted, groups).calibration_error()
    assert list(found.by_position) == [1, 2, 3]
    assert sum(part.samples for part in found.by_position.values()) == found.overall.samples == 20_000
    best = quality(chance.double(), accepted.double())
    assert found.overall.ece < 0.03
    assert found.overall.brier == pytest.approx(best.brier, abs=0.005)
    assert found.overall.auc == pytest.approx(best.auc, abs=0.02)
    points = table.reliability()
    assert (points.predicted - points.observed).abs().max() < 0.05
    assert float(points.number.sum()) == N
    pytest.importorskip("matplotlib")
    table.plot_reliability(tmp_path / "reliability.png")
    assert (tmp_path / "reliability.png").stat().st_size > 5_000


def test_quality_by_hand():
    predicted = torch.tensor([0.95, 0.75, 0.75, 0.15], dtype=torch.float64)
    outcome = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    found = quality(predicted, outcome)
    assert found.auc == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert found.brier == pytest.approx((0.05**2 + 0.25**2 + 0.75**2 + 0.15**2) / 4)
    assert found.ece == pytest.approx((0.05 + 2 * 0.25 + 0.15) / 4)
    assert quality(predicted, torch.ones(4, dtype=torch.float64)).auc == 0.5
    assert quality(predicted, torch.full((4,), 0.5, dtype=torch.float64)).auc == pytest.approx(0.5)


def test_wrong_arguments_are_refused():
    values = torch.rand(10)
    good = {"signals": {"S": values}, "outcome": values}
    for change, message in (
        ({"outcome": values + 1}, "outcome"),
        ({"outcome": values[:0], "signals": {"S": values[:0]}}, "outcome"),
        ({"signals": {"S": values[:5]}}, "signals"),
        ({"signals": {"S": values / 0}}, "signals"),
        ({"signals": {}}, "signals"),
        ({"signals": {"a b": values}}, "signals"),
        ({"groups": values}, "groups"),
        ({"groups": torch.arange(9)}, "groups"),
        ({"sets": [("A",)]}, "sets"),
        ({"sets": ["S"]}, "sets"),
        ({"sets": [()]}, "sets"),
        ({"bins": 0}, "bins"),
        ({"monotone": "rising"}, "monotone"),
        ({"monotone": {"S": "up"}}, "monotone"),
        ({"edges": {"A": values}}, "edges"),
        ({"edges": {"S": torch.tensor([0.5, 0.4])}}, "edges"),
    ):
        with pytest.raises(ValueError, match=message):
            CalibrationTable.fit(**{**good, **change})
