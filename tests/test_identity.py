"""Greedy speculative output is plain greedy output, token for token in float32, for every family and option."""

import threading

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer
from transformers import EosTokenCriteria, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import hf_specverify as sv

LENGTH = 24
# What the probe must find; a family that falls to a slower layout by mistake is a fault too.
LAYOUTS = {
    "bloom": "masked holes",
    **dict.fromkeys(("gpt_neo", "qwen3_next", "lfm2", "falcon_h1"), "row by row"),
}
ATTENTIONS = ["sdpa", "eager"]
NO_SDPA = {"bloom", "gpt_neo"}

FAMILY_CASES = [
    (family, attention)
    for family in tiny.FAMILIES
    for attention in ATTENTIONS
    if not (family in NO_SDPA and attention == "sdpa") and family not in tiny.REFUSED
]


def both(target, draft, inputs, **arguments):
    """Plain and speculative output with the same arguments."""
    arguments = {"max_new_tokens": LENGTH, "do_sample": False, "return_dict_in_generate": True, **arguments}
    plain = target.generate(**inputs, **arguments)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=draft, num_draft_tokens=4, **arguments)
    return plain, ours


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.parametrize(("family", "attention"), FAMILY_CASES)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_family(family, attention, batch):
    target = tiny.make_model(family, attention=attention)
    inputs = tiny.prompts(batch)
    plain, ours = both(target, tiny.near_copy(target), inputs)
    assert torch.equal(plain.sequences, ours.sequences)
    report = ours.speculation
    assert report.layout == LAYOUTS.get(family, "row cache")
    assert 0 < report.accepted < report.verified, "the draft must be partly right for this to test anything"


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.parametrize(("family", "attention"), FAMILY_CASES)
@pytest.mark.parametrize("option", ["processors", "ends", "stop strings"])
def test_every_family_with_options(family, attention, option):
    target = tiny.make_model(family, attention=attention, vocabulary=259)
    inputs, tokenizer = tiny.prompts(3, vocabulary=259), byte_tokenizer()
    letters = [index for token, index in tokenizer.get_vocab().items() if token.isascii() and token.isalnum()]
    limits = {"suppress_tokens": [index for index in range(259) if index not in letters]}
    free = target.generate(**inputs, max_new_tokens=LENGTH, do_sample=False, **limits)[:, 9:]
    ends = [int(free[row, 4 + 3 * row]) for row in range(3)]
    arguments = {
        "processors": PROCESSORS["several"],
        "ends": {**limits, "eos_token_id": ends},
        "stop strings": {**limits, "stop_strings": tokenizer.convert_ids_to_tokens(ends), "tokenizer": tokenizer},
    }[option]
    plain, ours = both(target, tiny.near_copy(target, 0.01), inputs, **arguments)
    assert torch.equal(plain.sequences, ours.sequences)
    assert option == "processors" or plain.sequences.shape[1] < 9 + LENGTH


@pytest.mark.parametrize("family", tiny.REFUSED)
def test_models_that_cannot_be_rolled_back_are_refused_by_layer(family):
    target = tiny.make_model(family, attention="eager")
    with sv.enabled(target), pytest.raises(ValueError, match=f"{type(target).__name__}.*{tiny.REFUSED[family]}"):
        target.generate(**tiny.prompts(1), assistant_model=sv.PromptLookup(), max_new_tokens=4)


def test_a_slower_layout_is_never_silent():
    target = tiny.make_model("gpt_neo", attention="eager", hidden_size=64)
    with (
        sv.enabled(target),
        pytest.warns(UserWarning, match="GPTNeoForCausalLM runs in the slower layout 'row by row'"),
    ):
        target.generate(**tiny.prompts(1), assistant_model=sv.PromptLookup(), max_new_tokens=4)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("draft_length", [1, 3, 8])
def test_lengths_and_prompt_lookup(batch, draft_length):
    target = tiny.make_model()
    inputs = tiny.prompts(batch)
    arguments = {"max_new_tokens": 40, "do_sample": False}
    plain = target.generate(**inputs, **arguments)
    with sv.enabled(target):
        for drafter in (tiny.near_copy(target), sv.PromptLookup(3)):
            ours = target.generate(**inputs, assistant_model=drafter, num_draft_tokens=draft_length, **arguments)
            assert torch.equal(plain, ours)


class Countdown(LogitsProcessor):
    """Keeps a state: what it forbids depends on how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores = scores.clone()
        scores[:, 3 + self.calls % 7 :: 7] = -torch.inf
        return scores


class FlagRow(LogitsProcessor):
    """Knows rows by their place in the batch."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row in range(len(scores)):
            scores[row, 10 + 5 * row : 15 + 5 * row] += 6.0
            scores[row, int(input_ids[row, -1])] -= 3.0
        return scores


