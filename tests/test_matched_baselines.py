"""Matched baselines: plain sampling has, at every token, the law that the lossy rule intends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import make_model, near_copy, prompts
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper

import hf_specverify as sv
from hf_specverify import verification
from hf_specverify.diagnostics.matched import MatchedMixture, TruncatedTarget, lossy_rule, matched_baseline
from hf_specverify.diagnostics.matched_sampling import MatchedSampling
from hf_specverify.verification import TokenVerification, VerifierInfo

SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 0, "max_new_tokens": 6, "min_new_tokens": 6}
OUTPUT: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
EOS = 1
MIXTURES: list[tuple[str, dict[str, Any]]] = [
    ("lenience", {"leniency": 0.4}),
    ("collaborative", {"weight": 0.6}),
    ("contrastive", {"mu": 0.2}),
    ("mentored", {"divergence": 0.02}),
    ("cactus", {"delta": 0.02}),
    ("cascade", {"kind": "chow", "threshold": 0.7}),
    ("cascade", {"threshold": 0.3}),
    ("fuzzy", {"threshold": 0.3, "divergence": "tv"}),
    ("collaborative", {"weight": 0.6, "max_overshoot": 1.1}),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def target() -> Any:
    return make_model("llama")


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    return near_copy(target)


def alone(model: Any, text: Tensor) -> Tensor:
    """(T, V) float32 logits of one text without padding."""
    logits: Tensor = model(input_ids=text[None], use_cache=False).logits[0].float()
    return logits


def laws_along(model: Any, sequences: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """(B, n, V) a model's laws at the generated tokens of left-padded rows, read row by row."""
    rows = []
    for row, sequence in enumerate(sequences):
        logits = alone(model, sequence[int((mask[row] == 0).sum()) :])
        logits[:, EOS] = -torch.inf  # by min_new_tokens
        rows.append((logits / temperature).softmax(-1)[-(sequences.shape[1] - mask.shape[1]) - 1 : -1])
    return torch.stack(rows)


def sampled_laws(output: Any) -> Tensor:
    """(B, n, V) the laws that the host drew from."""
    return torch.stack(output.scores, dim=1).softmax(-1)


@pytest.mark.parametrize(("name", "options"), MIXTURES, ids=str)
def test_mixtures_are_sampled_exactly(target: Any, draft: Any, name: str, options: dict[str, Any]) -> None:
    inputs = prompts()
    output = target.generate(**inputs, **SAMPLING, **OUTPUT, custom_generate=MatchedSampling(name, draft, **options))
    p, q = (laws_along(model, output.sequences, inputs["attention_mask"], 0.7) for model in (target, draft))
    rule = lossy_rule(name, **options)
    torch.testing.assert_close(sampled_laws(output), rule.law(p, q), rtol=0, atol=2e-5)
    assert float((rule.law(p, q) - p).abs().sum(-1).max()) > 1e-2


@pytest.mark.parametrize("options", [{}, {"delta": 1.0, "epsilon": 0.05}], ids=str)
def test_typical_truncates_the_target(target: Any, options: dict[str, Any]) -> None:
    inputs = prompts()
    output = target.generate(**inputs, **SAMPLING, **OUTPUT, custom_generate=MatchedSampling("typical", **options))
    p = laws_along(target, output.sequences, inputs["attention_mask"], 0.7)
    epsilon = options.get("epsilon", 0.3)
    entropy = -torch.where(p > 0, p * p.log(), 0).sum(-1, keepdim=True)
    least = (options.get("delta", epsilon**0.5) * torch.exp(-entropy)).clamp(max=epsilon)
    inside = p * (p >= least)
    torch.testing.assert_close(sampled_laws(output), inside / inside.sum(-1, keepdim=True), rtol=0, atol=2e-5)
    assert 1 < float((inside > 0).sum(-1).double().mean()) < 64


def test_min_p_is_that_of_the_host(target: Any) -> None:
    """Behind the temperature, where the host puts its own: same seed, same tokens."""
    inputs, ours = prompts(), MatchedSampling("min_p", p_base=0.2)
    torch.manual_seed(0)
    expected = target.generate(**inputs, **SAMPLING, min_p=0.2)
    torch.manual_seed(0)
    assert torch.equal(target.generate(**inputs, **SAMPLING, custom_generate=ours), expected)
    scores = 3 * torch.randn(5, 64)
    torch.testing.assert_close(
        matched_baseline("min_p", p_base=0.2)(torch.zeros(5, 1), scores), MinPLogitsWarper(0.2)(None, scores)
    )


def test_order_of_the_temperature_matters(target: Any) -> None:
    """A list handed to generate comes before its temperature, so the temperature has to be in the list."""
    inputs = prompts()
    neutral = {**SAMPLING, "temperature": 1.0}
    chain = matched_baseline("min_p", processors=[TemperatureLogitsWarper(0.7)], p_base=0.2)
    torch.manual_seed(0)
    expected = target.generate(**inputs, **SAMPLING, min_p=0.2)
    torch.manual_seed(0)
    assert torch.equal(target.generate(**inputs, **neutral, logits_processor=chain), expected)
    before = target.generate(**inputs, **SAMPLING, **OUTPUT, logits_processor=matched_baseline("min_p", p_base=0.2))
    behind = target.generate(**inputs, **neutral, **OUTPUT, logits_processor=chain)
    assert not torch.equal(before.scores[0] > -torch.inf, behind.scores[0] > -torch.inf)


