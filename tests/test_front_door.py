"""enable and disable, the strategy object, and what is refused."""

import copy
import pickle
from pathlib import Path

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer, word_tokenizer
from transformers import T5Config, T5ForConditionalGeneration, pipeline

import hf_specverify as sv
from hf_specverify import capabilities


def test_enable_and_disable_leave_no_trace():
    target = tiny.make_model()
    before = set(vars(target))
    sv.enable(target)
    sv.enable(target)
    assert "generate" in vars(target)
    sv.disable(target)
    sv.disable(target)
    assert set(vars(target)) == before
    with sv.enabled(target) as same:
        assert same is target
        with sv.enabled(target):
            pass
        assert "generate" in vars(target), "the inner block must not switch off the outer one"
    assert set(vars(target)) == before


def test_without_an_assistant_generate_is_the_hosts():
    target = tiny.make_model()
    inputs = tiny.prompts(2)
    arguments = [
        {"max_new_tokens": 9, "do_sample": False, "num_beams": 2},
        {"max_new_tokens": 9, "do_sample": True, "top_k": 5},
        {
            "max_new_tokens": 9,
            "prompt_lookup_num_tokens": 3,
            "input_ids": inputs["input_ids"][:1],
            "attention_mask": None,
        },
    ]
    for extra in arguments:
        call = {**inputs, **extra}
        torch.manual_seed(0)
        plain = target.generate(**call)
        torch.manual_seed(0)
        with sv.enabled(target):
            assert torch.equal(plain, target.generate(**call))
    with sv.enabled(target):
        positional = target.generate(inputs["input_ids"], max_new_tokens=3)
    assert torch.equal(positional, target.generate(inputs["input_ids"], max_new_tokens=3))


def test_a_generate_of_the_objects_own_comes_back():
    target = tiny.make_model()
    target.generate = lambda *args, **kwargs: "own"
    with sv.enabled(target):
        assert target.generate(max_new_tokens=3) == "own"
    assert target.generate() == "own"


def test_a_copy_generates_with_its_own_weights():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    sv.enable(target)
    twin = copy.deepcopy(target)
    for parameter in twin.parameters():
        parameter.mul_(0)
    twin_out = twin.generate(**inputs, max_new_tokens=8, do_sample=False, assistant_model=tiny.near_copy(target))
    assert twin_out[0, 9:].tolist() == [0] * 8


def test_an_enabled_model_can_be_saved(tmp_path):
    target = tiny.make_model()
    sv.enable(target)
    target.save_pretrained(tmp_path)
    again = type(target).from_pretrained(tmp_path)
    assert "generate" not in vars(again)
    assert torch.equal(
        again.generate(**tiny.prompts(1), max_new_tokens=5), target.generate(**tiny.prompts(1), max_new_tokens=5)
    )


def test_the_official_hook():
    target = tiny.make_model()
    inputs = tiny.prompts(3)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    strategy = sv.SpeculativeDecoding(tiny.near_copy(target), num_draft_tokens=3)
    for _ in range(2):
        assert torch.equal(
            plain, target.generate(**inputs, max_new_tokens=20, do_sample=False, custom_generate=strategy)
        )


@pytest.mark.parametrize("batch_size", [1, 3])
def test_pipeline(batch_size):
    target, tokenizer = tiny.make_model(), word_tokenizer()
    texts = ["w1 w2 w3", "w5", "w9 w8 w7 w6 w5"]
    arguments = {"max_new_tokens": 12, "do_sample": False, "batch_size": batch_size}
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)(texts, **arguments)
    with sv.enabled(target):
        pipe = pipeline("text-generation", model=target, tokenizer=tokenizer, assistant_model=tiny.near_copy(target))
        assert pipe(texts, **arguments) == plain


