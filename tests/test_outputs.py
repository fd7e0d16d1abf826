"""Everything else that generate returns: scores, logits, states, types, streams, seeds."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
import torch
from transformers import BitsAndBytesConfig, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

import hf_specverify as sv

EVERYTHING = {
    "max_new_tokens": 20,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
    "output_attentions": True,
}


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "gpt_neo"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("chunk", [None, 4])
def test_scores_and_states_of_committed_tokens(family, batch, chunk):
    target = tiny.make_model(family, attention="eager")
    inputs = tiny.prompts(batch)
    arguments = {**EVERYTHING, "repetition_penalty": 1.3}
    plain = target.generate(**inputs, **arguments)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=tiny.near_copy(target), prefill_chunk_size=chunk, **arguments)
    assert torch.equal(plain.sequences, ours.sequences)
    assert len(ours.scores) == len(ours.logits) == len(ours.hidden_states) == len(ours.attentions) == len(plain.scores)
    answered = plain.sequences[:, 9:]
    ends = [row.index(1) if 1 in row else len(row) - 1 for row in answered.tolist()]
    for row, end in enumerate(ends):
        padding = int((inputs["attention_mask"][row] == 0).sum())
        for token in range(end + 1):
            close(plain.scores[token][row], ours.scores[token][row])
            close(plain.logits[token][row], ours.logits[token][row])
            for layer in range(len(plain.hidden_states[0])):
                start = padding if token == 0 else 0
                close(plain.hidden_states[token][layer][row, start:], ours.hidden_states[token][layer][row, start:])
            for layer in range(len(plain.attentions[0])):
                theirs, mine = plain.attentions[token][layer][row], ours.attentions[token][layer][row]
                start = padding if token == 0 else 0
                width = theirs.shape[-1]
                assert mine.shape[-1] == width
                close(theirs[:, start:, padding:], mine[:, start:, padding:])


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.parametrize("family", ["llama", "bloom", "gpt_neo"])
def test_states_of_a_prompt_of_one_token(family):
    target = tiny.make_model(family, attention="eager")
    inputs = {"input_ids": torch.tensor([[7], [9]])}
    plain = target.generate(**inputs, **EVERYTHING)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=tiny.near_copy(target), **EVERYTHING)
    for token in range(3):
        for theirs, mine in zip(plain.hidden_states[token], ours.hidden_states[token], strict=True):
            close(theirs, mine)


def close(theirs, mine):
    assert theirs.shape == mine.shape
    finite = torch.isfinite(theirs)
    assert torch.equal(finite, torch.isfinite(mine))
    assert torch.allclose(theirs[finite], mine[finite], atol=2e-5, rtol=1e-4)


def test_transition_scores_are_equal():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    arguments = {
        key: EVERYTHING[key] for key in ("max_new_tokens", "do_sample", "return_dict_in_generate", "output_scores")
    }
    plain = target.generate(**inputs, **arguments)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=tiny.near_copy(target), **arguments)
    scores = [
        target.compute_transition_scores(out.sequences, out.scores, normalize_logits=True) for out in (plain, ours)
    ]
    assert torch.allclose(*scores, atol=1e-5)


def test_output_types():
    target = tiny.make_model()
    inputs = tiny.prompts(2)
    with sv.enabled(target):
        plain = target.generate(**inputs, assistant_model=target, max_new_tokens=5)
        rich = target.generate(**inputs, assistant_model=target, max_new_tokens=5, return_dict_in_generate=True)
    assert isinstance(plain, torch.Tensor)
    assert isinstance(rich, GenerateDecoderOnlyOutput)
    assert isinstance(rich.speculation, sv.SpeculationReport)
    assert rich.scores is None
    assert torch.equal(rich[0], rich["sequences"])


@pytest.mark.parametrize("batch", [1, 3])
def test_the_report_counts_the_output(batch):
    target = tiny.make_model()
    inputs = tiny.prompts(batch)
    with sv.enabled(target):
        out = target.generate(
            **inputs,
            assistant_model=tiny.near_copy(target),
            max_new_tokens=30,
            eos_token_id=[1, 40, 41, 42],
            num_draft_tokens=3,
            return_dict_in_generate=True,
        )
    report = out.speculation
    answers = out.sequences[:, 9:]
    lengths = [next((i + 1 for i, t in enumerate(row) if t in (1, 40, 41, 42)), len(row)) for row in answers.tolist()]
    assert report.committed == sum(lengths)
    assert report.verification == "token"
    assert report.lossless
    assert max(report.draft_lengths) == 3
    assert sum(report.seconds.values()) >= report.steps[-1].elapsed
    assert report.target_passes == len(report.steps)


class Collector(BaseStreamer):
    def __init__(self):
        self.pieces, self.ended = [], 0

    def put(self, value):
        self.pieces.append(value.tolist())

    def end(self):
        self.ended += 1


def test_the_streamer_sees_what_plain_shows_it():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    free = target.generate(**inputs, max_new_tokens=30, do_sample=False)[0, 9:].tolist()
    pieces = []
    for draft in (None, tiny.near_copy(target)):
        streamer = Collector()
        with sv.enabled(target):
            target.generate(
                **inputs,
                max_new_tokens=30,
                do_sample=False,
                eos_token_id=free[11],
                streamer=streamer,
                assistant_model=draft,
            )
        assert streamer.ended == 1
        pieces.append(streamer.pieces)
    assert pieces[0] == pieces[1]


def test_the_strategy_object_holds_a_streamer_of_its_own():
    target = tiny.make_model()
    streamer = Collector()
    strategy = sv.SpeculativeDecoding(tiny.near_copy(target), streamer=streamer)
    out = target.generate(**tiny.prompts(1), max_new_tokens=9, do_sample=False, custom_generate=strategy)
    assert [token for piece in streamer.pieces[1:] for token in piece] == out[0, 9:].tolist()


def test_the_same_seed_gives_the_same_output():
    target = tiny.make_model()
    draft = tiny.near_copy(target)
    inputs = tiny.prompts(3)

    def sample(**arguments):
        return target.generate(**inputs, assistant_model=draft, do_sample=True, max_new_tokens=30, **arguments).tolist()

    with sv.enabled(target):
        seeded = [sample(generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
        outputs = []
        for seed in (7, 7, 8):
            torch.manual_seed(seed)
            outputs.append(sample())
    assert seeded[0] == seeded[1] != seeded[2]
    assert outputs[0] == outputs[1] != outputs[2]


def test_a_generator_leaves_the_global_one_alone():
    target = tiny.make_model()
    draft = tiny.make_model(seed=3)
    before = torch.random.get_rng_state()
    with sv.enabled(target):
        target.generate(
            **tiny.prompts(2),
            assistant_model=draft,
            do_sample=True,
            max_new_tokens=9,
            generator=torch.Generator().manual_seed(1),
        )
    assert torch.equal(before, torch.random.get_rng_state())


def test_nothing_of_the_users_is_changed():
    target = tiny.make_model()
    draft = tiny.near_copy(target)
    inputs = tiny.prompts(2)
    kept = {name: value.clone() for name, value in inputs.items()}
    configs = [
        target.config.to_dict(),
        draft.config.to_dict(),
        target.generation_config.to_dict(),
        draft.generation_config.to_dict(),
    ]
    attributes = [set(vars(target)), set(vars(draft))]
    with sv.enabled(target):
        target.generate(**inputs, assistant_model=draft, max_new_tokens=9, do_sample=True)
    assert configs == [
        target.config.to_dict(),
        draft.config.to_dict(),
        target.generation_config.to_dict(),
        draft.generation_config.to_dict(),
    ]
    assert attributes == [set(vars(target)), set(vars(draft))]
    assert all(torch.equal(kept[name], inputs[name]) for name in kept)


class Words:
    """The few methods of a tokenizer that stop strings and text streamers use, over one word per id."""

    def __init__(self, size):
        self.words = [f"w{index}." for index in range(size)]

    def get_vocab(self):
        return {word: index for index, word in enumerate(self.words)}

    def decode(self, ids, **kwargs):
        return "".join(self.words[int(index)] for index in torch.as_tensor(ids).flatten())

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)

    def __call__(self, text, **kwargs):
        return {"input_ids": [self.words.index(text)]}


def test_a_text_stream_is_the_output():
    target = tiny.make_model()
    streamer = TextIteratorStreamer(Words(64), skip_prompt=True)
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(1),
            max_new_tokens=20,
            do_sample=False,
            streamer=streamer,
            assistant_model=tiny.near_copy(target),
        )
    assert "".join(streamer) == Words(64).decode(out[0, 9:])


def test_the_maximum_time_ends_a_call():
    target = tiny.make_model()
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(2),
            assistant_model=target,
            num_draft_tokens=3,
            max_new_tokens=30,
            max_time=0.0,
            do_sample=False,
            return_dict_in_generate=True,
        )
    assert [step.committed for step in out.speculation.steps] == [(4, 4)]


def test_calls_in_threads_do_not_see_each_other():
    target = tiny.make_model()
    strategy = sv.SpeculativeDecoding(tiny.near_copy(target), num_draft_tokens=3)
    batches = [tiny.prompts(batch, seed=batch) for batch in (1, 2, 3, 4)]
    plain = [target.generate(**inputs, max_new_tokens=25, do_sample=False) for inputs in batches]
    with ThreadPoolExecutor(4) as pool:
        ours = list(
            pool.map(
                lambda inputs: target.generate(**inputs, max_new_tokens=25, do_sample=False, custom_generate=strategy),
                batches * 3,
            )
        )
    assert all(torch.equal(a, b) for a, b in zip(plain * 3, ours, strict=True))


def test_a_quantised_draft_is_left_as_it_is(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    target = tiny.make_model(hidden_size=64, intermediate_size=64)
    target.save_pretrained(tmp_path)
    draft = type(target).from_pretrained(
        tmp_path,
        device_map="cpu",
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    )
    assert any(isinstance(module, bitsandbytes.nn.Linear4bit) for module in draft.modules())
    inputs = tiny.prompts(3)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    with sv.enabled(target):
        out = target.generate(
            **inputs, max_new_tokens=20, do_sample=False, assistant_model=draft, return_dict_in_generate=True
        )
    assert torch.equal(plain, out.sequences)
    assert out.speculation.accepted > 0


def test_the_first_divergence_and_its_logits():
    target = tiny.make_model()
    inputs = tiny.prompts(2)
    plain = target.generate(**inputs, max_new_tokens=10, do_sample=False)
    other = plain.clone()
    other[0, 9 + 4] = (other[0, 9 + 4] + 1) % 64
    found = sv.first_divergence(target, plain, other, inputs["attention_mask"])
    assert found[1] is None
    assert found[0].position == 4
    assert found[0].tokens == (int(plain[0, 13]), int(other[0, 13]))
    padding = int((inputs["attention_mask"][0] == 0).sum())
    logits = target(input_ids=plain[:1, padding:13]).logits[0, -1]
    assert found[0].logits == pytest.approx([float(logits[token]) for token in found[0].tokens], abs=1e-5)
    assert found[0].gap > 0
    with pytest.raises(ValueError, match="2, 1 and 2 rows"):
        sv.first_divergence(target, plain, other[:1], inputs["attention_mask"])


def test_verification_in_slices_gives_the_same_tokens(monkeypatch):
    """A large vocabulary makes a step verify its rows a few at a time; only memory may change."""
    target, draft, inputs = tiny.make_model(), tiny.make_model(seed=5), tiny.prompts(4)
    arguments = {"max_new_tokens": 20, "do_sample": False, "repetition_penalty": 1.2, "output_scores": True}
    outputs = []
    for elements in (1 << 22, 64 * 6, 1):
        monkeypatch.setattr("hf_specverify.decoding.loop.VERIFY_ELEMENTS", elements)
        with sv.enabled(target):
            outputs.append(target.generate(**inputs, assistant_model=draft, return_dict_in_generate=True, **arguments))
    for out in outputs[1:]:
        assert torch.equal(outputs[0].sequences, out.sequences)
        assert all(torch.equal(a, b) for a, b in zip(outputs[0].scores, out.scores, strict=True))
