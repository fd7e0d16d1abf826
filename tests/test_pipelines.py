"""`pipeline("text-generation", …)`: drafts and companions, as objects and by name; the lines of docs/pipelines.md."""

import re
import runpy
import sys
import threading
from pathlib import Path

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TextIteratorStreamer, pipeline

import hf_specverify as sv
from hf_specverify import named_models

ROOT = Path(__file__).parents[1]
TEXTS = ["one two three", "x", "a longer text of words"]
GREEDY = {"max_new_tokens": 12, "do_sample": False}
CHATS = [[{"role": "user", "content": text}] for text in TEXTS[:2]]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer_with_chats():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.padding_side = "left"
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of a target, a draft, a companion, a quantised draft, and a draft with a padded head."""
    place = tmp_path_factory.mktemp("models")
    target = tiny.make_model(vocabulary=288, hidden_size=64, intermediate_size=64)
    models = {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=5)}
    target.generation_config.max_new_tokens = 10  # in place of a pipeline's 256
    models["padded"] = tiny.make_model(vocabulary=320, hidden_size=64, intermediate_size=64)
    for name, model in models.items():
        model.save_pretrained(place / name)
    if BITSANDBYTES:
        quantised(place / "draft").save_pretrained(place / "nf4")
    for name in (*models, "nf4"):
        tokenizer_with_chats().save_pretrained(place / name)
    return place


try:
    import bitsandbytes  # noqa: F401

    BITSANDBYTES = True
except ImportError:
    BITSANDBYTES = False
needs_bitsandbytes = pytest.mark.skipif(not BITSANDBYTES, reason="bitsandbytes is not installed")


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def quantised(folder):
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=nf4, device_map="cpu")


@pytest.fixture(scope="module")
def target(folder):
    model = load(folder / "target")
    sv.enable(model)
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_with_chats()


@pytest.fixture(scope="module")
def plain(target, tokenizer):
    return pipeline("text-generation", model=target, tokenizer=tokenizer)(TEXTS, batch_size=3, **GREEDY)


@pytest.fixture
def calls(monkeypatch):
    """The strategies that were called: that texts agree does not say that there was a draft."""
    seen = []
    call = sv.SpeculativeDecoding.__call__

    def watched(self, *arguments, **options):
        seen.append(self)
        return call(self, *arguments, **options)

    monkeypatch.setattr(sv.SpeculativeDecoding, "__call__", watched)
    return seen


WAYS = {
    "objects": ("object", "object"),
    "names": ("name", "name"),
    "a draft by name": ("name", "object"),
    "a companion by name": ("object", "name"),
    "no companion": ("name", None),
}


@pytest.mark.parametrize("place", ["constructor", "call"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_drafts_and_companions(folder, target, tokenizer, plain, calls, batch_size, way, place):
    forms = {"object": load, "name": str, None: lambda folder: None}
    draft, companion = WAYS[way]
    given = {
        "assistant_model": forms[draft](folder / "draft"),
        "companion_model": forms[companion](folder / "companion"),
        "num_draft_tokens": 3,
    }
    first, then = (given, {}) if place == "constructor" else ({}, given)
    pipe = pipeline("text-generation", model=target, tokenizer=tokenizer, **first)
    assert pipe(TEXTS, batch_size=batch_size, **GREEDY, **then) == plain
    assert len(calls) == -(-3 // batch_size)
    assert all(strategy.config.num_draft_tokens == 3 for strategy in calls)
    assert all((strategy.companion_model is None) == (companion is None) for strategy in calls)


@needs_bitsandbytes
def test_a_quantised_draft(folder, target, tokenizer, plain, calls):
    ours = {"model": target, "tokenizer": tokenizer}
    nf4 = quantised(folder / "draft")
    for pipe in (
        pipeline("text-generation", **ours, assistant_model=nf4),
        pipeline(
            "text-generation", **ours, companion_model=str(folder / "nf4"), assistant_model=load(folder / "draft")
        ),
    ):
        assert pipe(TEXTS, batch_size=3, **GREEDY) == plain
    named = pipeline("text-generation", **ours)(TEXTS, batch_size=3, assistant_model=str(folder / "nf4"), **GREEDY)
    assert named == plain
    assert calls[-1].drafter.model.is_loaded_in_4bit
    assert calls[1].companion_model.is_loaded_in_4bit
    with pytest.raises(ValueError, match="cast a bitsandbytes model"):  # the host; docs/pipelines.md says what to do
        pipeline("text-generation", **ours, assistant_model=str(folder / "nf4"))


@pytest.mark.parametrize("place", ["constructor", "call"])
def test_drafters_that_are_no_models(target, tokenizer, plain, calls, place):
    given = {"assistant_model": sv.PromptLookup(3)}
    first, then = (given, {}) if place == "constructor" else ({}, given)
    pipe = pipeline("text-generation", model=target, tokenizer=tokenizer, **first)
    assert pipe(TEXTS, batch_size=2, **GREEDY, **then) == plain
    assert {strategy.drafter for strategy in calls} == {given["assistant_model"]}


def test_a_draft_with_a_padded_head(folder, target, tokenizer, plain):
    padded, ours = load(folder / "padded"), {"model": target, "tokenizer": tokenizer}
    with pytest.raises(ValueError, match="different tokenizer"):
        pipeline("text-generation", **ours, assistant_model=padded)
    for given in (
        {"assistant_model": padded, "assistant_tokenizer": tokenizer},
        {"assistant_model": sv.DraftModel(padded)},
        {"assistant_model": str(folder / "padded")},
    ):
        assert pipeline("text-generation", **ours, **given)(TEXTS, batch_size=3, **GREEDY) == plain


def test_chats(folder, target, tokenizer, calls):
    ours = {"model": target, "tokenizer": tokenizer}
    expected = pipeline("text-generation", **ours)(CHATS, batch_size=2, **GREEDY)
    pipe = pipeline("text-generation", **ours, assistant_model=load(folder / "draft"))
    assert pipe(CHATS, batch_size=2, **GREEDY) == expected
    assert pipe(CHATS[0], **GREEDY)[0]["generated_text"][-1]["role"] == "assistant"
    assert len(calls) == 2


def test_a_streamer_takes_one_row(folder, target, tokenizer):
    pipe = pipeline("text-generation", model=target, tokenizer=tokenizer, assistant_model=load(folder / "draft"))
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(pipe(TEXTS[0], streamer=streamer, return_full_text=False, **GREEDY))
    )
    thread.start()
    streamed = "".join(streamer)
    thread.join()
    assert streamed.removesuffix("<eos>") == found[0]["generated_text"] != ""
    with pytest.raises(ValueError, match="`streamer` with several rows"):
        pipe(TEXTS, batch_size=2, streamer=TextIteratorStreamer(tokenizer), **GREEDY)


def test_several_answers_and_stop_sequences(folder, target, tokenizer, plain):
    ours = {"model": target, "tokenizer": tokenizer}
    pipe = pipeline("text-generation", **ours, assistant_model=str(folder / "draft"))
    several = pipe(TEXTS, batch_size=2, num_return_sequences=2, do_sample=True, max_new_tokens=5)
    assert [len(answers) for answers in several] == [2, 2, 2]
    letters = [index for token, index in tokenizer.get_vocab().items() if token.isascii() and token.isalnum()]
    only = {**GREEDY, "suppress_tokens": [index for index in range(288) if index not in letters]}
    text = pipe(TEXTS[0], return_full_text=False, **only)[0]["generated_text"]
    stopped = pipe(TEXTS[0], return_full_text=False, stop_sequence=text[4:6], **only)[0]["generated_text"]
    assert stopped == text[: text.index(text[4:6]) + 2]
    assert len(stopped) < len(text)


def test_without_enable(folder, tokenizer, plain):
    target, draft = load(folder / "target"), load(folder / "draft")
    ours = {"model": target, "tokenizer": tokenizer}
    strategy = sv.SpeculativeDecoding(draft, load(folder / "companion"))
    assert pipeline("text-generation", **ours)(TEXTS, batch_size=3, custom_generate=strategy, **GREEDY) == plain
    with pytest.raises(ValueError, match=r"not used by the model: \['companion_model'\]"):
        pipeline("text-generation", **ours, assistant_model=draft, companion_model=draft)(TEXTS[0], **GREEDY)


def test_a_name_is_loaded_once_for_a_target(folder, target, monkeypatch):
    monkeypatch.setattr(named_models, "_LOADED", type(named_models._LOADED)())
    found = [None] * 8

    def ask(place):
        found[place] = named_models.named_model(str(folder / "draft"), "assistant_model", target)

    threads = [threading.Thread(target=ask, args=[place]) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(model is found[0] for model in found)
    assert (found[0].dtype, found[0].device, found[0].training) == (target.dtype, target.device, False)
    other = load(folder / "target").to(torch.bfloat16)
    assert named_models.named_model(folder / "draft", "assistant_model", other).dtype == torch.bfloat16
    del other
    assert len(named_models._LOADED) == 1


@pytest.mark.parametrize("argument", ["assistant_model", "companion_model"])
def test_a_name_of_nothing_is_refused_with_its_argument(folder, target, tmp_path, argument):
    given = {"assistant_model": str(folder / "draft"), argument: str(tmp_path / "absent")}
    with pytest.raises(OSError, match=f"{argument}='{tmp_path / 'absent'}'"):
        target.generate(**tiny.prompts(1), **given)
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ValueError, match=rf"(?s){argument}='.*no-such-model"):
        target.generate(**tiny.prompts(1), **given)


@needs_bitsandbytes
def test_the_documented_lines(folder, calls):
    document = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    places = {"TARGET": "target", "DRAFT": "draft", "COMPANION": "companion", "QUANTISED": "nf4"}
    namespace, runs = {}, 0
    for code in re.findall(r"```python\n(.*?)```", document, re.DOTALL):
        for name, directory in places.items():
            code = code.replace(f'"{name}"', repr(str(folder / directory)))
        runs += len(re.findall(r"^pipe\(", code, re.MULTILINE))
        exec(code, namespace)
    assert len(calls) == runs == 8


def test_the_lines_of_the_readme(folder, calls, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    code = "\n".join(blocks).replace("Qwen/Qwen2.5-1.5B-Instruct", str(folder / "target"))
    exec(code.replace("Qwen/Qwen2.5-0.5B-Instruct", str(folder / "draft")), {})
    assert len(calls) == 2
    assert "acceptance" in capsys.readouterr().out


def test_the_example(folder, monkeypatch, capsys, calls):
    names = [str(folder / name) for name in ("target", "draft", "companion")]
    monkeypatch.setattr(sys, "argv", ["pipeline.py", *names])
    runpy.run_path(str(ROOT / "examples" / "pipeline.py"), run_name="__main__")
    assert len(calls) == 2
    assert capsys.readouterr().out.strip()


@pytest.mark.real_model
def test_a_real_model_answers_as_before(smollm2, calls):
    tokenizer = AutoTokenizer.from_pretrained(smollm2, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    chats = [[{"role": "user", "content": text}] for text in ("Name three uses of copper.", "Say hello.")]
    arguments = {"batch_size": 2, "max_new_tokens": 12, "do_sample": False}
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)(chats, **arguments)
    with sv.enabled(target):
        draft = sv.cut_layers(target, 24)
        pipe = pipeline("text-generation", model=target, tokenizer=tokenizer, assistant_model=draft)
        assert pipe(chats, **arguments) == plain
    assert len(calls) == 1
