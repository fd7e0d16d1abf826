"""The feature heads that come with the library: their files, and what they are worth on real text."""

import json

import pytest
import test_real_model
import torch

import hf_specverify as sv
from hf_specverify.drafting.heads import load_head
from hf_specverify.drafting.heads.shipped import shipped_heads

NAME = "smollm2-135m-instruct"
pair = test_real_model.pair  # SmolLM2 and three prompts


def test_they_are_there():
    assert NAME in shipped_heads()


@pytest.mark.parametrize("name", shipped_heads())
def test_a_head_loads_by_its_name_and_has_a_card(name):
    folder, head = shipped_heads()[name], load_head(name)
    assert head.config.target.lower().endswith(name)
    assert not head.own  # embeddings and scoring rows are the target's
    assert sum(path.stat().st_size for path in folder.iterdir()) < 16e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card and f"base_model: {head.config.target}" in card
    assert "specverify train-head" in card and "/root" not in card and "/home" not in card
    made = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    assert made["result"]["parameters"] == head.num_parameters()
    assert made["settings"]["draft_vocab_size"] == head.config.draft_vocab_size


@pytest.mark.real_model
def test_it_drafts_what_its_target_says(pair):
    target, inputs = pair
    options = {"max_new_tokens": 40, "do_sample": False, "return_dict_in_generate": True}
    plain = target.generate(**inputs, **options)
    head = sv.FeatureHead.from_pretrained(NAME, target)
    assert "expected" in head.signals
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=head, num_draft_tokens=3, **options)
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.tokens_per_target_pass > 1.2  # an untrained head: 1.0
    options["do_sample"] = True
    with sv.enabled(target):  # its own shipped calibration is found by the kind of text
        ours = target.generate(**inputs, assistant_model=head, verify_length="auto", calibration="chat", **options)
    assert ours.speculation.schedule == "auto"