PROCESSORS = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": list(range(1, 30))},
    "min_length": {"min_length": 15, "eos_token_id": list(range(1, 30))},
    "bad_words": {"bad_words_ids": [[5], [6, 7], [20]]},
    "sequence_bias": {"sequence_bias": [[[8], 4.0], [[9, 10], 5.0]]},
    "suppress": {"suppress_tokens": [4, 5, 6, 7, 30, 31], "begin_suppress_tokens": [11, 12]},
    "forced_eos": {"forced_eos_token_id": 1},
    "decay": {"exponential_decay_length_penalty": (5, 1.3)},
    "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 5, "bad_words_ids": [[9]]},
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name, batch):
    target = tiny.make_model()
    plain, ours = both(target, tiny.near_copy(target, 0.01), tiny.prompts(batch), **PROCESSORS[name])
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.accepted > 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", [Countdown, FlagRow])
def test_processors_of_the_user(kind, batch):
    target = tiny.make_model()
    inputs, arguments = tiny.prompts(batch), {"max_new_tokens": LENGTH, "do_sample": False}
    plain = target.generate(**inputs, logits_processor=LogitsProcessorList([kind()]), **arguments)
    mine = kind()
    with sv.enabled(target):
        ours = target.generate(
            **inputs, logits_processor=[mine], assistant_model=tiny.near_copy(target), num_draft_tokens=4, **arguments
        )
    assert torch.equal(plain, ours)
    assert getattr(mine, "calls", 0) == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_guidance(batch):
    target = tiny.make_model()
    plain, ours = both(target, tiny.near_copy(target), tiny.prompts(batch), guidance_scale=1.5)
    assert torch.equal(plain.sequences, ours.sequences)


class Grammar:
    """Allowed continuations of a text by its last token and its row; a text with another token has none."""

    def __init__(self, prompt_length):
        self.prompt_length = prompt_length

    def __call__(self, row, ids):
        text = ids.tolist()
        for before, token in zip(text[self.prompt_length - 1 :], text[self.prompt_length :], strict=False):
            if token not in self.after(row, before):
                return []  # for which the host raises
        return self.after(row, text[-1])

    def after(self, row, token):
        return [3 + (token * 7 + row * 5 + step) % 60 for step in range(9)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("lookup", [False, True])
def test_a_grammar_never_sees_a_text_that_it_forbids(batch, lookup):
    target = tiny.make_model()
    drafter = sv.PromptLookup() if lookup else tiny.near_copy(target)
    plain, ours = both(target, drafter, tiny.prompts(batch), prefix_allowed_tokens_fn=Grammar(9))
    assert torch.equal(plain.sequences, ours.sequences)
    assert lookup or ours.speculation.accepted > 0


@pytest.mark.parametrize("batch", [1, 4])
def test_end_tokens_inside_a_block(batch):
    target = tiny.make_model()
    inputs = tiny.prompts(batch)
    free = target.generate(**inputs, max_new_tokens=40, do_sample=False)[:, 9:]
    # End tokens that stand in the middle of the free answers.
    ends = sorted({int(free[row, 7 + 3 * row]) for row in range(batch)})
    plain, ours = both(target, tiny.near_copy(target), inputs, max_new_tokens=40, eos_token_id=ends)
    assert plain.sequences.shape[1] < 49
    assert torch.equal(plain.sequences, ours.sequences)


class StopAfter(StoppingCriteria):
    """Keeps a state: stops at its tenth call."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), len(self.seen) >= 10, dtype=torch.bool)


def test_criteria_are_asked_once_per_committed_token():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    seen = []
    for draft in (None, tiny.near_copy(target)):
        criterion = StopAfter()
        with sv.enabled(target):
            out = target.generate(
                **inputs,
                max_new_tokens=30,
                do_sample=False,
                assistant_model=draft,
                stopping_criteria=StoppingCriteriaList([criterion]),
            )
        seen.append((criterion.seen, out.tolist()))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 10


class Watch(StoppingCriteria):
    """Notes how many scores it gets."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append((input_ids.shape[1], len(scores), int(scores[-1].argmax())))
        return torch.zeros(1, dtype=torch.bool)


def test_criteria_get_the_scores_of_every_token():
    target = tiny.make_model()
    seen = []
    for draft in (None, tiny.near_copy(target)):
        watch = Watch()
        with sv.enabled(target):
            target.generate(
                **tiny.prompts(1),
                max_new_tokens=12,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
                assistant_model=draft,
                stopping_criteria=StoppingCriteriaList([watch]),
            )
        seen.append(watch.seen)
    assert seen[0] == seen[1]


class Flag(StoppingCriteria):
    """A stop button: somebody sets `pressed` from outside. Not to be copied."""

    def __init__(self, after):
        self.after, self.pressed, self.lock = after, False, threading.Lock()

    def __call__(self, input_ids, scores, **kwargs):
        self.pressed |= input_ids.shape[1] >= self.after
        return torch.full((len(input_ids),), self.pressed)


def test_a_stop_button_works_in_a_batch():
    target = tiny.make_model()
    flag = Flag(14)
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(3),
            max_new_tokens=30,
            do_sample=False,
            assistant_model=tiny.near_copy(target),
            stopping_criteria=StoppingCriteriaList([flag]),
        )
    assert flag.pressed
    assert out.shape[1] <= 15


