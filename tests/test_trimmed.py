"""Drafts with a part of the vocabulary: what is scored, what is shared, and that outputs keep the target's law."""

import copy

import pytest
import tiny
import torch
from test_sampling_law import check_law, model
from tokenizing import byte_tokenizer, word_tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import hf_specverify as sv
from hf_specverify.drafting import model_chains
from hf_specverify.scheduling import CostModel

IDS = torch.tensor([1, 4, 7, 8, 20, 33, 41, 50, 62])
ALL = {0, 1, 2, *IDS.tolist()}  # with the padding, the end and the beginning
HEADS = {
    "llama": ("llama", {}),
    "tied": ("qwen2", {"tie_word_embeddings": True}),
    "tied gpt2": ("gpt2", {}),
    "soft capping": ("gemma3_text", {"final_logit_softcapping": 0.5}),
    "scaled": ("cohere2", {"logit_scale": 0.25}),
    "bias": ("phi3", {}),
    "alibi": ("bloom", {"attention": "eager"}),
    "recurrent": ("qwen3_next", {}),
}
slower = pytest.mark.filterwarnings("ignore:.*slower layout")


def with_head(name):
    family, extra = HEADS[name]
    draft = tiny.make_model(family, **extra)
    if name == "bias":
        draft.lm_head = torch.nn.Linear(32, 64)
    return draft


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits


@slower
@pytest.mark.parametrize("head", HEADS)
def test_kept_tokens_have_the_drafts_logits_and_others_probability_0(head):
    draft = with_head(head)
    trimmed = sv.trim_vocabulary(draft, ids=IDS)
    assert set(trimmed.kept_ids.tolist()) == ALL
    ids = tiny.prompts(2)["input_ids"]
    full, ours = logits_of(draft, ids), logits_of(trimmed, ids)
    assert ours.shape == full.shape
    torch.testing.assert_close(ours[..., trimmed.kept_ids], full[..., trimmed.kept_ids])
    rest = torch.tensor(sorted(set(range(64)) - ALL))
    for temperature in (0.1, 1.0, 100.0):
        assert not (ours / temperature).softmax(-1)[..., rest].any()
    last = trimmed(input_ids=ids, use_cache=False, logits_to_keep=1).logits if head != "alibi" else ours[:, -1:]
    torch.testing.assert_close(last, ours[:, -1:])


@slower
@pytest.mark.parametrize("head", ["llama", "tied", "tied gpt2", "bias"])
def test_the_draft_is_left_alone_and_only_the_head_is_copied(head):
    draft = with_head(head)
    before = {name: (tensor, tensor.clone()) for name, tensor in draft.state_dict(keep_vars=True).items()}
    modules, config = dict(draft.named_modules()), draft.config.to_dict()
    ids = tiny.prompts(2)["input_ids"]
    logits = logits_of(draft, ids)
    trimmed = sv.trim_vocabulary(draft, ids=IDS)
    for name, tensor in draft.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert all(module is modules[name] for name, module in draft.named_modules())
    assert not draft._forward_hooks
    assert not hasattr(draft, "kept_ids")
    assert draft.config.to_dict() == config
    assert torch.equal(logits_of(draft, ids), logits)
    own = {name for name, tensor in trimmed.named_parameters() if all(tensor is not old for old, _ in before.values())}
    assert own == {f"lm_head.{name}" for name in (("weight", "bias") if head == "bias" else ("weight",))}
    assert trimmed.lm_head.weight.shape == (len(ALL), 32)


def test_the_configurations_are_the_copys_own():
    draft = tiny.make_model()
    trimmed = sv.trim_vocabulary(draft, ids=IDS)
    assert isinstance(trimmed, type(draft))
    trimmed.generation_config.num_assistant_tokens = 17
    trimmed.set_attn_implementation("eager")
    assert draft.generation_config.num_assistant_tokens != 17
    assert {module.config._attn_implementation for module in draft.modules() if hasattr(module, "config")} == {"sdpa"}
    assert trimmed.model.layers[0].self_attn.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", [name for name, info in sv.verifiers().items() if info.lossless])
