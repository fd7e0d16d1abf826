"""The laws that a diagnosis reads again are those that the rule worked with."""

import pytest
import tiny
import torch
from transformers import LogitsProcessor

import hf_specverify as sv
from hf_specverify.diagnostics import along, position_reading
from hf_specverify.diagnostics.arms import Comparison
from hf_specverify.diagnostics.draft_laws import LookupLaws
from hf_specverify.diagnostics.law_metrics import LAW_METRICS, MATCHED_METRICS, position_metrics
from hf_specverify.diagnostics.matched import lossy_rule
from hf_specverify.diagnostics.position_reading import PositionReading
from hf_specverify.diagnostics.steps import work_by_row
from hf_specverify.diagnostics.text import lay_out
from hf_specverify.verification.lossy import LossyRule

pytestmark = pytest.mark.filterwarnings("ignore:.*is lossy")
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": 20}
OUTPUT = {"return_dict_in_generate": True, "output_scores": True}


class EveryThird(LogitsProcessor):
    """Of no kind that is known, and with a state: at each third call it forbids half of the tokens."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        if self.calls % 3 == 0:
            scores = scores.clone()
            scores[:, ::2] = -torch.inf
        return scores


def live(target, draft, inputs, name, options, **sampling):
    """Generate by a rule, and write down p and q as they were: by row and new token, q None where none was drafted."""
    seen, rule = [], lossy_rule(name, **options)
    verify = LossyRule.verify_batch

    def spy(self, drafts, p, draws):
        seen.append(None if drafts.q is None else drafts.q.clone())
        return verify(self, drafts, p, draws)

    strategy = sv.SpeculativeDecoding(draft, verification=name, verification_options=options, num_draft_tokens=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossyRule, "verify_batch", spy)
        output = target.generate(**inputs, **{**SAMPLING, **OUTPUT, **sampling}, custom_generate=strategy)
    steps, rows = output.speculation.steps, len(output.sequences)
    work, q = work_by_row(steps, rows), [[] for _ in range(rows)]
    for step, laws in zip(steps, seen, strict=True):
        for place, (row, count, depth) in enumerate(zip(step.rows, step.committed, step.depths, strict=True)):
            q[row] += [laws[place, i] if i < depth and laws is not None else None for i in range(count)]
    new = [output.sequences[row, inputs["input_ids"].shape[1] :][: len(w.drafted)] for row, w in enumerate(work)]
    p = [torch.stack(output.scores)[: len(new[row]), row].softmax(-1) for row in range(rows)]
    return rule, work, [row.tolist() for row in new], p, q


def read(target, draft, inputs, rule, work, new, temperature=None, **sampling):
    texts = lay_out(inputs["input_ids"], inputs["attention_mask"], new, work)
    reading = PositionReading(texts, rule, sv.DraftModel(draft), temperature)
    target.generate(**inputs, **{**SAMPLING, **sampling}, custom_generate=reading)
    return reading


PROCESSORS = [
    {},
    {"top_k": 5},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 12},
    {"logits_processor": EveryThird},
]


@pytest.mark.parametrize("sampling", PROCESSORS, ids=str)
@pytest.mark.parametrize(("name", "options"), [("min_p", {"p_base": 0.2}), ("collaborative", {"weight": 0.4})])
def test_laws_are_those_of_the_call(name, options, sampling, monkeypatch):
    target = tiny.make_model()
    draft, inputs = tiny.near_copy(target, 0.05), tiny.prompts()
    torch.manual_seed(5)

    def fresh():
        return {name: [value()] if isinstance(value, type) else value for name, value in sampling.items()}

    rule, work, new, p, q = live(target, draft, inputs, name, options, **fresh())
    monkeypatch.setattr(position_reading, "LAW_ELEMENTS", 3 * 64)
    monkeypatch.setattr(along, "FORWARD_ELEMENTS", 7 * 64)
    reading = read(target, draft, inputs, rule, work, new, **fresh())
    drafted = 0
    for row, found in enumerate(reading.positions):
        assert found["drafted"] == [int(law is not None) for law in q[row]]
        for place, law in enumerate(q[row]):
            wanted = rule.law(p[row][place], law) if law is not None else p[row][place]
            expected = position_metrics(p[row][place][None], wanted[None])
            for metric in ("entropy", *LAW_METRICS):
                value = float(expected[metric][0])
                assert found[metric][place] == pytest.approx(value, rel=5e-3, abs=2e-5), (metric, row, place)
            drafted += law is not None and float(expected["tv"][0]) > 0.01
    assert drafted > 10


@pytest.mark.parametrize("name", ["min_p", "typical"])
def test_the_matched_law_is_the_truncated_target(name):
    target = tiny.make_model()
    draft, inputs = tiny.near_copy(target, 0.05), tiny.prompts()
    rule, work, new, p, q = live(target, draft, inputs, name, {})
    found = read(target, draft, inputs, rule, work, new).positions[0]
    for place, law in enumerate(q[0]):
        kept = p[0][place] * (p[0][place] >= rule.threshold(p[0][place]))
        wanted = rule.law(p[0][place], law) if law is not None else p[0][place]
        expected = position_metrics(p[0][place][None], wanted[None], (kept / kept.sum())[None])
        for metric in MATCHED_METRICS:
            assert found[metric][place] == pytest.approx(float(expected[metric][0]), rel=5e-3, abs=2e-5)
    assert max(found["tv_matched"]) > 0.01


def test_a_mixture_is_matched_where_it_was_drafted_only():
    target = tiny.make_model()
    draft, inputs = tiny.near_copy(target, 0.05), tiny.prompts()
    rule, work, new, _, _ = live(target, draft, inputs, "collaborative", {"weight": 0.5})
    for found in read(target, draft, inputs, rule, work, new).positions:
        for drafted, distance, shift in zip(found["drafted"], found["tv_matched"], found["tv"], strict=True):
            assert (distance < 1e-6) == bool(drafted)
            assert (shift < 1e-6) == (not drafted)


def test_likelihoods_are_those_of_the_bare_target():
    target, inputs = tiny.make_model(), tiny.prompts()
    comparison = Comparison(target, tiny.near_copy(target), "lenience", {}, None, None, 20, {"temperature": 0.5})
    for arm in ("target", "lossless"):
        generated = comparison.generate(arm, inputs)
        reading = comparison.read(arm, inputs, generated)
        for row, new in enumerate(generated.new):
            prompt = inputs["input_ids"][row][inputs["attention_mask"][row] == 1].tolist()
            law = target(torch.tensor([prompt + new]), use_cache=False).logits[0].log_softmax(-1)
            wanted = sum(float(law[len(prompt) + i - 1, token]) for i, token in enumerate(new))
            assert reading.log_likelihoods[row] == pytest.approx(wanted, rel=1e-4)
        assert reading.positions == [None] * 3


def test_a_deterministic_draft_has_one_hot_laws():
    """At λ = 0 the law is the draft's: what it proposes, it gets."""
    target = tiny.make_model(eos_token_id=None)
    draft, inputs = tiny.near_copy(target, 0.05), tiny.prompts(1)
    comparison = Comparison(target, draft, "collaborative", {"weight": 0.0}, 4, 0, 20, {"top_k": 0})
    generated = comparison.generate("rule", inputs)
    found = comparison.read("rule", inputs, generated).positions[0]
    assert generated.work[0].accepted == generated.work[0].verified > 0
    text = torch.cat([inputs["input_ids"][0], torch.tensor(generated.new[0])])[None]
    p = target(text, use_cache=False).logits[0].softmax(-1)[len(inputs["input_ids"][0]) - 1 :]
    for place, token in enumerate(generated.new[0]):
        if found["drafted"][place]:
            assert found["max_ratio"][place] == pytest.approx(1 / float(p[place, token]), rel=1e-3)