class LaterEnd(EosTokenCriteria):
    """A subclass decides otherwise: end tokens count from the twentieth token on."""

    def __call__(self, input_ids, scores, **kwargs):
        return super().__call__(input_ids, scores) & (input_ids.shape[1] >= 20)


def test_a_subclass_of_a_host_criterion_is_asked_itself():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    arguments = {
        "max_new_tokens": 30,
        "do_sample": False,
        "eos_token_id": None,
        "stopping_criteria": StoppingCriteriaList([LaterEnd(list(range(3, 40)))]),
    }
    plain = target.generate(**inputs, **arguments)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=tiny.near_copy(target), **arguments)
    assert 20 <= plain.shape[1] < 39
    assert torch.equal(plain, ours)


def test_a_large_limit_costs_nothing():
    target = tiny.make_model()
    inputs = tiny.prompts(2)
    arguments = {
        "max_new_tokens": 10**9,
        "do_sample": False,
        "eos_token_id": list(range(3, 20)),
        "repetition_penalty": 1.1,
    }
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=tiny.near_copy(target), **arguments)
    assert torch.equal(ours, target.generate(**inputs, **arguments))


def test_rows_longer_than_the_first_room(monkeypatch):
    monkeypatch.setattr("hf_specverify.decoding.state.INITIAL_ROOM", 3)
    monkeypatch.setattr("hf_specverify.decoding.row_runner.INITIAL_ROOM", 3)
    target = tiny.make_model()
    plain, ours = both(target, tiny.near_copy(target), tiny.prompts(3), max_new_tokens=60)
    assert torch.equal(plain.sequences, ours.sequences)


def test_learned_positions_end_as_in_plain_generation():
    target = tiny.make_model("gpt2", n_positions=16)
    inputs = tiny.prompts(2)
    plain, ours = both(target, tiny.near_copy(target), inputs, max_new_tokens=7)
    assert torch.equal(plain.sequences, ours.sequences)
    with sv.enabled(target), pytest.raises(ValueError, match="16 positions"):
        target.generate(**inputs, max_new_tokens=24, do_sample=False, assistant_model=tiny.near_copy(target))


class StopOn(StoppingCriteria):
    """Stops a row at a token of its own."""

    def __init__(self, tokens):
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.tokens


def test_criteria_by_row_in_a_batch():
    target = tiny.make_model()
    inputs = tiny.prompts(3)
    free = target.generate(**inputs, max_new_tokens=30, do_sample=False)[:, 9:]
    tokens = [int(free[row, 5 + 6 * row]) for row in range(3)]
    with sv.enabled(target):
        ours = target.generate(
            **inputs,
            max_new_tokens=30,
            do_sample=False,
            stopping_criteria=[StopOn(tokens)],
            assistant_model=tiny.near_copy(target),
        )[:, 9:]
    for row in range(3):
        end = free[row].tolist().index(tokens[row]) + 1
        assert ours[row, :end].tolist() == free[row, :end].tolist()
        assert set(ours[row, end:].tolist()) <= {0}


def test_prompt_of_one_token():
    target = tiny.make_model()
    inputs = {"input_ids": torch.tensor([[5], [9]])}
    plain, ours = both(target, tiny.near_copy(target), inputs)
    assert torch.equal(plain.sequences, ours.sequences)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_prefill_in_chunks(chunk):
    target = tiny.make_model("gemma3_text")
    plain, ours = both(target, tiny.near_copy(target), tiny.prompts(3), prefill_chunk_size=chunk)
    assert torch.equal(plain.sequences, ours.sequences)


def test_num_return_sequences_and_max_length():
    target = tiny.make_model()
    inputs = tiny.prompts(2)
    arguments = {"do_sample": True, "top_k": 1, "num_return_sequences": 3, "max_length": 25, "max_new_tokens": None}
    plain, ours = both(target, tiny.near_copy(target), inputs, **arguments)
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.sequences.shape == (6, 25)


@pytest.mark.parametrize("padding", [8, -8])
@pytest.mark.parametrize("sampling", [False, True])
def test_padded_heads_of_one_tokenizer(padding, sampling):
    target = tiny.make_model()
    draft = tiny.make_model(vocabulary=64 + padding)
    inputs = tiny.prompts(3)
    arguments = {"max_new_tokens": LENGTH, "do_sample": sampling} | ({"top_k": 1} if sampling else {})
    plain = target.generate(**inputs, **arguments)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=draft, **arguments)
    assert torch.equal(plain, ours)
    assert int(ours.max()) < 64


def test_the_draft_may_be_of_another_family():
    target = tiny.make_model("gpt2")
    plain, ours = both(target, tiny.make_model("qwen2"), tiny.prompts(3))
    assert torch.equal(plain.sequences, ours.sequences)
