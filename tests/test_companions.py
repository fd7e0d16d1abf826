"""Layer cuts, companions in folders, and the command that makes them."""

import functools
import json

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaForCausalLM
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify import companion_checks, companions
from hf_specverify.cli import app
from hf_specverify.companion_distance import measure_distance

LAYERS = 4
FAMILIES = {
    "llama": {"num_hidden_layers": LAYERS},
    "qwen2": {"num_hidden_layers": LAYERS, "tie_word_embeddings": True},
    "gpt2": {"n_layer": LAYERS},
    "gemma3_text": {"num_hidden_layers": LAYERS, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "bloom": {"n_layer": LAYERS, "attention": "eager"},
    "qwen3_next": {"num_hidden_layers": LAYERS, "layer_types": ["linear_attention", "full_attention"] * 2},
}
slower = pytest.mark.filterwarnings("ignore:.*slower layout")


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits


def norm_of(model):
    decoder = model.get_decoder()
    return next(getattr(decoder, name) for name in ("norm", "ln_f") if hasattr(decoder, name))


@slower
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [1, 3, LAYERS])
def test_a_cut_model_is_the_models_own_early_exit(family, n):
    model = tiny.make_model(family, **FAMILIES[family])
    config = model.config.to_dict()
    ids = tiny.prompts(2)["input_ids"]
    before = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    shorter = sv.cut_layers(model, n)
    after = shorter(input_ids=ids, use_cache=False, output_hidden_states=True)
    assert len(after.hidden_states) == n + 1
    hidden = before.hidden_states[n] if n == LAYERS else norm_of(model)(before.hidden_states[n])
    torch.testing.assert_close(after.logits, model.lm_head(hidden))
    # The longer model is what it was, and shares its tensors.
    assert model.config.to_dict() == config
    again = model(input_ids=ids, use_cache=False, output_hidden_states=True)
    assert torch.equal(again.logits, before.logits)
    assert len(again.hidden_states) == LAYERS + 1
    mine = {id(tensor) for tensor in model.parameters()}
    assert all(id(tensor) in mine for tensor in shorter.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_model_is_saved_as_the_smaller_model(family, tmp_path):
    model = tiny.make_model(family, **FAMILIES[family])
    shorter = sv.cut_layers(model, 3)
    shorter.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = tiny.prompts(2)["input_ids"]
    torch.testing.assert_close(logits_of(reloaded, ids), logits_of(shorter, ids))
    written = json.loads((tmp_path / "config.json").read_text())
    assert 3 in (written.get("num_hidden_layers"), written.get("n_layer"))
    assert len(written.get("layer_types") or [0] * 3) == 3


@slower
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_cut_model_drafts(family, trimmed):
    target = tiny.make_model(family, **FAMILIES[family])
    draft = sv.cut_layers(target, 3)
    if trimmed:
        draft = sv.trim_vocabulary(draft, keep=48)
    inputs = tiny.prompts(3)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    with sv.enabled(target):
        ours = target.generate(
            **inputs, max_new_tokens=20, do_sample=False, assistant_model=draft, return_dict_in_generate=True
        )
    assert torch.equal(plain, ours.sequences)
    assert ours.speculation.verified > 0


def test_a_cut_of_an_enabled_target_is_not_enabled():
    target = tiny.make_model()
    sv.enable(target)
    shorter = sv.cut_layers(target, 1)
    assert "generate" not in vars(shorter)
    ids = tiny.prompts(1)["input_ids"]
    expected = logits_of(shorter, ids)[0, -1].argmax()
    assert shorter.generate(ids, max_new_tokens=1, do_sample=False)[0, -1] == expected


@pytest.mark.parametrize("n", [0, 3, True, 1.0])
def test_wrong_numbers_of_layers(n):
    with pytest.raises(ValueError, match="from 1 to 2, the layers of LlamaForCausalLM"):
        sv.cut_layers(tiny.make_model(), n)


def test_models_that_can_not_be_cut():
    with pytest.raises(ValueError, match="cut the model first"):
        sv.cut_layers(sv.trim_vocabulary(tiny.make_model(), keep=9), 1)
    model = tiny.make_model()
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(ValueError, match="no list of 2 layers"):
        sv.cut_layers(model, 1)


@pytest.fixture
def folder(tmp_path):
    model = tiny.make_model(
        vocabulary=288, hidden_size=64, intermediate_size=64, num_hidden_layers=3, initializer_range=0.15
    )
    model.save_pretrained(tmp_path / "draft")
    byte_tokenizer().save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


def in_memory(folder, method, dtype=torch.float32):
    """The same quantised weights, as loading the draft gives them."""
    options = (
        {"load_in_8bit": True}
        if method == "int8"
        else {"load_in_4bit": True, "bnb_4bit_quant_type": method, "bnb_4bit_compute_dtype": dtype}
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=BitsAndBytesConfig(**options), device_map="cpu", dtype=dtype
    )


@pytest.mark.parametrize(("method", "dtype"), [("nf4", "float32"), ("fp4", "float32"), ("int8", "bfloat16")])
def test_a_quantised_companion_is_what_was_quantised(folder, tmp_path, method, dtype):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    report = sv.make_companion(folder, tmp_path / "out", method, dtype=dtype)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    kind = bitsandbytes.nn.Linear8bitLt if method == "int8" else bitsandbytes.nn.Linear4bit
    assert isinstance(reloaded.model.layers[0].mlp.up_proj, kind)
    ids = tiny.prompts(2, vocabulary=259)["input_ids"]
    expected = logits_of(in_memory(folder, method, getattr(torch, dtype)), ids)
    torch.testing.assert_close(logits_of(reloaded, ids).float(), expected.float())
    draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert not torch.allclose(logits_of(draft, ids), expected.float(), atol=1e-4)
    assert report.size < report.draft_size
    assert report.distance is not None
    assert 0 < report.distance.total_variation < 0.5
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("abc")["input_ids"] == byte_tokenizer()("abc")["input_ids"]
    with sv.enabled(draft):
        plain = draft.generate(**tiny.prompts(2), max_new_tokens=12, do_sample=False)
        ours = draft.generate(**tiny.prompts(2), max_new_tokens=12, do_sample=False, assistant_model=reloaded)
    assert torch.equal(plain, ours)


def test_quantised_weights_are_saved_before_the_model_runs(folder, tmp_path, monkeypatch):
    """After a forward, bitsandbytes may save other weights."""
    pytest.importorskip("bitsandbytes")
    kind, events = LlamaForCausalLM, []
    for name in ("forward", "save_pretrained"):
        honest = getattr(kind, name)

        @functools.wraps(honest)
        def noted(*given, honest=honest, name=name, **named):
            events.append(name)
            return honest(*given, **named)

        monkeypatch.setattr(kind, name, noted)
    sv.make_companion(folder, tmp_path / "out", "nf4", dtype="float32")
    assert events == ["save_pretrained", "forward", "forward"]


@pytest.mark.parametrize("loaded", [False, True])
def test_layers(folder, tmp_path, loaded):
    draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tiny.prompts(2)["input_ids"]
    given = {"draft": draft, "tokenizer": byte_tokenizer()} if loaded else {"draft": str(folder), "dtype": "float32"}
    report = sv.make_companion(folder=tmp_path / "out", method="layers", num_layers=2, **given)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (report.num_layers, len(reloaded.model.layers), draft.config.num_hidden_layers) == (2, 2, 3)
    torch.testing.assert_close(logits_of(reloaded, ids), logits_of(sv.cut_layers(draft, 2), ids))
    assert report.distance is not None


def test_bf16_of_a_loaded_model(folder, tmp_path):
    draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    report = sv.make_companion(draft, tmp_path / "out", "bf16")
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert reloaded.dtype == torch.bfloat16
    assert draft.dtype == torch.float32
    assert torch.equal(reloaded.lm_head.weight, draft.lm_head.weight.bfloat16())
    assert report.distance is None  # a model alone has no tokenizer
    assert "was not measured" in (tmp_path / "out" / "README.md").read_text()


def test_the_distance_by_hand(folder):
    draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    other = tiny.near_copy(draft, 0.03)
    ids = torch.randint(3, 259, (512,), generator=torch.Generator().manual_seed(0))
    found = measure_distance(draft, other, ids)
    first, second = logits_of(draft, ids[None])[0], logits_of(other, ids[None])[0]
    q, c = first.softmax(-1), second.softmax(-1)
    overlap = torch.minimum(q, c).sum(-1)
    assert found.tokens == 512
    assert found.total_variation == pytest.approx(float(1 - overlap.mean()), abs=1e-5)
    assert found.largest_logit_difference == pytest.approx(float((first - second).abs().max()), abs=1e-4)
    assert found.agreement == pytest.approx(float((q.argmax(-1) == c.argmax(-1)).float().mean()))
    expected = (float(overlap.mean()), float(overlap.quantile(0.1)), float(overlap.median()))
    assert found.overlap == pytest.approx(expected, abs=5e-3)
    # Tokens are drawn from q, so the mean of A is that of S but for chance; drawn from c it would be another.
    assert found.acceptance[0] == pytest.approx(found.overlap[0], abs=0.05)
    assert float((c * (c / q).clamp(max=1)).sum(-1).mean()) > found.overlap[0] + 0.1
    assert found.acceptance[2] != found.overlap[2]
    same = measure_distance(draft, draft, ids)
    assert (same.total_variation, same.agreement, same.acceptance) == (0, 1, (1, 1, 1))


def test_the_card(folder, tmp_path):
    report = sv.make_companion(
        folder, tmp_path / "out", "layers", num_layers=1, dtype="float32", text="A text of mine."
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert report.distance is not None
    assert f"{report.distance.overlap[0]:.4f}" in card
    assert f"{report.distance.tokens} tokens of a given text" in card
    assert "1 of 3" in card
    assert str(tmp_path) not in card  # nobody's folders
    assert "base_model:" not in card
    text = companions.write_card(
        "me/mine", "nf4", "them/theirs", "abc123", (3, 3), (2**20, 2**21), report.distance, False
    )
    for part in ("base_model: them/theirs", "base_model_relation: quantized", "abc123", "1.0 MB", "a built-in text"):
        assert part in text


WRONG = {
    "method='gguf': allowed are 'nf4'": {"method": "gguf"},
    "dtype='int4'": {"dtype": "int4"},
    "num_layers=None with method='layers'": {"method": "layers"},
    "num_layers=2 with method='nf4'": {"num_layers": 2},
    "push_to_hub='a/b/c'": {"push_to_hub": "a/b/c"},
    "is a loaded LlamaForCausalLM": {"draft": tiny.make_model()},
    "is not empty": {"folder": "."},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message, folder, tmp_path):
    with pytest.raises(ValueError, match=message):
        sv.make_companion(**{"draft": str(folder), "folder": tmp_path / "out", **WRONG[message]})
    assert not (tmp_path / "out").exists()


def test_without_bitsandbytes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(companion_checks, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs bitsandbytes"):
        sv.make_companion(folder, tmp_path / "out", "int8")


def test_a_quantised_model_can_not_be_cut_into_a_folder(folder, tmp_path):
    pytest.importorskip("bitsandbytes")
    with pytest.raises(ValueError, match="draft is quantised"):
        sv.make_companion(in_memory(folder, "nf4"), tmp_path / "out", "layers", num_layers=1)


def test_pushing_comes_last_and_takes_the_whole_folder(folder, tmp_path, monkeypatch):
    calls = []

    class Hub:
        def create_repo(self, repo_id, **options):
            calls.append((repo_id, options))
            return type("Url", (), {"repo_id": f"me/{repo_id}"})

        def upload_folder(self, folder_path, repo_id, **_):
            calls.append((repo_id, {path.name for path in folder_path.iterdir()}))

    monkeypatch.setattr(companions, "HfApi", Hub)
    report = sv.make_companion(
        folder, tmp_path / "out", "layers", num_layers=1, push_to_hub="small", private=True, dtype="float32"
    )
    assert report.repository == "me/small"
    assert calls[0] == ("small", {"private": True, "exist_ok": True})
    assert calls[1][0] == "me/small"
    assert calls[1][1] >= {"README.md", "config.json", "model.safetensors", "tokenizer.json"}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command(folder, tmp_path):
    pytest.importorskip("bitsandbytes")
    named = ("companion", "--draft", folder, "--dtype", "float32", "--out")
    result = run(*named, tmp_path / "one", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["method"], found["num_layers"]) == ("nf4", 3)
    assert 0 < found["distance"]["overlap"][0] < 1
    text = tmp_path / "text.txt"
    text.write_text("Some words to read.")
    result = run(*named, tmp_path / "two", "--method", "layers", "--num-layers", 1, "--text", text)
    assert result.exit_code == 0, result.output
    assert "S, mean" in result.output
    assert run(*named, tmp_path / "three", "--method", "bf16", "--quiet").stdout == ""
    again = run(*named, tmp_path / "one")
    assert again.exit_code != 0
    assert "is not empty" in str(again.exception) + again.output