def test_lookup_is_looked_up_again(monkeypatch):
    """A text that repeats itself; every accepted token was the proposal, every other drafted one was not."""
    target = tiny.make_model(eos_token_id=None)
    inputs = {"input_ids": torch.tensor([[7, 8, 9] * 5]), "attention_mask": torch.ones(1, 15, dtype=torch.long)}
    comparison = Comparison(
        target, sv.PromptLookup(), "min_p", {"p_base": 0.001}, 4, None, 60, {"temperature": 1.0, "top_k": 4}
    )
    generated = comparison.generate("rule", inputs)
    laws, row = LookupLaws(sv.PromptLookup()), lay_out(inputs["input_ids"], None, generated.new, generated.work)[0]
    laws.start(row, 64)
    proposed, work = laws.law(0, 60).argmax(-1).tolist(), row.work
    stands = [proposed[place] == generated.new[0][place] for place in range(60) if work.drafted[place]]
    assert work.accepted > 3
    assert sum(stands) >= work.accepted
    assert not all(stands)
    found = comparison.read("rule", inputs, generated).positions[0]
    assert sum(found["drafted"]) == sum(work.drafted)
    assert "tv_matched" in found
    comparison.rule_object = lossy_rule("lenience")
    assert "tv_matched" not in comparison.read("rule", inputs, generated).positions[0]


def test_a_cap_shows_in_the_ratios():
    target = tiny.make_model(eos_token_id=None)
    inputs = tiny.prompts(2)
    largest = {}
    for cap in (None, 1.5):
        options = {"weight": 0.2, "max_overshoot": cap}
        comparison = Comparison(
            target, tiny.near_copy(target, 0.1), "collaborative", options, 4, None, 30, {"top_k": 0}
        )
        found = comparison.read("rule", inputs, comparison.generate("rule", inputs)).positions
        largest[cap] = max(max(row["max_ratio"]) for row in found)
    assert largest[None] > 3
    assert 1.2 < largest[1.5] <= 1.5 * (1 + 1e-4)
