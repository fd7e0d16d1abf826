"""While the target samples, the output of a whole call has the target's law."""

import itertools

import pytest
import tiny
import torch
from scipy.stats import chisquare

import hf_specverify as sv

VOCABULARY, TOKENS, SAMPLES = 5, 3, 6000
NO_END = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}


def model(seed, scale=0.5, **extra):
    return tiny.make_model(seed=seed, vocabulary=VOCABULARY, initializer_range=scale, **NO_END, **extra)


def exact_law(target, prompt, warp):
    """The law of the next TOKENS tokens behind one unpadded prompt, by enumeration: (V,) * TOKENS."""
    law = torch.zeros((VOCABULARY,) * TOKENS, dtype=torch.float64)
    for answer in itertools.product(range(VOCABULARY), repeat=TOKENS):
        ids = torch.cat([prompt, torch.tensor(answer)])[None]
        laws = warp(target(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()).softmax(-1)
        law[answer] = torch.stack([row[token] for row, token in zip(laws, answer, strict=True)]).prod()
    return law


def warp_with(temperature=1.0, top_k=VOCABULARY):
    def warp(logits):
        logits = logits / temperature
        lowest = logits.topk(top_k, dim=-1).values[:, -1:]
        return logits.masked_fill(logits < lowest, -torch.inf)

    return warp


SETTINGS = {
    "plain": {},
    "warped": {"temperature": 0.7, "top_k": 3},
}
DRAFTERS = {
    "model": lambda: model(8),
    "cold model": lambda: model(8),
    "greedy model": lambda: model(8),
    "lookup": lambda: sv.PromptLookup(2),
}
TEMPERATURES = {"cold model": 0.4, "greedy model": 0.0}


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_batch_of_rows_of_different_length(name, setting):
    check_law(model(7), DRAFTERS[name](), SETTINGS[setting], TEMPERATURES.get(name))


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.slow
def test_row_by_row():
    target = tiny.make_model(
        "gpt_neo", seed=7, vocabulary=VOCABULARY, attention="eager", **{**NO_END, "initializer_range": 0.5}
    )
    check_law(target, model(8), {}, None)


def test_draft_with_a_larger_head():
    draft = tiny.make_model(seed=8, vocabulary=VOCABULARY + 3, **{**NO_END, "initializer_range": 0.5})
    check_law(model(7), draft, {}, None)


def check_law(target, draft, setting, draft_temperature, **options):
    """Chi-square of many sampled answers of each of two prompts in one batch, against the enumerated law."""
    prompts = [torch.tensor([1, 4, 2, 1, 4]), torch.tensor([3, 2])]
    ids = torch.zeros(2, 5, dtype=torch.long)
    mask = torch.zeros(2, 5, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, 5 - len(prompt) :], mask[row, 5 - len(prompt) :] = prompt, 1
    arguments = {"top_k": 0, **setting, "do_sample": True, "max_new_tokens": TOKENS, "num_return_sequences": 500}
    generator = torch.Generator().manual_seed(11)
    answers = [[], []]
    with sv.enabled(target):
        for _ in range(SAMPLES // 500):
            out = target.generate(
                ids,
                attention_mask=mask,
                assistant_model=draft,
                **{"num_draft_tokens": 2, **options},
                generator=generator,
                draft_temperature=draft_temperature,
                **arguments,
            )[:, 5:]
            for row in range(2):
                answers[row].append(out[row * 500 : (row + 1) * 500])
    for row, prompt in enumerate(prompts):
        law = exact_law(target, prompt, warp_with(**setting)).flatten()
        drawn = torch.cat(answers[row])
        index = sum(drawn[:, i] * VOCABULARY ** (TOKENS - 1 - i) for i in range(TOKENS))
        counts = torch.bincount(index, minlength=VOCABULARY**TOKENS)
        assert int(counts[law == 0].sum()) == 0
        expected, counts = law * SAMPLES, counts.double()
        rare = expected < 5
        groups = (
            torch.cat([expected[~rare], expected[rare].sum()[None]]),
            torch.cat([counts[~rare], counts[rare].sum()[None]]),
        )
        keep = groups[0] > 0
        assert (
            chisquare(groups[1][keep], groups[0][keep] * (groups[1][keep].sum() / groups[0][keep].sum())).pvalue > 1e-4
        )


def test_the_check_would_see_a_wrong_law(monkeypatch):
    """With the verifier's q replaced by another law than the draft was drawn from, the chi-square test fails."""
    from hf_specverify.drafting import model_chains

    honest = model_chains.ModelSession.propose

    def dishonest(self, state, lengths):
        drafts = honest(self, state, lengths)
        return type(drafts)(
            drafts.tokens, drafts.lengths, None if drafts.q is None else drafts.q**2 / (drafts.q**2).sum(-1, True)
        )

    monkeypatch.setattr(model_chains.ModelSession, "propose", dishonest)
    with pytest.raises(AssertionError):
        check_law(model(7), model(8), {}, None)