def test_greedy_output_is_plain_output_with_every_verifier(name):
    target = tiny.make_model()
    trimmed = sv.trim_vocabulary(tiny.near_copy(target), keep=24)
    inputs = tiny.prompts(3)
    paths = 1 if sv.verifiers()[name].structure == "chain" else 3
    with sv.enabled(target):
        plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
        ours = target.generate(
            **inputs, max_new_tokens=20, do_sample=False, assistant_model=trimmed, verification=name,
            num_draft_paths=paths, return_dict_in_generate=True,
        )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    assert 0 < ours.speculation.accepted < ours.speculation.verified
    assert ours.speculation.layout == "row cache"


@slower
@pytest.mark.parametrize("head", ["soft capping", "alibi", "recurrent", "tied gpt2"])
def test_greedy_output_is_plain_output_in_every_layout(head):
    draft = with_head(head)
    target, inputs = tiny.near_copy(draft, 0.005), tiny.prompts(3)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    with sv.enabled(target):
        trimmed = sv.trim_vocabulary(draft, keep=48)
        ours = target.generate(
            **inputs, max_new_tokens=20, do_sample=False, assistant_model=trimmed, return_dict_in_generate=True
        )
    assert torch.equal(plain, ours.sequences)
    assert ours.speculation.accepted > 0


@pytest.mark.parametrize(("verification", "paths"), [("block", 1), ("multi_round_without_replacement", 2)])
def test_samples_have_the_targets_law(verification, paths):
    trimmed = sv.trim_vocabulary(model(8), ids=torch.tensor([0, 2, 3]))
    check_law(model(7), trimmed, {}, None, verification=verification, num_draft_paths=paths)


@pytest.mark.parametrize("setting", [{}, {"temperature": 0.3, "top_k": 5}, {"repetition_penalty": 3.0}, {"top_p": 0.5}])
def test_q_is_0_outside_and_drafts_are_kept_tokens(setting, monkeypatch):
    drafts = []
    honest = model_chains.ModelSession.propose
    monkeypatch.setattr(
        model_chains.ModelSession, "propose", lambda *given: drafts.append(honest(*given)) or drafts[-1]
    )
    target = tiny.make_model()
    trimmed = sv.trim_vocabulary(tiny.near_copy(target), ids=IDS)
    with sv.enabled(target):
        target.generate(
            **tiny.prompts(3), max_new_tokens=12, do_sample=True, assistant_model=trimmed, **{"top_k": 0, **setting}
        )
    rest = torch.tensor(sorted(set(range(64)) - ALL))
    drafts = [draft for draft in drafts if draft.tokens.numel()]
    assert len(drafts) > 3
    for draft in drafts:
        assert not draft.q[..., rest].any()
        torch.testing.assert_close(draft.q.sum(-1), torch.ones(draft.q.shape[:2]))
        assert set(draft.tokens.flatten().tolist()) <= ALL


@pytest.mark.parametrize("do_sample", [False, True])
def test_where_no_allowed_token_is_kept(do_sample):
    """A law is left even then."""
    target = tiny.make_model()
    trimmed = sv.trim_vocabulary(tiny.near_copy(target), ids=IDS)
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(3), max_new_tokens=12, do_sample=do_sample, assistant_model=trimmed,
            suppress_tokens=trimmed.kept_ids.tolist(), temperature=0.5 if do_sample else None,
        )  # fmt: skip
    assert not set(out[:, 9:].flatten().tolist()) & ALL


def test_as_companion_and_in_a_cost_model():
    target = tiny.make_model()
    draft = tiny.near_copy(target)
    companion = sv.trim_vocabulary(tiny.near_copy(target, 0.01, seed=2), keep=32)
    inputs = tiny.prompts(3)
    table = sv.calibrate(
        target, draft, [inputs], companion_model=companion, num_draft_tokens=4, max_new_tokens=20, sets=[("S",)]
    )
    costs = CostModel.profile(
        target, sv.trim_vocabulary(draft, keep=32), companion, [1, 3], [1, 2], [8], budget_seconds=0.1
    )
    with sv.enabled(target):
        plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
        ours = target.generate(
            **inputs, max_new_tokens=20, do_sample=False, assistant_model=draft, companion_model=companion,
            calibration=table, costs=costs, verify_length="goodput",
        )  # fmt: skip
    assert torch.equal(plain, ours)


