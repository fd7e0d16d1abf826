"""Feature heads on disk: the `speculators` format and the layout of EAGLE-3 repositories."""

import json

import pytest
import tiny
import torch
from heads import features, make_head
from safetensors.torch import load_file, save_file

import hf_specverify as sv
from hf_specverify.drafting.heads import HeadConfig, default_layers, load_head, save_head
from hf_specverify.training.unroll import unroll

# As `speculators` 0.9.0 writes a head for a target of 64 tokens, of which it keeps 20.
NAMES = {
    "d2t": (20,),
    "fc.weight": (32, 96),
    "layers.0.hidden_norm.weight": (32,),
    "layers.0.input_layernorm.weight": (32,),
    "layers.0.mlp.down_proj.weight": (32, 48),
    "layers.0.mlp.gate_proj.weight": (48, 32),
    "layers.0.mlp.up_proj.weight": (48, 32),
    "layers.0.post_attention_layernorm.weight": (32,),
    "layers.0.self_attn.k_proj.weight": (16, 64),
    "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.self_attn.q_proj.weight": (32, 64),
    "layers.0.self_attn.v_proj.weight": (16, 64),
    "norm.weight": (32,),
    "t2d": (64,),
}
SHARED = {"embed_tokens.weight": (64, 32), "lm_head.weight": (20, 32)}
FIELDS = {
    "architectures", "draft_vocab_size", "dtype", "eagle_aux_hidden_state_layer_ids", "embed_requires_grad", "fc_norm",
    "norm_before_fc", "norm_before_residual", "norm_output", "speculators_config", "speculators_model_type",
    "speculators_version", "target_hidden_size", "tie_word_embeddings", "transformer_layer_config",
}  # fmt: skip


@pytest.fixture
def target():
    return tiny.make_model()


def scores(head, target):
    """What a head says of a text, three steps in a row."""
    ids = tiny.prompts(1)["input_ids"][0]
    return unroll(head, ids[None, 1:], features(target, head, ids)[:, :-1], 3)


@pytest.mark.parametrize("complete", [False, True])
def test_names_and_fields_are_those_of_the_format(target, tmp_path, complete):
    save_head(make_head(target, draft=20, target="user/name"), tmp_path, complete=complete)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == (NAMES | SHARED if complete else NAMES)
    assert tensors["t2d"].dtype == torch.bool and tensors["d2t"].dtype == torch.long
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], tensors["d2t"] + torch.arange(20))
    config = json.loads((tmp_path / "config.json").read_text())
    assert set(config) == FIELDS
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert config["speculators_config"]["verifier"]["name_or_path"] == "user/name"
    assert config["speculators_config"]["proposal_methods"][0]["proposal_type"] == "greedy"


@pytest.mark.parametrize("layout", ["speculators", "eagle3"])
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"draft": 20}, {"kind": "qwen3", "fc_norm": True}, {"norm_before_fc": True, "norm_output": True},
     {"norm_before_residual": True, "draft": 20, "target_layers": (1, 2)}],
)  # fmt: skip
def test_round_trip(target, tmp_path, layout, complete, options):
    head = make_head(target, **options)
    drafter = sv.FeatureHead(head)
    drafter.save_pretrained(tmp_path, layout=layout, complete=complete)
    again = sv.FeatureHead.from_pretrained(tmp_path, target).head
    assert again.own == (frozenset({"embed_tokens", "lm_head"}) if complete else frozenset())
    assert torch.equal(again.draft_ids, head.draft_ids)
    for ours, theirs in zip(scores(head, target), scores(again, target), strict=True):
        assert torch.equal(ours, theirs)
    save_head(again, tmp_path / "second", layout=layout)
    assert (tmp_path / "second" / "config.json").read_text() == (tmp_path / "config.json").read_text()
    if complete:
        return
    assert again.embed_tokens.data_ptr() == target.get_input_embeddings().weight.data_ptr()


