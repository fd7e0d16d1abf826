"""Signals by their formulas, whatever the chunks."""

import pytest
import torch

from hf_specverify.scheduling import SIGNALS, compute_signals, vocabulary_signals

NAMES = ["S", "A", "q", "entropy", "max_q", "margin", "position", "c"]


def blocks(rows=3, length=4, size=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, c = (torch.softmax(2 * torch.randn(rows, length, size, generator=generator), -1) for _ in range(2))
    q[..., 2], c[..., 3] = 0, 0  # neither law is positive everywhere
    q, c = q / q.sum(-1, keepdim=True), c / c.sum(-1, keepdim=True)
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(rows, length)
    return tokens, q, c


def by_hand(tokens, q, c):
    values = {name: torch.zeros(tokens.shape) for name in NAMES}
    for row in range(tokens.shape[0]):
        for i, token in enumerate(tokens[row].tolist()):
            law, other = q[row, i].double(), c[row, i].double()
            values["S"][row, i] = 1 - (law - other).abs().sum() / 2
            values["A"][row, i] = min(1.0, float(other[token] / law[token]))
            values["q"][row, i], values["c"][row, i] = law[token], other[token]
            values["entropy"][row, i] = -sum(float(x) * float(x.log()) for x in law if x > 0)
            top = law.sort(descending=True).values
            values["max_q"][row, i], values["margin"][row, i] = top[0], top[0] - top[1]
            values["position"][row, i] = i + 1
    return values


@pytest.mark.parametrize("elements", [1 << 22, 20, 1])
def test_formulas(elements, monkeypatch):
    monkeypatch.setattr("hf_specverify.scheduling.signal_values.CHUNK_ELEMENTS", elements)
    tokens, q, c = blocks()
    found, expected = compute_signals(NAMES, tokens, q, c), by_hand(tokens, q, c)
    assert list(found) == NAMES
    for name in NAMES:
        assert found[name].dtype == torch.float32
        assert torch.allclose(found[name], expected[name], atol=1e-6), name


def test_expected_acceptance_by_the_companion_is_the_overlap():
    _, q, c = blocks(rows=2)
    values = vocabulary_signals(["S", "A"], q, c)
    assert torch.allclose((q * values["A"]).sum(-1, keepdim=True), values["S"], atol=1e-6)


def test_whole_vocabulary_agrees_with_the_drawn_tokens_to_the_last_bit():
    tokens, q, c = blocks(seed=3)
    names = [name for name in NAMES if name != "position"]
    everywhere, drawn = vocabulary_signals(names, q, c), compute_signals(names, tokens, q, c)
    for name in names:
        assert everywhere[name].shape[-1] == (7 if SIGNALS[name].looks_at_drawn_token else 1)
        assert torch.equal(everywhere[name].expand(q.shape).gather(2, tokens[..., None]).squeeze(2), drawn[name]), name
    assert not any(value.isnan().any() for value in everywhere.values())
    assert (everywhere["A"][..., 2] == 1).all() and (everywhere["A"][..., 3] == 0).all()


def test_signals_that_look_depend_on_the_token_and_the_others_do_not():
    tokens, q, c = blocks()
    other = (tokens + 1) % 7
    first, second = compute_signals(NAMES, tokens, q, c), compute_signals(NAMES, other, q, c)
    for name in NAMES:
        assert torch.equal(first[name], second[name]) != SIGNALS[name].looks_at_drawn_token, name


def test_deterministic_drafts():
    tokens, _, c = blocks()
    one_hot = torch.nn.functional.one_hot(tokens, 7).float()
    without_law, with_law = compute_signals(NAMES, tokens, None, c), compute_signals(NAMES, tokens, one_hot, c)
    for name in NAMES:
        assert torch.allclose(without_law[name], with_law[name], atol=1e-7), name
    assert torch.equal(without_law["A"], without_law["c"])
    alone = compute_signals(["entropy", "q"], tokens, None)
    assert alone["entropy"].eq(0).all() and alone["q"].eq(1).all()


def test_identical_laws_halves_and_lookups():
    tokens, q, _ = blocks()
    found = compute_signals(["S", "A"], tokens, q, q)
    assert torch.allclose(found["S"], torch.ones(3, 4)) and found["S"].max() <= 1 and found["A"].eq(1).all()
    half = compute_signals(["entropy", "S"], tokens, q.bfloat16(), q.bfloat16())
    assert half["entropy"].dtype == torch.float32
    assert torch.allclose(half["entropy"], compute_signals(["entropy"], tokens, q)["entropy"], atol=0.05)
    lookup = {"match_length": torch.tensor([1, 2, 3]), "match_count": torch.arange(12).view(3, 4)}
    found = compute_signals(list(lookup), tokens, None, lookup=lookup)
    assert found["match_length"].tolist() == [[n] * 4 for n in (1, 2, 3)]
    assert found["match_count"].tolist() == lookup["match_count"].tolist()
    assert compute_signals(["S"], tokens[:, :0], q[:, :0], q[:, :0])["S"].shape == (3, 0)


def test_registry():
    assert list(SIGNALS) == [
        "S", "A", "q", "entropy", "max_q", "margin", "expected", "position", "c", "match_length", "match_count"
    ]  # fmt: skip
    assert {name for name, signal in SIGNALS.items() if signal.looks_at_drawn_token} == {"A", "q", "c"}
    assert {name for name, signal in SIGNALS.items() if signal.needs == "companion"} == {"S", "A", "c"}
    assert all(signal.meaning.endswith(".") for signal in SIGNALS.values())


def test_wrong_arguments_are_refused():
    tokens, q, c = blocks()
    for arguments, message in (
        ((["T"], tokens, q, c), "names must be some of"),
        ((["S"], tokens, q, None), "c must be given"),
        ((["match_length"], tokens, q, c), "lookup must hold"),
        ((["expected"], tokens, q, c), "lookup must hold the signal 'expected'"),
        ((["S"], tokens[0], q, c), "tokens must have the shape"),
        ((["S"], tokens, q[:, :2], c), "q must have the shape"),
        ((["S"], tokens, q, c[..., :3]), "c must have the shape of q"),
    ):
        with pytest.raises(ValueError, match=message):
            compute_signals(*arguments)
    with pytest.raises(ValueError, match="names must be some of"):
        vocabulary_signals(["position"], q)
    with pytest.raises(ValueError, match="c must be given"):
        vocabulary_signals(["A"], q)
