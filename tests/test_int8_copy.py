"""Copies with int8 products: near their model, each row for itself, and exact as drafts."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import tiny
import torch
from torch import nn

import hf_specverify as sv
from hf_specverify.benchmark.environment import load_model, parse_form
from hf_specverify.decoding import probe
from hf_specverify.decoding.timing import Stopwatch
from hf_specverify.explain import explain
from hf_specverify.hub.identifying import quantization_of
from hf_specverify.hub.weights import weights_hash
from hf_specverify.int8_linear import Int8Linear, int8_is_available
from hf_specverify.packing import described_dtype
from hf_specverify.scheduling import CostModel
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

pytestmark = pytest.mark.skipif(not int8_is_available(), reason="no fbgemm")


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=tiny.prompts(2)["input_ids"]).logits


def relative_error(found, right):
    return float((found - right).norm() / right.norm())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 0.02), (torch.bfloat16, 0.03)])
def test_the_product_is_near_the_floating_one(dtype, limit):
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((48, 64), (48,), (2, 5, 64)))
    found = Int8Linear(weight, bias)(x)
    assert found.dtype == dtype and found.shape == (2, 5, 48)
    assert 0 < relative_error(found.float(), nn.functional.linear(x.float(), weight.float(), bias.float())) < limit


def test_a_row_does_not_depend_on_the_rows_beside_it():
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0))
    x[3] *= 1000
    layer = Int8Linear(torch.randn(48, 64, generator=torch.Generator().manual_seed(1)), None)
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64), (64,)])
def test_inputs_of_any_shape_are_served(shape):
    assert Int8Linear(torch.randn(48, 64), torch.randn(48))(torch.randn(shape)).shape == (*shape[:-1], 48)


def test_the_largest_numbers_do_not_overflow():
    found = Int8Linear(torch.ones(4, 512), None)(torch.stack([torch.ones(512), -torch.ones(512), torch.zeros(512)]))
    torch.testing.assert_close(found, torch.tensor([512.0, -512, 0])[:, None].expand(3, 4))


def test_channels_that_are_large_do_not_hide_the_others():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 32, generator=generator), torch.randn(16, 32, generator=generator)
    x[:, 5] *= 300
    weight[:, 5] /= 300
    right = x @ weight.T
    assert relative_error(Int8Linear(weight, None)(x), right) > 0.2
    assert relative_error(Int8Linear(weight, None, x.abs().amax(0))(x), right) < 0.03


def test_channels_that_the_sample_or_the_weights_do_not_use_do_no_harm():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(64, 32, generator=generator), torch.randn(16, 32, generator=generator)
    x[:, 5] *= 300
    weight[:, 5] /= 300
    weight[:, 9] = 0
    largest = x.abs().amax(0)
    largest[7] = 0
    assert relative_error(Int8Linear(weight, None, largest)(x), x @ weight.T) < 0.05


def test_factors_come_in_steps_so_that_other_machines_find_the_same():
    generator = torch.Generator().manual_seed(0)
    weight, largest = torch.randn(8, 16, generator=generator), torch.rand(16, generator=generator) * 100
    shrink = Int8Linear(weight, None, largest).shrink
    torch.testing.assert_close(4 * shrink.log2(), (4 * shrink.log2()).round(), rtol=0, atol=1e-4)
    assert len(set(shrink.tolist())) > 2
    torch.testing.assert_close(Int8Linear(weight, None, largest * (1 + 1e-6)).shrink, shrink, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_a_copy_is_near_its_model_which_stays_as_it_is(family):
    model = tiny.make_model(family)
    right, modules = logits_of(model), dict(model.named_modules())
    state = {name: part.data_ptr() for name, part in model.state_dict().items()}
    copied = sv.int8_copy(model)
    assert 0 < relative_error(logits_of(copied), right) < 0.1
    assert type(copied.lm_head) is Int8Linear and not any(type(layer) is nn.Linear for layer in copied.modules())
    assert torch.equal(logits_of(model), right)
    assert all(module is modules[name] for name, module in model.named_modules())
    assert {name: part.data_ptr() for name, part in model.state_dict().items()} == state


def test_experts_stay_as_they_are():
    model = tiny.make_model("mixtral")
    right, copied = logits_of(model), sv.int8_copy(model)
    errors = (logits_of(copied) - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-6)
    assert 0 < float(errors.median()) < 0.2  # a token may be sent to another expert
    ours, theirs = (list(one.model.layers[0].mlp.experts.parameters()) for one in (copied, model))
    assert ours and all(own is other for own, other in zip(ours, theirs, strict=True))
    assert type(copied.lm_head) is Int8Linear


def test_a_head_that_was_tied_to_the_embeddings_leaves_them_as_they_are():
    model = tiny.make_model("qwen2", tie_word_embeddings=True)
    right = logits_of(model)
    copied = sv.int8_copy(model)
    assert copied.get_input_embeddings() is model.get_input_embeddings()
    assert 0 < relative_error(logits_of(copied), right) < 0.1
    assert torch.equal(logits_of(model), right) and model.lm_head.weight is model.model.embed_tokens.weight


def test_a_packed_model_is_copied_from_its_own_weights():
    model = tiny.make_model("llama")
    right = logits_of(sv.int8_copy(model))
    sv.pack_weights(model)
    assert torch.equal(logits_of(sv.int8_copy(model)), right)


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("kind", ["whole", "trimmed", "cut"])
def test_it_drafts_and_the_text_is_the_target_s(kind, sampling):
    target = tiny.make_model("llama")
    sv.enable(target)
    made_from = {
        "whole": lambda: target,
        "trimmed": lambda: sv.trim_vocabulary(target, ids=torch.arange(40)),
        "cut": lambda: sv.cut_layers(target, 1),
    }[kind]()
    draft = sv.int8_copy(made_from)
    inputs, options = tiny.prompts(3), {"max_new_tokens": 12, "return_dict_in_generate": True}
    if sampling:
        torch.manual_seed(3)
        out = target.generate(**inputs, assistant_model=draft, do_sample=True, **options)
        torch.manual_seed(3)
        again = target.generate(**inputs, assistant_model=draft, do_sample=True, **options)
        assert torch.equal(out.sequences, again.sequences)
    else:
        out = target.generate(**inputs, assistant_model=draft, do_sample=False, **options)
        assert torch.equal(out.sequences, target.generate(**inputs, max_new_tokens=12, do_sample=False))
    assert out.speculation.accepted > (0.5 * out.speculation.verified if kind == "whole" else 0)


@pytest.mark.parametrize("trims", [False, True])
def test_its_rounding_is_not_taken_for_a_cache_that_is_wrong(monkeypatch, trims):
    model = tiny.make_model("llama")
    made_from = sv.trim_vocabulary(model, ids=torch.arange(40)) if trims else model
    copied = sv.int8_copy(made_from)
    monkeypatch.setattr(probe, "_choose", lambda *_: pytest.fail("the copy was probed"))
    for one in (copied, copy.deepcopy(copied)) if trims else (copied, copy.deepcopy(copied), sv.cut_layers(copied, 1)):
        assert probe.make_runner(one, Stopwatch(), "draft").layout == "row cache"


def test_the_float_weights_go_with_the_model_that_they_are_of():
    model = tiny.make_model("llama")
    weight = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    copied = sv.int8_copy(sv.trim_vocabulary(model, ids=torch.arange(40)))
    del model
    gc.collect()
    assert weight() is None and len(copied.kept_ids) > 0


def test_a_trimmed_copy_scores_the_kept_tokens_only():
    trimmed = sv.trim_vocabulary(tiny.make_model("llama"), ids=torch.arange(40))
    copied = sv.int8_copy(trimmed)
    assert copied.lm_head.out_features == len(copied.kept_ids)
    kept = logits_of(copied)[..., copied.kept_ids]
    assert relative_error(kept, logits_of(trimmed)[..., copied.kept_ids]) < 0.1
    assert (logits_of(copied)[..., 60] < -1e20).all()


@pytest.mark.parametrize("move", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.to("meta")])
def test_it_is_not_moved_for_its_model_would_be_too(move):
    model = tiny.make_model("llama")
    right, copied = logits_of(model), sv.int8_copy(model)
    with pytest.raises(ValueError, match="can't be moved or retyped"):
        move(copied)
    assert torch.equal(logits_of(model), right)


def test_layers_with_hooks_stay_as_they_are():
    model = tiny.make_model("llama")
    hooked = model.model.layers[0].mlp.up_proj
    hooked.register_forward_hook(lambda module, arguments, output: output)
    copied = sv.int8_copy(model)
    assert copied.model.layers[0].mlp.up_proj is hooked
    assert type(copied.model.layers[1].mlp.up_proj) is Int8Linear


def test_copies_of_a_copy_compute_the_same():
    layer = Int8Linear(torch.randn(8, 16), torch.randn(8))
    x = torch.randn(3, 16)
    right = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), right)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), right)


def test_threads_share_a_copy_and_the_engine_stays_the_one_that_was_set():
    copied, found, before = sv.int8_copy(tiny.make_model("llama")), [], torch.backends.quantized.engine
    duplicate = copy.deepcopy(copied)
    threads = [threading.Thread(target=lambda: found.append(logits_of(duplicate))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(logits, logits_of(copied)) for logits in found)
    assert torch.backends.quantized.engine == before


def test_what_can_not_be_copied_is_refused():
    model = tiny.make_model("llama")
    with pytest.raises(ValueError, match="quantised or an int8 copy already"):
        sv.int8_copy(sv.int8_copy(model))
    quantised = tiny.make_model("llama")
    quantised.is_quantized = True
    with pytest.raises(ValueError, match="quantised or an int8 copy already"):
        sv.int8_copy(quantised)
    with pytest.raises(ValueError, match="can't be saved"):
        sv.int8_copy(model).save_pretrained("nowhere")
    with pytest.raises(ValueError, match="on cpu in float64: allowed are models on a CPU in float32 or bfloat16"):
        sv.int8_copy(tiny.make_model("llama").double())
    with pytest.raises(ValueError, match="no linear layer"):
        sv.int8_copy(hooked_everywhere())
    with pytest.raises(TypeError, match="model='name': allowed is a Transformers causal language model"):
        sv.int8_copy("name")


def hooked_everywhere():
    model = tiny.make_model("llama")
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.register_forward_hook(lambda module, arguments, output: output)
    return model


class ReadsTheWeight(nn.Module):
    """As routers and adapters do: the input in the dtype of the weights."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, input):
        return self.layer(input.to(self.layer.weight.dtype))