def test_an_eagle3_repository_with_pickled_weights(target, tmp_path):
    """As the paper's own repositories are: flat config.json, `midlayer`, `pytorch_model.bin`, no layer numbers."""
    head = make_head(target, draft=20)
    save_head(head, tmp_path / "made", layout="eagle3", complete=True)
    tensors = load_file(tmp_path / "made" / "model.safetensors")
    assert "midlayer.self_attn.q_proj.weight" in tensors
    folder = tmp_path / "repository"
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 32,
        "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "vocab_size": 64, "draft_vocab_size": 20, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
        "torch_dtype": "float32", "rope_theta": 10000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    read = sv.FeatureHead.from_pretrained(folder, target)
    assert read.target_layers(target) == default_layers(2) == (0, 1, 2)
    for ours, theirs in zip(scores(head, target), unroll_default(read.head, target), strict=True):
        assert torch.equal(ours, theirs)


def unroll_default(head, target):
    ids = tiny.prompts(1)["input_ids"][0]
    states = target(input_ids=ids[None], output_hidden_states=True, use_cache=False).hidden_states
    return unroll(head, ids[None, 1:], torch.cat(states, dim=-1)[:, :-1], 3)


def test_rotary_frequencies_stay_exact(target, tmp_path):
    """In 16 bit far places would be turned by wrong angles."""
    head = make_head(target)
    exact = head.rotary.inv_freq.clone()
    head.to(torch.bfloat16)
    assert head.dtype == torch.bfloat16 and torch.equal(head.rotary.inv_freq, exact)
    save_head(head, tmp_path)
    loaded = sv.FeatureHead.from_pretrained(tmp_path, target, dtype=torch.float16).head
    assert loaded.dtype == torch.float16 and torch.equal(loaded.rotary.inv_freq, exact)


def test_layers_of_larger_targets_are_those_of_eagle3():
    assert default_layers(30) == (2, 15, 27)
    assert [default_layers(n) for n in (1, 4, 7)] == [(0, 1), (0, 2, 4), (2, 3, 4)]


def edit(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


LAYER = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1, "vocab_size": 64}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speculators_model_type": "eagle"}, "speculators_model_type='eagle'.*'eagle3'"),
        ({"draft_vocab_size": None}, "draft_vocab_size is missing"),
        ({"draft_vocab_size": 65}, "draft_vocab_size=65.*vocab_size=64"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size='many'.*integers"),
        ({"norm_output": "yes"}, "norm_output='yes'.*true and false"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, "eagle_aux_hidden_state_layer_ids.*different"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "eagle_aux_hidden_state_layer_ids=3.*list"),
        ({"target_hidden_size": 0}, "target_hidden_size=0"),
        ({"transformer_layer_config": 7}, "transformer_layer_config: .*object"),
        (
            {"transformer_layer_config": {**LAYER, "model_type": "mamba"}},
            "transformer_layer_config: model_type='mamba'",
        ),
        ({"transformer_layer_config": {**LAYER, "num_hidden_layers": 2}}, "num_hidden_layers=2.*1 decoder layer"),
        ({"transformer_layer_config": {**LAYER, "hidden_size": -1}}, "hidden_size=-1"),
        ({"transformer_layer_config": {**LAYER, "num_key_value_heads": 3}}, "num_key_value_heads=3"),
        ({"transformer_layer_config": {**LAYER, "intermediate_size": 50}}, "mlp.*must have the shape"),
        ({"transformer_layer_config": {k: v for k, v in LAYER.items() if k != "vocab_size"}}, "vocab_size is missing"),
    ],
)
def test_bad_fields_are_named(target, tmp_path, fields, message):
    save_head(make_head(target, draft=20), tmp_path)
    edit(tmp_path, **fields)
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("d2t"), "d2t is missing"),
        (lambda tensors: tensors.pop("norm.weight"), r"norm\.weight.*missing"),
        (lambda tensors: tensors.pop("fc.weight"), r"fc\.weight is missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "extra.*not known"),
        (lambda tensors: tensors.update(d2t=torch.zeros(19, dtype=torch.long)), "d2t must be integers"),
        (lambda tensors: tensors.update(d2t=tensors["d2t"] + 50), "d2t must lead to 20 different ids"),
        (lambda tensors: tensors.update(t2d=~tensors["t2d"]), "t2d must mark"),
        (lambda tensors: tensors.update({"norm.weight": torch.ones(31)}), r"norm\.weight must have the shape"),
    ],
)
def test_bad_tensors_are_named(target, tmp_path, change, message):
    save_head(make_head(target, draft=20), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path)