def test_stop_strings():
    target, tokenizer = tiny.make_model(vocabulary=259), byte_tokenizer()
    draft = tiny.near_copy(target)
    # Letters only: other bytes alone are no text.
    others = [index for token, index in tokenizer.get_vocab().items() if not (token.isascii() and token.isalnum())]
    for batch in (1, 3):
        inputs = tiny.prompts(batch, vocabulary=259)
        limits = {"max_new_tokens": 30, "do_sample": False, "suppress_tokens": others}
        free = target.generate(**inputs, **limits)[:, 9:]
        strings = [tokenizer.decode(free[row, 6 + 2 * row : 8 + 2 * row]) for row in range(batch)]
        arguments = {**limits, "stop_strings": strings, "tokenizer": tokenizer}
        plain = target.generate(**inputs, **arguments)
        with sv.enabled(target):
            ours = target.generate(**inputs, assistant_model=draft, **arguments)
        assert plain.shape[1] < 39
        assert torch.equal(plain, ours)
    with sv.enabled(target), pytest.raises(ValueError, match=r"stop_strings.*tokenizer"):
        target.generate(**inputs, assistant_model=draft, stop_strings=["w1"])


REFUSED = {
    "beam search": {"num_beams": 2},
    "constraints": {"constraints": [object()]},
    "force_words_ids": {"force_words_ids": [[5]]},
    "position_ids": {"position_ids": torch.arange(9).expand(2, 9) + 3},
    "left padding": {"attention_mask": torch.tensor([[1] * 8 + [0], [1] * 9])},
    "DoLa": {"dola_layers": "low"},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "use_cache=False": {"use_cache": False},
    "cache_implementation": {"cache_implementation": "static"},
    "streamer": {"streamer": object()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_come_up_front_with_a_reason(name):
    target = tiny.make_model()
    call = {**tiny.prompts(2), **REFUSED[name]}
    with sv.enabled(target), pytest.raises(ValueError, match=rf"(?s)does not support.*{name}"):
        target.generate(**call, assistant_model=tiny.near_copy(target), max_new_tokens=5)


def test_other_inputs_are_refused():
    target = tiny.make_model()
    draft = tiny.near_copy(target)
    embeds = target.get_input_embeddings()(tiny.prompts(1)["input_ids"])
    with sv.enabled(target):
        with pytest.raises(ValueError, match="inputs_embeds"):
            target.generate(inputs_embeds=embeds, assistant_model=draft, max_new_tokens=5)
        gpt2 = tiny.make_model("gpt2")
        with sv.enabled(gpt2), pytest.raises(ValueError, match="token_type_ids"):
            ids = tiny.prompts(1)["input_ids"]
            gpt2.generate(ids, token_type_ids=torch.ones_like(ids), assistant_model=draft, max_new_tokens=5)


def test_encoder_decoder_models_are_refused():
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    target = T5ForConditionalGeneration(config).eval()
    with sv.enabled(target), pytest.raises(ValueError, match="encoder-decoder"):
        target.generate(torch.tensor([[3, 4]]), assistant_model=tiny.make_model(vocabulary=32), max_new_tokens=4)


def test_a_cache_of_the_users_is_refused_and_untouched():
    target = tiny.make_model()
    inputs = tiny.prompts(1)
    out = target.generate(**inputs, max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    length = out.cache.get_seq_length()
    with sv.enabled(target), pytest.raises(ValueError, match="cache"):
        target.generate(out.sequences, cache=out.cache, assistant_model=tiny.near_copy(target), max_new_tokens=4)
    assert out.cache.get_seq_length() == length


BAD_OPTIONS = [
    ({"verification": "magic"}, ValueError, r"verification='magic'.*token"),
    ({"num_draft_tokens": 0}, ValueError, "num_draft_tokens=0.*from 1"),
    ({"num_draft_tokens": 2.5}, TypeError, "num_draft_tokens=2.5.*integers"),
    ({"num_draft_tokens": True}, TypeError, "num_draft_tokens=True"),
    ({"num_draft_paths": 3}, ValueError, "num_draft_paths=3.*1"),
    ({"verify_length": "some"}, ValueError, "verify_length='some'.*fixed"),
    ({"draft_temperature": -1.0}, ValueError, r"draft_temperature=-1.0.*from 0"),
    ({"draft_temperature": float("nan")}, ValueError, "draft_temperature=nan"),
    ({"draft_temperature": "hot"}, TypeError, "draft_temperature='hot'"),
    ({"require_lossless": "yes"}, TypeError, "require_lossless='yes'"),
    ({"generator": 3}, TypeError, "generator=3"),
    ({"companion_model": 3}, TypeError, "companion_model=3"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_options_are_validated(options, error, message):
    target = tiny.make_model()
    with sv.enabled(target), pytest.raises(error, match=message):
        target.generate(**tiny.prompts(1), assistant_model=tiny.near_copy(target), max_new_tokens=4, **options)


def test_unknown_and_contradictory_arguments():
    target, draft, inputs = tiny.make_model(), tiny.make_model(seed=1), tiny.prompts(1)
    with sv.enabled(target):
        with pytest.raises(ValueError, match=r"not used by the model.*num_draft_token"):
            target.generate(**inputs, assistant_model=draft, num_draft_token=3)
        with pytest.raises(ValueError, match=r"num_draft_tokens.*need assistant_model"):
            target.generate(**inputs, num_draft_tokens=3)
        with pytest.raises(ValueError, match="custom_generate and assistant_model"):
            target.generate(**inputs, assistant_model=draft, custom_generate=lambda *a, **k: None)
        with pytest.raises(TypeError, match="assistant_model=3"):
            target.generate(**inputs, assistant_model=3)
    with pytest.raises(TypeError, match=r"unknown options.*speed.*verification"):
        sv.SpeculativeDecoding(draft, speed=9)
    with pytest.raises(TypeError, match="generate method"):
        sv.enable(torch.nn.Linear(2, 2))


def test_different_tokenizers_are_refused_by_name(tmp_path):
    target, draft, inputs = tiny.make_model(), tiny.make_model(seed=1), tiny.prompts(1)
    folders = []
    for model, shift in ((target, 0), (draft, 5)):
        folder = tmp_path / f"shift{shift}"
        model.save_pretrained(folder)
        word_tokenizer(shift=shift).save_pretrained(folder)
        folders.append(folder)
    loaded = [type(target).from_pretrained(folder) for folder in folders]
    with sv.enabled(loaded[0]), pytest.raises(ValueError, match=r"(?s)shift0.*shift5.*different tokenizers"):
        loaded[0].generate(**inputs, assistant_model=loaded[1], max_new_tokens=4)
    with sv.enabled(target):
        with pytest.raises(ValueError, match="different tokenizers"):
            target.generate(
                **inputs,
                assistant_model=draft,
                max_new_tokens=4,
                tokenizer=word_tokenizer(),
                assistant_tokenizer=word_tokenizer(shift=5),
            )
        with pytest.raises(ValueError, match="vocabularies of 64 and 2000"):
            target.generate(**inputs, assistant_model=tiny.make_model(vocabulary=2000), max_new_tokens=4)


def test_a_companion_is_validated():
    target, inputs = tiny.make_model(), tiny.prompts(1)
    draft = tiny.near_copy(target)
    with sv.enabled(target):
        with pytest.raises(ValueError, match=r"companion_model.*2000"):
            target.generate(**inputs, assistant_model=draft, companion_model=tiny.make_model(vocabulary=2000))
        with torch.device("meta"):
            ghost = type(draft)(draft.config)
        with pytest.raises(ValueError, match=r"companion_model.*meta"):
            target.generate(**inputs, assistant_model=draft, companion_model=ghost)
        with pytest.raises(ValueError, match=r"assistant_model.*meta"):
            target.generate(**inputs, assistant_model=ghost)
        plain = target.generate(**inputs, max_new_tokens=9, do_sample=False)
        ours = target.generate(
            **inputs, max_new_tokens=9, do_sample=False, assistant_model=draft, companion_model=draft
        )
        assert torch.equal(plain, ours)


def test_the_table_in_the_docs_is_the_codes():
    docs = Path(__file__).parent.parent / "docs" / "capabilities.md"
    assert docs.read_text(encoding="utf-8") == capabilities.markdown()


def test_a_mask_with_holes_is_refused():
    target = tiny.make_model()
    inputs = tiny.prompts(1) | {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1, 1]])}
    with sv.enabled(target), pytest.raises(ValueError, match="left padding"):
        target.generate(**inputs, assistant_model=tiny.near_copy(target), max_new_tokens=4)


@pytest.mark.parametrize(
    "arguments",
    [{"num_assistant_tokens": 2}, {"max_matching_ngram_size": 3}, {"assistant_confidence_threshold": 0.5}],
)
def test_the_hosts_own_draft_options_are_refused(arguments):
    target = tiny.make_model()
    with sv.enabled(target), pytest.raises(ValueError, match=f"{next(iter(arguments))}.*num_draft_tokens"):
        target.generate(**tiny.prompts(1), assistant_model=tiny.near_copy(target), max_new_tokens=4, **arguments)


def test_arguments_that_would_be_lost_are_refused():
    target, inputs = tiny.make_model(), tiny.prompts(1)
    draft = tiny.near_copy(target)
    with sv.enabled(target):
        with pytest.raises(ValueError, match="synced_gpus=True"):
            target.generate(**inputs, assistant_model=draft, synced_gpus=True)
        with pytest.raises(ValueError, match="streamer does not reach custom_generate"):
            target.generate(**inputs, custom_generate=sv.SpeculativeDecoding(draft), streamer=object())


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_scaling_that_depends_on_the_length(kind):
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 20, **factors}
    target = tiny.make_model(rope_parameters=rope, max_position_embeddings=80)
    draft, inputs = tiny.near_copy(target), tiny.prompts(2)
    with sv.enabled(target):
        with pytest.raises(ValueError, match=r"dynamic.*longrope.*original"):
            target.generate(**inputs, assistant_model=draft, max_new_tokens=24)
        ours = target.generate(**inputs, assistant_model=draft, max_new_tokens=10, do_sample=False)
    assert torch.equal(ours, target.generate(**inputs, max_new_tokens=10, do_sample=False))


def test_an_enabled_model_can_be_pickled():
    target = tiny.make_model()
    sv.enable(target)
    twin = pickle.loads(pickle.dumps(target))
    inputs = tiny.prompts(1)
    ours = twin.generate(**inputs, assistant_model=tiny.near_copy(target), max_new_tokens=5, do_sample=False)
    assert torch.equal(ours, target.generate(**inputs, max_new_tokens=5, do_sample=False))


def test_a_name_that_is_no_repository_is_no_obstacle():
    target = tiny.make_model()
    draft = tiny.near_copy(target)
    target.config._name_or_path = draft.config._name_or_path = "my model, version 2"
    with sv.enabled(target):
        assert target.generate(**tiny.prompts(1), assistant_model=draft, max_new_tokens=5).shape == (1, 14)


def test_an_enabled_model_leaves_a_repository_s_generation_to_the_host(tmp_path):
    """`custom_generate="user/repo"` may be a calibration of ours, which takes the assistant itself."""
    folder = tmp_path / "custom_generate"
    folder.mkdir()
    code = "def generate(model, assistant_model=None, **kwargs):\n    return assistant_model\n"
    (folder / "generate.py").write_text(code)
    target, draft = tiny.make_model(), tiny.make_model(seed=1)
    with sv.enabled(target):
        given = target.generate(
            **tiny.prompts(1), custom_generate=str(tmp_path), trust_remote_code=True, assistant_model=draft
        )
    assert given is draft
