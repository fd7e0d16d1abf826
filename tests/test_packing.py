"""Weights ordered for the processor: the same numbers, the same parameters, and the model as it was afterwards."""

import copy
import threading
import warnings

import pytest
import tiny
import torch
from heads import make_head
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import hf_specverify as sv
from hf_specverify.benchmark.environment import load_model, parse_dtype
from hf_specverify.explain import explain
from hf_specverify.packing import PackedLinear, PackedProduct, packed_dtypes
from hf_specverify.scheduling import CostModel, costs_of_a_call
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

pytestmark = pytest.mark.skipif(torch.float32 not in packed_dtypes(), reason="no oneDNN")


def logits_of(model, ids=None):
    return model(input_ids=tiny.prompts(2)["input_ids"] if ids is None else ids).logits


def linear_names(model):
    return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "phi3"])
def test_a_packed_model_gives_the_same_logits_and_is_itself_again_unpacked(family):
    model = tiny.make_model(family)
    before, state = dict(model.named_modules()), {name: part.data_ptr() for name, part in model.state_dict().items()}
    right, names = logits_of(model), linear_names(model)
    assert sv.pack_weights(model) == len(names)
    assert all(type(model.get_submodule(name)) is PackedLinear for name in names)
    assert {name: part.data_ptr() for name, part in model.state_dict().items()} == state
    torch.testing.assert_close(logits_of(model), right)
    assert sv.pack_weights(model) == len(names)  # twice is once
    assert sv.unpack_weights(model) == len(names)
    assert all(module is before[name] for name, module in model.named_modules())
    assert torch.equal(logits_of(model), right)
    assert sv.unpack_weights(model) == 0