def test_the_hosts_own_assisted_decoding_takes_it():
    target = tiny.make_model()
    inputs = {name: value[-1:] for name, value in tiny.prompts(3).items()}
    trimmed = sv.trim_vocabulary(tiny.near_copy(target), keep=32)
    plain = target.generate(**inputs, max_new_tokens=20, do_sample=False)
    assert torch.equal(plain, target.generate(**inputs, max_new_tokens=20, do_sample=False, assistant_model=trimmed))


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
@pytest.mark.parametrize("skip", [None, []])
def test_quantised_drafts_and_quantised_heads(quantization, skip, tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    target = tiny.make_model(hidden_size=64, intermediate_size=64)
    target.save_pretrained(tmp_path)
    options = {"load_in_8bit": True} if quantization == "int8" else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config = BitsAndBytesConfig(**options, llm_int8_skip_modules=skip)
    draft = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        device_map="cpu",
        quantization_config=config,
        # In float32, int8 is so much coarser than its dtype that no cache layout is found exact.
        dtype=torch.bfloat16 if quantization == "int8" else torch.float32,
    )
    kind = bitsandbytes.nn.Linear8bitLt if quantization == "int8" else bitsandbytes.nn.Linear4bit
    assert isinstance(draft.lm_head, kind) == (skip == [])
    ids = tiny.prompts(3)["input_ids"]
    trimmed = sv.trim_vocabulary(draft, ids=IDS)
    full, ours = logits_of(draft, ids), logits_of(trimmed, ids)
    error = (full - ours)[..., trimmed.kept_ids].abs().max() / full.abs().max()
    assert error < (3e-2 if skip == [] or quantization == "int8" else 1e-5)
    assert trimmed.model.layers[0].self_attn.q_proj is draft.model.layers[0].self_attn.q_proj
    with sv.enabled(target):
        plain = target.generate(**tiny.prompts(3), max_new_tokens=20, do_sample=False)
        out = target.generate(
            **tiny.prompts(3), max_new_tokens=20, do_sample=False, assistant_model=trimmed,
            return_dict_in_generate=True,
        )  # fmt: skip
    assert torch.equal(plain, out.sequences)
    assert torch.equal(logits_of(draft, ids), full)


def test_a_draft_with_hooks_of_accelerate():
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    draft = tiny.make_model()
    for module in (draft, draft.model, draft.model.layers[0]):
        add_hook_to_module(module, AlignDevicesHook(io_same_device=True))
    ids = tiny.prompts(2)["input_ids"]
    trimmed = sv.trim_vocabulary(draft, ids=IDS)
    shorter = sv.cut_layers(draft, 1)
    assert trimmed.forward.args == (trimmed,)
    torch.testing.assert_close(logits_of(trimmed, ids)[..., IDS], logits_of(draft, ids)[..., IDS])
    assert not torch.allclose(logits_of(shorter, ids), logits_of(draft, ids))


def test_which_ids_are_kept():
    draft = tiny.make_model()
    special = {0, 1, 2}

    def kept(**arguments):
        return set(sv.trim_vocabulary(draft, **arguments).kept_ids.tolist())

    assert kept(keep=5) == special | {3, 4}
    counts = torch.zeros(64)
    counts[[40, 50, 60]] = torch.tensor([1.0, 5.0, 5.0])
    assert kept(keep=5, counts=counts) == special | {50, 60}
    assert kept(keep=4, counts=counts) == special | {50}  # of equals the lower id
    assert kept(keep=7, counts={60: 2, 40: 1}) == special | {60, 40, 3, 4}
    assert kept(keep=7, counts=torch.tensor([0, 0, 0, 0, 0, 9])) == special | {5, 3, 4, 6}
    assert kept(keep=64) == set(range(64))
    again = sv.trim_vocabulary(draft, keep=9, counts=counts)
    assert torch.equal(sv.trim_vocabulary(draft, ids=again.kept_ids).kept_ids, again.kept_ids)