def test_damaged_and_missing_files(target, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_head(tmp_path)
    save_head(make_head(target), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged"):
        load_head(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load_head(tmp_path)
    with pytest.raises(ValueError, match="layout='other'"):
        save_head(make_head(target), tmp_path, layout="other")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"hidden_size": 48}, "hidden states of 32 numbers"),
        ({"vocabulary": 65}, "knows 64 tokens"),
        ({"num_hidden_layers": 1}, "reads layer 2"),
    ],
)
def test_a_target_of_another_shape_is_refused(target, tmp_path, other, message):
    save_head(make_head(target), tmp_path)
    with pytest.raises(ValueError, match=message):
        sv.FeatureHead.from_pretrained(tmp_path, tiny.make_model(**other))
    other_target = tiny.make_model(**other)
    with sv.enabled(other_target), pytest.raises(ValueError, match=message):
        other_target.generate(**tiny.prompts(1), assistant_model=sv.FeatureHead(make_head(target)), max_new_tokens=4)


def test_a_head_of_another_width_needs_its_own_rows(target, tmp_path):
    wide = tiny.make_model(hidden_size=64, seed=3)
    own = make_head(wide)  # of the wide one, 64
    config = HeadConfig(own.config.layer, 64, (0, 1, 2), target_hidden_size=32)
    head = type(own)(config)
    head.embed_tokens, head.lm_head = own.embed_tokens, own.lm_head
    save_head(head, tmp_path)
    with pytest.raises(ValueError, match="embed_tokens: the head has none"):
        sv.FeatureHead.from_pretrained(tmp_path, target)
    save_head(head, tmp_path, complete=True)
    drafter = sv.FeatureHead.from_pretrained(tmp_path, target)
    with sv.enabled(target):
        out = target.generate(**tiny.prompts(2), assistant_model=drafter, max_new_tokens=8, do_sample=False)
    assert torch.equal(out, target.generate(**tiny.prompts(2), max_new_tokens=8, do_sample=False))


@pytest.mark.parametrize("complete", [False, True])
def test_round_trip_through_the_package(target, tmp_path, complete):
    """Where `speculators` is installed: it reads what we write, scores the same, and we read what it writes."""
    pytest.importorskip("speculators")
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    target.save_pretrained(tmp_path / "target")
    head = make_head(target, draft=20, target=str(tmp_path / "target"), target_architectures=("LlamaForCausalLM",))
    save_head(head, tmp_path / "ours", complete=complete)
    config = Eagle3SpeculatorConfig.from_pretrained(tmp_path / "ours")
    config.transformer_layer_config._attn_implementation = "eager"
    theirs = Eagle3DraftModel.from_pretrained(tmp_path / "ours", config=config).eval()
    ids = tiny.prompts(1)["input_ids"][0]
    seen = features(target, head, ids)[:, :-1]
    nothing = torch.zeros(1, len(ids) - 1, dtype=torch.long)
    drafts = theirs(hidden_states=seen, input_ids=ids[None, 1:], document_ids=nothing, ttt_steps=3)
    for step, (drafted, ours) in enumerate(zip(drafts, unroll(head, ids[None, 1:], seen, 3), strict=True)):
        end = len(ids) - 1 - step
        assert torch.equal(drafted[:, :end], ours.argmax(-1)[:, :end])
    theirs.save_pretrained(tmp_path / "theirs")
    again = sv.FeatureHead.from_pretrained(tmp_path / "theirs", target).head
    for one, other in zip(scores(head, target), scores(again, target), strict=True):
        assert torch.equal(one, other)
