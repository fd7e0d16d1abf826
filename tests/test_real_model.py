"""SmolLM2-135M on real text: the same answers as plain generation, from a draft with q and without."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specverify as sv

pytestmark = pytest.mark.real_model

PROMPTS = [
    "Rewrite with type hints:\ndef area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return width * height * depth",
    "Name three uses of copper.",
    "Repeat this sentence twice: The quick brown fox jumps over the lazy dog.",
]


@pytest.fixture(scope="module")
def pair(smollm2):
    tokenizer = AutoTokenizer.from_pretrained(smollm2, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in PROMPTS
    ]
    return target, tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)


def half_depth(target):
    """A draft that shares the target's weights: its first layers, with its norm and head."""
    config = type(target.config).from_dict({**target.config.to_dict(), "num_hidden_layers": 24, "layer_types": None})
    draft = type(target)(config).eval()
    draft.load_state_dict(target.state_dict(), strict=False)
    return draft


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_a_batch_answers_as_plain_generation_does(pair, kind):
    target, inputs = pair
    arguments = {"max_new_tokens": 40, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    plain = target.generate(**inputs, **arguments)
    drafter = sv.PromptLookup() if kind == "lookup" else half_depth(target)
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=drafter, **arguments)
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.layout == "row cache"
    assert ours.speculation.accepted > 0
    for theirs, mine in zip(plain.scores, ours.scores, strict=True):
        ended = (mine == 0).all(dim=-1)
        assert (theirs - mine)[~ended].abs().max() < 2e-3


def test_sampling_is_reproducible_and_accepts(pair):
    target, inputs = pair
    outputs = []
    for _ in range(2):
        with sv.enabled(target):
            outputs.append(
                target.generate(
                    **inputs,
                    assistant_model=sv.PromptLookup(),
                    do_sample=True,
                    temperature=0.7,
                    max_new_tokens=30,
                    generator=torch.Generator().manual_seed(3),
                    return_dict_in_generate=True,
                )
            )
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert outputs[0].speculation.accepted > 0