def test_text_is_counted_and_the_tokenizers_special_tokens_are_kept(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["w60"]})
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("w40 w40 w41")
    second.write_text("w41 w41 w42")
    words = {int(index): word for word, index in tokenizer.get_vocab().items()}
    trimmed = sv.trim_vocabulary(tiny.make_model(), keep=6, text=[first, second], tokenizer=tokenizer)
    assert {words[index] for index in trimmed.kept_ids.tolist()} == {"<pad>", "<eos>", "<bos>", "w60", "w41", "w40"}
    trimmed = sv.trim_vocabulary(tiny.make_model(), keep=5, text="w9 w9 w8", tokenizer=tokenizer)
    assert {words[index] for index in trimmed.kept_ids.tolist()} == {"<pad>", "<eos>", "<bos>", "w60", "w9"}


WRONG = {
    "keep=65": {"keep": 65},
    "keep=0": {"keep": 0},
    "keep=2.0": {"keep": 2.0},
    "keep=2: there are 3 special": {"keep": 2},
    "shape": {"keep": 5, "counts": torch.zeros(65)},
    "finite": {"keep": 5, "counts": torch.full((64,), float("nan"))},
    "at least 0": {"keep": 5, "counts": {3: -1}},
    "id 64": {"keep": 5, "counts": {64: 1}},
    "counts and text": {"keep": 5, "counts": {3: 1}, "text": "a", "tokenizer": 1},
    "need each other": {"keep": 5, "text": "a"},
    "no token": {"keep": 5, "text": "", "tokenizer": byte_tokenizer()},
    "ids and counts": {"ids": IDS, "counts": {3: 1}},
    "allowed are 0 to 63": {"ids": torch.tensor([3, 64])},
    "one row of integers": {"ids": torch.tensor([0.5])},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises(ValueError, match=message):
        sv.trim_vocabulary(tiny.make_model(), **WRONG[message])


def test_the_name_of_a_file_is_not_taken_for_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("w1")
    with pytest.raises(ValueError, match="allowed: Path"):
        sv.trim_vocabulary(tiny.make_model(), keep=5, text=str(path), tokenizer=word_tokenizer())


class Mixing(torch.nn.Linear):
    """A head of which each row looks at the others."""

    def forward(self, hidden):
        return super().forward(hidden).softmax(-1)


def test_drafts_that_can_not_be_trimmed():
    trimmed = sv.trim_vocabulary(tiny.make_model(), ids=IDS)
    with pytest.raises(ValueError, match="trimmed already"):
        sv.trim_vocabulary(trimmed, ids=IDS)
    with pytest.raises(ValueError, match="can't be saved"):
        trimmed.save_pretrained("anywhere")
    with pytest.raises(ValueError, match="LlamaModel has the head NoneType"):
        sv.trim_vocabulary(tiny.make_model().model, ids=IDS)
    draft = tiny.make_model()
    draft.lm_head = Mixing(32, 64)
    with pytest.raises(ValueError, match="head Mixing of LlamaForCausalLM give other logits"):
        sv.trim_vocabulary(draft, ids=IDS)
    draft = tiny.make_model()
    draft.forward = lambda original=draft.forward, **given: original(**given)
    with pytest.raises(ValueError, match="forward of LlamaForCausalLM was replaced"):
        sv.trim_vocabulary(draft, ids=IDS)


def test_logits_that_do_not_come_from_the_head(monkeypatch):
    draft = tiny.make_model()
    lonely = copy.deepcopy(draft.lm_head)
    monkeypatch.setattr(draft, "get_output_embeddings", lambda: draft.other)
    draft.other = lonely
    with pytest.raises(ValueError, match="don't come from its output embeddings"):
        sv.trim_vocabulary(draft, ids=IDS)


def test_the_head_gets_one_matrix(monkeypatch):
    """What a model slices off for the last position is strided; a product in three dimensions is very slow with it."""
    trimmed = sv.trim_vocabulary(tiny.make_model(), keep=20)
    seen, linear = [], torch.nn.functional.linear

    def watched(hidden, weight, bias=None):
        if weight is trimmed.get_output_embeddings().weight:
            seen.append(tuple(hidden.shape))
        return linear(hidden, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    with torch.no_grad():
        trimmed(input_ids=torch.tensor([[5, 6, 7], [8, 9, 10]]), logits_to_keep=1)
    assert seen == [(2, trimmed.config.hidden_size)]