def test_a_model_that_reads_weights_itself_is_refused():
    model = tiny.make_model("llama")
    model.model.layers[0].mlp.up_proj = ReadsTheWeight(model.model.layers[0].mlp.up_proj)
    before = logits_of(model)
    with pytest.raises(ValueError, match="LlamaForCausalLM: its forward reads weights of linear layers itself"):
        sv.int8_copy(model)
    assert torch.equal(logits_of(model), before)


def test_weights_that_are_loaded_into_it_count():
    one, other = (sv.int8_copy(tiny.make_model("llama", seed=seed)) for seed in (1, 2))
    assert not torch.equal(logits_of(one), logits_of(other))
    one.load_state_dict(other.state_dict())
    assert torch.equal(logits_of(one), logits_of(other))


def test_records_say_that_it_is_one():
    model = tiny.make_model("llama")
    copied = sv.int8_copy(model)
    assert (described_dtype(model), described_dtype(copied)) == ("torch.float32", "torch.float32, int8 copy")
    assert (quantization_of(model), quantization_of(copied)) == (None, "int8-copy")
    assert not Fingerprint.of({"draft": model}).covers(Fingerprint.of({"draft": copied}))
    costs = CostModel([Point(role, 256, 1, 1, 0.1) for role in ("target", "draft")], Fingerprint({}, {}))
    whole, placed = explain(model, copied, costs=costs, batch_sizes=(1,)).placements
    assert 0.25 * whole.size < placed.size < 0.6 * whole.size  # the embeddings are shared, and counted
    assert placed.parameters >= whole.parameters and "int8" in placed.dtypes


