"""Models on two devices; `test_devices.py` runs this in a process of its own, since the second device stays."""

import copy

import pytest
import tiny
import torch
from accelerate import dispatch_model
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


def split(model, device_map):
    return dispatch_model(
        copy.deepcopy(model), device_map, force_hooks=True, skip_keys=model._skip_keys_device_placement
    )


def generate(target, draft, device="cpu", **options):
    torch.manual_seed(5)
    inputs = {name: value.to(device) for name, value in tiny.prompts().items()}
    given = {"max_new_tokens": 14, "do_sample": True, "top_k": 0, "num_draft_tokens": 4, **options}
    with sv.enabled(target):
        out = target.generate(**inputs, assistant_model=draft, return_dict_in_generate=True, **given)
    assert out.sequences.device == torch.device(device)
    return out


OPTIONS = {
    "sampling": {},
    "greedy": {"do_sample": False},
    "block": {"verification": "block"},
    "a tree": {"verification": "traversal", "num_draft_paths": 2},
    "paths": {"verification": "greedy_multipath_block", "num_draft_paths": 2},
    "processors": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "top_k": 20},
    "outputs": {"output_scores": True, "output_hidden_states": True},
    "cuts": {"verify_length": "goodput", "calibration": table("q"), "costs": COSTS},
    "stops": {"draft_length": "goodput", "calibration": table("max_q"), "costs": COSTS},
    "auto": {"verify_length": "auto", "costs": COSTS},
    "lossy": {"verification": "lenience"},
}


@pytest.mark.filterwarnings("ignore:.*is lossy")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    ("target", "device", "draft"),
    [
        (lambda: copy.deepcopy(TARGET), "cpu", lambda: elsewhere(DRAFT)),
        (lambda: elsewhere(TARGET), ELSEWHERE, lambda: DRAFT),
        (lambda: split(TARGET, SPLIT), "cpu", lambda: DRAFT),
        (lambda: split(TARGET, TURNED), ELSEWHERE, lambda: elsewhere(DRAFT)),
    ],
    ids=["draft elsewhere", "target elsewhere", "split target", "split target, draft elsewhere"],
)
def test_the_text_is_that_of_one_device(target, device, draft, options):
    one = generate(copy.deepcopy(TARGET), DRAFT, **options)
    two = generate(target(), draft(), device, **options)
    assert two.sequences.cpu().tolist() == one.sequences.tolist()
    assert two.speculation.accepted == one.speculation.accepted > 0


@pytest.mark.parametrize("verify", ["goodput", "auto"])
def test_a_companion_elsewhere(verify):
    options = {"verify_length": verify, "calibration": table("S"), "costs": COSTS}
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
        options = {"max_new_tokens": 20, "do_sample": True, "top_k": 0}
        return sv.calibrate(target, draft, [inputs], companion_model=companion, sets=[("q", "S")], **options)

    one = calibrate(copy.deepcopy(TARGET), DRAFT, COMPANION, "cpu")
    two = calibrate(elsewhere(TARGET), DRAFT, elsewhere(COMPANION), ELSEWHERE)
    assert torch.equal(one.number, two.number)
    assert torch.equal(one.outcome, two.outcome)


def test_the_second_device_notices_a_missing_move():
    with pytest.raises(RuntimeError, match="one device"):
        elsewhere(TARGET)(tiny.prompts()["input_ids"])