class Recorder(TokenVerification):
    """Token verification that keeps the first law of the draft and of the target."""

    info = VerifierInfo("recorder", True, "chain", "none", "Keep what is seen.")

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor | None, Tensor, Tensor]] = []

    def verify_batch(self, drafts: Any, p: Tensor, draws: Any) -> Any:
        self.seen.append((drafts.q if drafts.q is None else drafts.q[:, 0].clone(), drafts.tokens, p[:, 0].clone()))
        return super().verify_batch(drafts, p, draws)


@pytest.mark.parametrize("draft_temperature", [None, 0.4, 0])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_laws_are_those_of_speculation(
    monkeypatch: pytest.MonkeyPatch, draft_temperature: float | None, attention: str
) -> None:
    """p and q of the first token, with processors of every kind, are those that the verifier gets."""
    target = make_model("llama", attention=attention)
    draft, recorder, inputs = near_copy(target, 0.1), Recorder(), prompts()
    monkeypatch.setattr(verification, "_REGISTRY", dict(verification._REGISTRY))
    sv.register_verifier(recorder)
    settings = {**SAMPLING, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_p": 0.95}
    with sv.enabled(target):
        target.generate(
            **inputs,
            **settings,
            assistant_model=draft,
            verification="recorder",
            draft_temperature=draft_temperature,
        )
    q, tokens, p = recorder.seen[0]
    if q is None:
        q = torch.nn.functional.one_hot(tokens[:, 0], 64).float()
    rule = lossy_rule("collaborative", weight=0.6)
    matched = MatchedSampling("collaborative", draft, draft_temperature=draft_temperature, weight=0.6)
    output = target.generate(**inputs, **settings, **OUTPUT, custom_generate=matched)
    torch.testing.assert_close(sampled_laws(output)[:, 0], rule.law(p, q), rtol=0, atol=2e-5)


def test_draft_with_another_padding_of_the_head(target: Any) -> None:
    wide = make_model("gpt2", vocabulary=80)
    mixture = MatchedMixture(lossy_rule("collaborative"), wide)
    ids = prompts(1)["input_ids"]
    logits = alone(wide, ids[0])[-1, :64]
    torch.testing.assert_close(mixture.draft_law(ids, 64)[0], logits.softmax(-1), rtol=0, atol=1e-5)
    narrow = MatchedMixture(lossy_rule("collaborative"), make_model("gpt2", vocabulary=50))
    law = narrow.draft_law(ids, 64)
    assert law.shape == (1, 64)
    assert float(law[:, 50:].sum()) == 0


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_padding_does_not_change_the_drafts_law(family: str) -> None:
    """With relative positions, absolute ones, and those that follow from the mask."""
    model, inputs = make_model(family, attention="eager" if family == "bloom" else "sdpa"), prompts()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    longer = torch.cat([ids, torch.tensor([[5, 7], [9, 4], [3, 8]])], dim=1)
    law = MatchedMixture(lossy_rule("lenience"), model, attention_mask=mask).draft_law(longer, 64)
    for row, text in enumerate(longer):
        expected = alone(model, text[int((mask[row] == 0).sum()) :])[-1].softmax(-1)
        torch.testing.assert_close(law[row], expected, rtol=0, atol=1e-5)


def test_several_answers_per_prompt(target: Any, draft: Any) -> None:
    inputs = prompts()
    output = target.generate(
        **inputs, **SAMPLING, **OUTPUT, num_return_sequences=2, custom_generate=MatchedSampling("lenience", draft)
    )
    mask = inputs["attention_mask"].repeat_interleave(2, dim=0)
    p, q = (laws_along(model, output.sequences, mask, 0.7) for model in (target, draft))
    torch.testing.assert_close(sampled_laws(output), lossy_rule("lenience").law(p, q), rtol=0, atol=2e-5)


def test_a_list_has_the_users_processors_first(draft: Any) -> None:
    front = [TemperatureLogitsWarper(0.5)]
    found = matched_baseline("fuzzy", draft, processors=LogitsProcessorList(front))
    assert found[0] is front[0]
    assert [type(item) for item in found] == [TemperatureLogitsWarper, MatchedMixture]
    assert [type(item) for item in matched_baseline("typical")] == [TruncatedTarget]


def test_wrong_arguments_are_refused(target: Any, draft: Any) -> None:
    inputs = prompts()
    with pytest.raises(ValueError, match="verification='token' has no matched baseline"):
        matched_baseline("token")
    with pytest.raises(ValueError, match="draft: the matched baseline of 'min_p' is the target's alone"):
        matched_baseline("min_p", draft)
    with pytest.raises(TypeError, match="draft=None: the matched baseline of 'lenience' needs a causal"):
        MatchedSampling("lenience")
    with pytest.raises(TypeError, match=r"'min_p' has no options \['leniency'\]"):
        MatchedSampling("min_p", leniency=0.5)
    with pytest.raises(ValueError, match="verification='contrastive' takes no deterministic drafts"):
        matched_baseline("contrastive", draft, draft_temperature=0)
    with pytest.raises(ValueError, match="do_sample=False: the matched baseline of greedy"):
        target.generate(**inputs, do_sample=False, max_new_tokens=2, custom_generate=MatchedSampling("min_p"))
    stranger = make_model("llama", vocabulary=2000)
    with pytest.raises(ValueError, match=r"draft: .* vocabularies of 64 and 2000 tokens"):
        target.generate(**inputs, **SAMPLING, custom_generate=MatchedSampling("lenience", stranger))
    with pytest.raises(ValueError, match="attention_mask must have 3 rows"):
        mixture = matched_baseline("lenience", draft, attention_mask=inputs["attention_mask"][:2])
        mixture(inputs["input_ids"], torch.zeros(3, 64))