def test_copies_are_told_from_each_other():
    model, other = tiny.make_model("llama"), tiny.make_model("llama")
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    copied, changed = sv.int8_copy(model), sv.int8_copy(other)
    trimmed = sv.int8_copy(sv.trim_vocabulary(model, ids=torch.arange(40)))
    assert weights_hash(copied) == weights_hash(sv.int8_copy(model)) != weights_hash(changed)
    # Channel factors are measured, and in bfloat16 a little different; the fingerprint is of what was copied.
    assert weights_hash(copied) == weights_hash(sv.int8_copy(copy.deepcopy(model).bfloat16())) == weights_hash(model)
    assert weights_hash(trimmed) != weights_hash(copied)
    assert weights_hash(sv.cut_layers(copied, 1)) != weights_hash(copied)
    assert not Fingerprint.of({"draft": copied}).covers(Fingerprint.of({"draft": trimmed}))


@pytest.mark.parametrize(("share", "copied", "named"), [(0.4, False, True), (0.1, False, False), (0.4, True, False)])
def test_advice_names_it_where_a_draft_is_dear(share, copied, named):
    target, draft = tiny.make_model("llama"), tiny.make_model("llama", seed=5)
    draft = sv.int8_copy(draft) if copied else draft
    points = [Point("target", 256, 1, 1, 0.1), Point("draft", 256, 1, 1, 0.1 * share)]
    advice = explain(target, draft, costs=CostModel(points, Fingerprint({}, {})), batch_sizes=(1,)).advice
    assert any("costs 0.40 of a target pass: try `sv.int8_copy" in line for line in advice) is named


