"""What we rely on in Transformers: if a release changes it, these fail first and say what."""

import inspect

import pytest
import tiny
import torch
from transformers import GenerationMixin
from transformers.cache_utils import Cache, CacheLayerMixin

from hf_specverify.decoding.traits import model_traits


def test_a_four_dimensional_mask_passes_through_untouched():
    for attention in ("sdpa", "eager"):
        model = tiny.make_model(attention=attention)
        ids = torch.tensor([[5, 6, 7, 8]])
        causal = torch.ones(4, 4).tril().bool()
        causal[3, 1] = False
        mask = causal[None, None]
        if attention == "eager":
            mask = torch.zeros(1, 1, 4, 4).masked_fill(~mask, torch.finfo(torch.float32).min)
        changed = model(input_ids=ids, attention_mask=mask).logits
        plain = model(input_ids=ids).logits
        assert torch.allclose(changed[:, :3], plain[:, :3], atol=1e-5)
        assert not torch.allclose(changed[:, 3], plain[:, 3], atol=1e-3)


def test_custom_generate_takes_a_callable_with_everything_prepared():
    model = tiny.make_model()
    seen = {}

    def strategy(model, input_ids, logits_processor, stopping_criteria, generation_config, flavour=None, **kwargs):
        seen.update(
            kwargs,
            rows=len(input_ids),
            flavour=flavour,
            top_k=generation_config.top_k,
            names=[type(p).__name__ for p in logits_processor],
        )
        seen["max_length"] = stopping_criteria.max_length
        return input_ids

    model.generate(
        **tiny.prompts(2),
        custom_generate=strategy,
        num_return_sequences=2,
        do_sample=True,
        top_k=7,
        max_new_tokens=5,
        flavour="x",
    )
    assert seen["rows"] == 4
    assert (seen["flavour"], seen["top_k"], seen["max_length"]) == ("x", 7, 14)
    assert "TopKLogitsWarper" in seen["names"]
    assert seen["attention_mask"].shape == (4, 9)


@pytest.mark.parametrize("name", ["assistant_model", "streamer", "tokenizer", "assistant_tokenizer", "synced_gpus"])
def test_some_arguments_never_reach_the_callable(name):
    """The reason for `enable`: if the host starts to pass them on, it can be simpler."""
    seen = {}

    def strategy(
        model,
        input_ids,
        assistant_model=None,
        streamer=None,
        tokenizer=None,
        assistant_tokenizer=None,
        synced_gpus=None,
        **kwargs,
    ):
        seen.update(locals())
        return input_ids

    class Quiet:
        def put(self, value): ...

    model = tiny.make_model()
    model.generate(
        **tiny.prompts(1),
        custom_generate=strategy,
        max_new_tokens=3,
        **{name: Quiet() if name == "streamer" else model},
    )
    assert seen[name] is None


def test_the_forward_names_its_cache():
    traits = model_traits(tiny.make_model())
    assert traits.cache_keyword in ("cache", "past_key_values")
    assert traits.takes_position_ids
    assert traits.takes_logits_to_keep


def test_logits_to_keep_takes_positions_by_row():
    model = tiny.make_model()
    ids = tiny.prompts(2)["input_ids"]
    keep = torch.tensor([[1], [4]])
    logits = model(input_ids=ids, logits_to_keep=keep).logits
    full = model(input_ids=ids).logits
    assert torch.allclose(logits[:, 0], torch.stack([full[0, 1], full[1, 4]]), atol=1e-5)


def test_the_cache_interface():
    parameters = inspect.signature(Cache.update).parameters
    assert list(parameters)[:4] == ["self", "key_states", "value_states", "layer_idx"]
    assert CacheLayerMixin.__abstractmethods__ <= {
        "lazy_initialization",
        "update",
        "get_mask_sizes",
        "get_seq_length",
        "get_max_length",
        "get_max_cache_shape",
    }
    assert "layer_class_to_replicate" in inspect.signature(Cache.__init__).parameters


def test_the_generate_signature_that_enable_follows():
    names = list(inspect.signature(GenerationMixin.generate).parameters)
    assert names[1:9] == [
        "inputs",
        "generation_config",
        "logits_processor",
        "stopping_criteria",
        "prefix_allowed_tokens_fn",
        "synced_gpus",
        "assistant_model",
        "streamer",
    ]