def test_the_product_is_the_ordered_one_where_it_serves_and_the_usual_one_elsewhere():
    calls, ordered = [], torch.ops.mkldnn._linear_pointwise

    class Counted(PackedProduct):
        def _ordered(self, weight):
            calls.append(weight.dtype)
            return super()._ordered(weight)

    product, weight, bias = Counted(), torch.randn(6, 4), torch.randn(6)
    for shape in ((4,), (1, 4), (2, 3, 4), (0, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(product(x, weight, bias), x @ weight.T + bias)
    assert calls == [torch.float32] * 3  # nothing is to be multiplied in the last one
    torch.testing.assert_close(product(torch.randn(3, 2, 4).transpose(0, 1), weight).shape, torch.Size([2, 3, 6]))
    assert product(torch.ones(1, 4).double(), weight.double()).dtype == torch.float64
    with pytest.raises(RuntimeError, match="dtype"):
        product(torch.ones(1, 4).double(), weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert product(torch.ones(1, 4), weight).dtype == torch.bfloat16
    assert len(calls) == 4 and ordered is torch.ops.mkldnn._linear_pointwise


def test_changed_weights_are_ordered_anew():
    layer = nn.Linear(5, 3)
    model = nn.Sequential(layer)
    sv.pack_weights(model)
    x = torch.randn(2, 5)
    model(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(model(x), nn.functional.linear(x, layer.weight, layer.bias))
    model.load_state_dict({"0.weight": torch.ones(3, 5), "0.bias": torch.zeros(3)})
    torch.testing.assert_close(model(x), x.sum(-1, keepdim=True).expand(2, 3))
    model[0].weight = nn.Parameter(torch.zeros(3, 5))
    assert not model(x).any()
    sv.unpack_weights(model)
    assert model[0] is layer and not layer.weight.any()
    torch.testing.assert_close(nn.Sequential(layer).double()(x.double()), torch.zeros(2, 3).double())


def test_after_changes_through_data_packing_again_orders_anew():
    model = nn.Sequential(nn.Linear(5, 3, bias=False))
    sv.pack_weights(model)
    x = torch.ones(1, 5)
    model(x)
    model[0].weight.data.fill_(1)
    sv.pack_weights(model)
    assert model(x).tolist() == [[5, 5, 5]]


def test_the_address_of_an_ordered_weight_is_given_to_no_other():
    product, weight = PackedProduct(), torch.ones(4, 4)
    product(torch.ones(1, 4), weight)
    memory = StorageWeakRef(weight.untyped_storage())
    del weight
    assert not memory.expired()  # else a new weight at its address would be taken for it
    product(torch.ones(1, 4), torch.zeros(4, 4))
    assert memory.expired()


def test_the_same_ordered_copy_serves_until_the_weight_changes(monkeypatch):
    product, weight, made = PackedProduct(), torch.randn(3, 5), []
    reorder = torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(
        torch.ops.mkldnn, "_reorder_linear_weight", lambda *arguments: made.append(1) or reorder(*arguments)
    )
    for _ in range(3):
        product(torch.randn(2, 5), weight)
    assert len(made) == 1
    weight.add_(1)
    product(torch.randn(2, 5), weight)
    assert len(made) == 2


def test_gradients_are_those_of_the_plain_model():
    plain, packed = tiny.make_model("llama"), tiny.make_model("llama")
    sv.pack_weights(packed)
    for model in (plain, packed):
        with torch.enable_grad():
            logits_of(model).square().mean().backward()
    theirs = {name: part.grad for name, part in packed.named_parameters()}
    for name, part in plain.named_parameters():
        torch.testing.assert_close(theirs[name], part.grad)


def test_tied_weights_stay_tied_and_copies_and_files_are_whole(tmp_path):
    model = tiny.make_model("qwen2", tie_word_embeddings=True)
    right = logits_of(model)
    sv.pack_weights(model)
    torch.testing.assert_close(logits_of(model), right)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    duplicate = copy.deepcopy(model)
    torch.testing.assert_close(logits_of(duplicate), right)
    assert duplicate.lm_head.weight is duplicate.model.embed_tokens.weight is not model.lm_head.weight
    assert sv.unpack_weights(duplicate) and type(model.lm_head) is PackedLinear
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(logits_of(loaded), right)
    assert type(loaded.lm_head) is nn.Linear


def test_retyped_models_compute_in_their_new_dtype():
    model = tiny.make_model("llama")
    sv.pack_weights(model)
    logits_of(model)
    model.double()
    right = logits_of(tiny.make_model("llama").double())
    torch.testing.assert_close(logits_of(model), right)


def test_a_layer_under_two_names_stays_one():
    layer = nn.Linear(4, 4)
    model = nn.ModuleList([layer, nn.Sequential(layer)])
    assert sv.pack_weights(model) == 1
    assert model[0] is model[1][0] and type(model[0]) is PackedLinear
    assert sv.unpack_weights(model) == 1
    assert model[0] is model[1][0] is layer


def test_layers_with_hooks_or_another_forward_or_class_are_left_alone():
    class Other(nn.Linear):
        pass

    hooked, replaced, plain = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, arguments, output: output + 1)
    replaced.forward = lambda x: x

    class Sharded(nn.Parameter):
        pass

    sharded = nn.Linear(2, 2)
    sharded.weight = Sharded(torch.ones(2, 2))
    model = nn.ModuleList([hooked, replaced, plain, Other(2, 2), nn.Linear(2, 2).double(), sharded])
    before = list(model)
    assert sv.pack_weights(model) == 1
    assert [after is layer for after, layer in zip(model, before, strict=True)] == [True, True, False, True, True, True]


@pytest.mark.parametrize("model", [nn.ModuleList([nn.Linear(2, 2).half()]), nn.ReLU(), nn.Linear(2, 2, device="meta")])
def test_what_has_nothing_to_pack_is_refused(model):
    with pytest.raises(ValueError, match="no linear layer that can be packed; allowed: layers on a CPU in float32"):
        sv.pack_weights(model)


@pytest.mark.parametrize("function", [sv.pack_weights, sv.unpack_weights])
def test_what_is_no_module_is_refused(function):
    with pytest.raises(TypeError, match="model='name': allowed is a module"):
        function("name")


def test_threads_share_a_packed_model():
    model = tiny.make_model("llama")
    right = logits_of(model)
    sv.pack_weights(model)
    found = []

    def call():
        with torch.no_grad():
            found.append(logits_of(model))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for logits in found:
        torch.testing.assert_close(logits, right)


@pytest.mark.parametrize("kind", ["model", "trimmed", "head", "early exit", "cut"])
def test_packed_target_and_draft_write_the_same_text(kind):
    target, other = tiny.make_model("llama"), tiny.make_model("llama", seed=5)
    sv.enable(target)

    def draft():
        if kind == "trimmed":
            return sv.trim_vocabulary(other, ids=torch.arange(40))
        if kind == "head":
            return sv.FeatureHead(make_head(target))
        if kind == "early exit":
            return sv.EarlyExit(1, 40)
        return sv.cut_layers(target, 1) if kind == "cut" else other

    inputs = tiny.prompts(3)
    options = {"max_new_tokens": 12, "do_sample": False}
    right = target.generate(**inputs, assistant_model=draft(), **options)
    sv.pack_weights(target)
    drafter = draft()
    if kind in ("model", "trimmed", "head"):
        assert sv.pack_weights(drafter) > 0
    assert torch.equal(target.generate(**inputs, assistant_model=drafter, **options), right)
    if kind in ("model", "trimmed", "head"):
        assert sv.unpack_weights(drafter) > 0
        assert sv.unpack_weights(drafter) == 0


def test_a_trimmed_head_and_a_feature_head_pack_their_scoring_rows():
    target = tiny.make_model("llama")
    trimmed, head = sv.trim_vocabulary(target, ids=torch.arange(40)), sv.FeatureHead(make_head(target)).head
    scores = head.logits(torch.ones(1, 2, 32))
    for model, scorer in ((trimmed, trimmed.lm_head), (head, head)):
        sv.pack_weights(model)
        assert isinstance(scorer.product, PackedProduct)
    torch.testing.assert_close(head.logits(torch.ones(1, 2, 32)), scores)
    sv.unpack_weights(head)
    assert not isinstance(head.product, PackedProduct)


def test_costs_of_a_packed_model_are_costs_of_its_own(tmp_path):
    target, options = tiny.make_model("llama"), {"batch_sizes": (1,), "tokens": (1, 2), "context": 8, "repeats": 1}
    CostModel.profile(target, **options).save(tmp_path / "plain.json")
    sv.pack_weights(target)
    with pytest.warns(UserWarning, match="dtype of the target is 'torch.float32, packed'"):
        CostModel.load(tmp_path / "plain.json", {"target": target})
    costs = CostModel.profile(target, **options)
    assert costs.fingerprint.covers(Fingerprint.of({"target": target}))
    sv.unpack_weights(target)
    assert not costs.fingerprint.covers(Fingerprint.of({"target": target}))


def test_costs_are_measured_again_for_a_target_that_was_packed_since(monkeypatch):
    monkeypatch.setattr(costs_of_a_call, "LAZY_SECONDS", 0.1)
    target, draft = tiny.make_model("llama"), tiny.make_model("llama", seed=5)
    sv.enable(target)
    options = {"assistant_model": draft, "verify_length": "auto", "max_new_tokens": 3, "do_sample": False}
    for change, measures in ((None, True), (None, False), (sv.pack_weights, True), (sv.unpack_weights, False)):
        if change is not None:
            change(target)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            target.generate(**tiny.prompts(1), **options)
        assert any("measuring the models once" in str(warning.message) for warning in caught) is measures


@pytest.mark.parametrize(("block", "packed", "named"), [(2.0, False, True), (1.1, False, False), (2.0, True, False)])
def test_advice_names_packing_where_blocks_are_dear(block, packed, named):
    target = tiny.make_model("llama")
    if packed:
        sv.pack_weights(target)
    points = [Point("target", 256, 1, tokens, seconds) for tokens, seconds in ((1, 0.1), (4, 0.1 * block), (9, 0.4))]
    advice = explain(target, costs=CostModel(points, Fingerprint({}, {})), batch_sizes=(1,)).advice
    assert any("over 4 tokens costs 2.0 times" in line and "--dtype float32+packed" in line for line in advice) is named


def test_dtypes_say_whether_weights_are_packed(tmp_path):
    assert parse_dtype("float32") == (torch.float32, False)
    assert parse_dtype("bfloat16+packed") == (torch.bfloat16, True)
    for wrong in ("int8", "float32+", "+packed", "float32+packed+packed"):
        with pytest.raises(ValueError, match=r"allowed: 'float32', .*, and on a CPU '.packed' behind"):
            parse_dtype(wrong)
    tiny.make_model("llama").save_pretrained(tmp_path)
    cpu = torch.device("cpu")
    assert type(load_model(str(tmp_path), "float32+packed", device=cpu).lm_head) is PackedLinear
    assert type(load_model(str(tmp_path), "float32", device=cpu).lm_head) is nn.Linear
    trimmed = load_model(str(tmp_path), "float32+packed", "none+layers:1+trim:8", device=cpu)
    assert (
        isinstance(trimmed.lm_head.product, PackedProduct) and type(trimmed.model.layers[0].mlp.up_proj) is PackedLinear
    )
    with pytest.raises(ValueError, match="no linear layer that can be packed"):
        load_model(str(tmp_path), "float16+packed", device=cpu)


@pytest.mark.skipif(torch.bfloat16 not in packed_dtypes(), reason="no fast bfloat16 on this processor")
def test_bfloat16_is_packed_where_the_processor_has_it():
    product, x, weight = PackedProduct(), torch.randn(2, 3, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    torch.testing.assert_close(product(x, weight), nn.functional.linear(x, weight))
    assert product._kept is not None


def test_a_dtype_without_ordered_products_is_multiplied_as_usual():
    product = PackedProduct()
    assert product(torch.ones(1, 4).half(), torch.ones(2, 4).half()).tolist() == [[4, 4]]
    assert product._kept is None