def test_advice_keeps_what_is_trimmed_and_leaves_the_target_s_own_layers_and_costs_without_a_draft_alone():
    target, draft = tiny.make_model("llama"), tiny.make_model("llama", seed=5)
    points = [Point("target", 256, 1, 1, 0.1), Point("draft", 256, 1, 1, 0.04)]
    costs = CostModel(points, Fingerprint({}, {}))

    def advised(draft, costs=costs):
        advice = " ".join(explain(target, draft, costs=costs, batch_sizes=(1,)).advice)
        return advice.partition("--draft-quantization ")[2].partition("`")[0]

    trimmed = sv.trim_vocabulary(draft, ids=torch.arange(40))
    assert advised(trimmed) == f"int8-copy+trim:{len(trimmed.kept_ids)}"
    cut = sv.cut_layers(draft, 1)
    assert advised(cut) == "int8-copy+layers:1"
    assert advised(sv.trim_vocabulary(cut, ids=torch.arange(40))) == f"int8-copy+layers:1+trim:{len(trimmed.kept_ids)}"
    assert advised(sv.cut_layers(target, 1)) == advised(draft, CostModel(points[:1], Fingerprint({}, {}))) == ""


def test_commands_name_it_as_a_form(tmp_path):
    assert parse_form("int8-copy+trim:40") == ("int8-copy", {"trim": 40})
    with pytest.raises(ValueError, match="allowed: 'none', 'nf4', 'int8', 'int8-copy'"):
        parse_form("copy")
    tiny.make_model("llama").save_pretrained(tmp_path)
    cpu = torch.device("cpu")
    for dtype in ("float32", "float32+packed"):
        loaded = load_model(str(tmp_path), dtype, "int8-copy+layers:1+trim:40", device=cpu)
        assert type(loaded.lm_head) is Int8Linear and loaded.lm_head.out_features == 40
        assert len(loaded.model.layers) == 1
    for dtype, device in (("float16", cpu), ("float32", torch.device("cuda"))):
        with pytest.raises(
            ValueError, match=r"quantization='int8-copy' for .*; allowed: on a CPU, in .*--draft-device cpu"
        ):
            load_model(str(tmp_path), dtype, "int8-copy", device=device)
