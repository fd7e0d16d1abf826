"""Models on two devices; `test_devices.py` runs this in a process of its own, since the second device stays."""

import copy

import pytest
import tiny
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import send_to_device
from elsewhere import ELSEWHERE, PlainAttention, move

import hf_specverify as sv
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.cost_points import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

TARGET = tiny.make_model(eos_token_id=None)
DRAFT, COMPANION = tiny.near_copy(TARGET), tiny.near_copy(TARGET, seed=4)
SPLIT = {
    "model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": ELSEWHERE,
    "model.norm": ELSEWHERE, "lm_head": ELSEWHERE,
}  # fmt: skip
TURNED = {name: "cpu" if device == ELSEWHERE else ELSEWHERE for name, device in SPLIT.items()}
COSTS = CostModel(
    [
        Point(role, 16, rows, rows * tokens, base + 0.05 * rows * tokens)
        for role, base in (("target", 1.0), ("draft", 0.05), ("companion", 0.05))
        for rows in (1, 3)
        for tokens in (1, 2, 4, 8)
    ],
    Fingerprint.of({}),
)


def table(name):
    signal = torch.linspace(0, 1, 2000)
    return CalibrationTable.fit({name: signal}, signal.clone())


@pytest.fixture(autouse=True)
def _attention():
    with PlainAttention():
        yield


def elsewhere(model):
    return move(copy.deepcopy(model))


class Moving(ModelHook):
    """Takes a module's inputs to its device, as Accelerate's hooks do for `device_map` (caches stay where they are)."""

    def __init__(self, device, skip_keys):
        self.device, self.skip_keys = device, skip_keys

    def pre_forward(self, module, *args, **kwargs):
        return send_to_device(args, self.device), send_to_device(kwargs, self.device, skip_keys=self.skip_keys)


def split(model, device_map):
    model = copy.deepcopy(model)
    for name, device in device_map.items():
        module = model.get_submodule(name)
        if device == ELSEWHERE:
            move(module)
        add_hook_to_module(module, Moving(device, list(model._skip_keys_device_placement)))
    return model


def generate(target, draft, device="cpu", **options):
    torch.manual_seed(5)
    inputs = {name: value.to(device) for name, value in tiny.prompts().items()}
    given = {"max_new_tokens": 10, "do_sample": True, "top_k": 0, "num_draft_tokens": 4, **options}
    with sv.enabled(target):
        out = target.generate(**inputs, assistant_model=draft, return_dict_in_generate=True, **given)
    assert out.sequences.device == torch.device(device)
    return out


SAMPLING = {
    "a chain": {"output_scores": True, "output_hidden_states": True},
    "a tree": {"verification": "traversal", "num_draft_paths": 2},
    "cuts": {"verify_length": "goodput", "calibration": table("q"), "costs": COSTS},
}
PLACES = {
    "draft elsewhere": (lambda: copy.deepcopy(TARGET), "cpu", lambda: elsewhere(DRAFT)),
    "target elsewhere": (lambda: elsewhere(TARGET), ELSEWHERE, lambda: DRAFT),
    "split target": (lambda: split(TARGET, SPLIT), "cpu", lambda: DRAFT),
    "split target, draft elsewhere": (lambda: split(TARGET, TURNED), ELSEWHERE, lambda: elsewhere(DRAFT)),
}


@pytest.mark.parametrize("place", PLACES)
def test_sampled_text_is_that_of_one_device(place):
    target, device, draft = PLACES[place]
    target, draft = target(), draft()
    for name, options in SAMPLING.items():
        one = generate(copy.deepcopy(TARGET), DRAFT, **options)
        two = generate(target, draft, device, **options)
        assert two.sequences.cpu().tolist() == one.sequences.tolist(), name
        assert two.speculation.accepted == one.speculation.accepted > 0, name


@pytest.mark.parametrize("place", ["draft elsewhere", "split target, draft elsewhere"])
def test_greedy_text_is_that_of_one_device(place):
    """Drafts on another device do without the processors that look at the text, so they are not the same drafts."""
    target, device, draft = PLACES[place]
    options = {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "verify_length": "auto"}
    one = generate(copy.deepcopy(TARGET), DRAFT, costs=COSTS, **options)
    two = generate(target(), draft(), device, costs=COSTS, **options)
    assert two.sequences.cpu().tolist() == one.sequences.tolist()


def test_a_companion_elsewhere():
    options = {"verify_length": "goodput", "calibration": table("S"), "costs": COSTS}
    one = generate(copy.deepcopy(TARGET), DRAFT, companion_model=COMPANION, **options)
    two = generate(copy.deepcopy(TARGET), DRAFT, companion_model=elsewhere(COMPANION), **options)
    three = generate(elsewhere(TARGET), elsewhere(DRAFT), ELSEWHERE, companion_model=COMPANION, **options)
    assert one.sequences.tolist() == two.sequences.tolist() == three.sequences.cpu().tolist()


def test_prompt_lookup_for_a_target_elsewhere():
    one = generate(copy.deepcopy(TARGET), sv.PromptLookup(1), do_sample=False)
    two = generate(elsewhere(TARGET), sv.PromptLookup(1), ELSEWHERE, do_sample=False)
    assert one.sequences.tolist() == two.sequences.cpu().tolist()


def test_a_calibration_over_two_devices():
    def calibrate(target, draft, companion, device):
        torch.manual_seed(0)
        inputs = {name: value.to(device) for name, value in tiny.prompts().items()}
        options = {"max_new_tokens": 10, "do_sample": True, "top_k": 0}
        return sv.calibrate(target, draft, [inputs], companion_model=companion, sets=[("q", "S")], **options)

    one = calibrate(copy.deepcopy(TARGET), DRAFT, COMPANION, "cpu")
    two = calibrate(elsewhere(TARGET), DRAFT, elsewhere(COMPANION), ELSEWHERE)
    assert torch.equal(one.number, two.number)
    assert torch.equal(one.outcome, two.outcome)


def test_the_second_device_notices_a_missing_move():
    with pytest.raises(RuntimeError, match="one device"):
        elsewhere(TARGET)(tiny.prompts()["input_ids"])
