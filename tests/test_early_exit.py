"""Early exit: the target's first layers draft in its own cache, and no token passes a layer twice."""

import threading
from functools import partial

import pytest
import tiny
import torch
from test_sampling_law import check_law, model
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

import hf_specverify as sv
from hf_specverify.decoding.split_runner import ReadFirst
from hf_specverify.decoding.timing import Stopwatch
from hf_specverify.decoding.traits import model_traits
from hf_specverify.drafting import model_chains
from hf_specverify.drafting.halves import Halves
from hf_specverify.scheduling import CostModel

LAYERS = 4
DEEP = {"num_hidden_layers": LAYERS}
FAMILIES = {
    "llama": DEEP,
    "qwen2": DEEP,
    "qwen3": DEEP,
    "gemma3_text": {**DEEP, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "mistral": DEEP,
    "phi3": DEEP,
    "olmo2": DEEP,
    "gpt2": {"n_layer": LAYERS},
    "gpt_neox": DEEP,
    "cohere2": {**DEEP, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "llama4_text": {**DEEP, "layer_types": ["chunked_attention", "full_attention"] * 2},
    "mixtral": DEEP,
}
GREEDY = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True}


def deep(family="llama", **extra):
    return tiny.make_model(family, **FAMILIES[family], **extra)


def early(target, inputs, drafter, **options):
    with sv.enabled(target):
        return target.generate(**inputs, assistant_model=drafter, **{**GREEDY, **options})


@pytest.mark.parametrize(
    ("family", "attention"), [*((family, "sdpa") for family in FAMILIES), ("llama", "eager"), ("gemma3_text", "eager")]
)
def test_greedy_output_is_plain_output(family, attention):
    target, inputs = deep(family, attention=attention), tiny.prompts(3)
    plain = target.generate(**inputs, **GREEDY)
    for n in (1, 3):
        ours = early(target, inputs, sv.EarlyExit(n))
        assert torch.equal(plain.sequences, ours.sequences), n
    assert 0 < ours.speculation.accepted < ours.speculation.verified
    assert ours.speculation.drafter == "early exit after 3 layers"


def test_embeddings_that_are_scaled_are_not_scaled_twice():
    """Granite scales whatever comes in as embeddings, in its decoder's own forward."""
    torch.manual_seed(0)
    sizes = {**tiny.FAMILIES["llama"], **DEEP, "vocab_size": 64}
    config = AutoConfig.for_model("granite", embedding_multiplier=3.0, logits_scaling=2.0, **sizes)
    target, inputs = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), tiny.prompts(3)
    plain = target.generate(**inputs, **GREEDY)
    assert torch.equal(plain.sequences, early(target, inputs, sv.EarlyExit(3)).sequences)


SETTINGS = {
    "one row": {},
    "long drafts": {"num_draft_tokens": 9},
    "one draft token": {"num_draft_tokens": 1},
    "chunks": {"prefill_chunk_size": 3},
    "history": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "returns": {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
    "ends": {"eos_token_id": list(range(3, 20))},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("batch", [1, 4])
def test_options_of_generate(setting, batch):
    target, inputs = deep(), tiny.prompts(batch)
    options = {**GREEDY, **{name: value for name, value in SETTINGS[setting].items() if name != "num_draft_tokens"}}
    plain = target.generate(**inputs, **options)
    assert torch.equal(plain.sequences, early(target, inputs, sv.EarlyExit(3), **SETTINGS[setting]).sequences)


def test_a_prompt_of_one_token():
    target = deep()
    inputs = {"input_ids": torch.tensor([[5], [9]]), "attention_mask": torch.ones(2, 1, dtype=torch.long)}
    plain = target.generate(**inputs, **GREEDY)
    assert torch.equal(plain.sequences, early(target, inputs, sv.EarlyExit(2)).sequences)


def tokens_by_layer(target):
    """How many tokens pass each layer; its linear layers are those of every copy of the target."""
    counts = [0] * len(target.model.layers)

    def count(layer, module, arguments, output):
        counts[layer] += output.shape[0] * output.shape[1]

    for number, layer in enumerate(target.model.layers):
        layer.self_attn.q_proj.register_forward_hook(partial(count, number))
    return counts


@pytest.mark.parametrize("batch", [1, 3])
def test_every_token_passes_every_layer_once(batch):
    target, inputs = deep(attention="eager"), tiny.prompts(batch)
    inputs["attention_mask"][:] = 1
    drafter = sv.EarlyExit(3)
    early(target, inputs, drafter)  # the probe's forwards count too
    counts = tokens_by_layer(target)
    report = early(target, inputs, drafter, eos_token_id=None).speculation
    assert report.drafted == report.verified > 0
    scored = sum(len(step.rows) * (1 + max(step.verified)) for step in report.steps)
    assert counts == [batch * 8 + scored] * LAYERS
    # A draft of its own over the same weights reads all of it once more.
    counts[:] = [0] * LAYERS
    early(target, inputs, sv.cut_layers(target, 3), eos_token_id=None)
    assert counts[0] > 1.8 * counts[3]


def test_what_is_not_verified_is_not_read_to_its_end():
    """Where a schedule keeps the last drafts back, their states are there already."""
    target, inputs = deep(), tiny.prompts(1)
    drafter, counts = sv.EarlyExit(3), tokens_by_layer(target)
    early(target, inputs, drafter)
    costs = CostModel.profile(target, drafter.drafting_model(target), None, [1], [1, 2], [8], budget_seconds=0.1)
    table = sv.calibrate(target, drafter, [inputs], num_draft_tokens=4, max_new_tokens=24, sets=[("max_q",)])
    counts[:] = [0] * LAYERS
    plain = target.generate(**inputs, **GREEDY)
    counts[:] = [0] * LAYERS
    ours = early(target, inputs, drafter, verify_length="goodput", calibration=table, costs=costs, num_draft_tokens=4)
    report = ours.speculation
    assert torch.equal(plain.sequences, ours.sequences)
    assert 0 < report.verified < report.drafted
    read = sum(max(step.drafted[0], 1 + step.verified[0]) for step in report.steps)
    assert counts[0] == counts[2] == 8 + read
    assert counts[3] == 8 + sum(1 + step.verified[0] for step in report.steps)


@pytest.mark.parametrize("batch", [1, 3])
def test_auto_and_stopping(batch):
    target, inputs = deep(), tiny.prompts(batch)
    drafter = sv.EarlyExit(3)
    costs = CostModel.profile(
        target, drafter.drafting_model(target), None, [1, batch], [1, 2, 4], [8], budget_seconds=0.1
    )
    table = sv.calibrate(target, drafter, [inputs], num_draft_tokens=4, max_new_tokens=24, sets=[("max_q",)])
    plain = target.generate(**inputs, **GREEDY)
    for options in ({"verify_length": "auto"}, {"draft_length": "goodput", "calibration": table}):
        ours = early(target, inputs, drafter, costs=costs, **options)
        assert torch.equal(plain.sequences, ours.sequences)


def test_costs_measured_by_the_call_have_the_first_layers_as_draft(monkeypatch):
    from hf_specverify.scheduling import costs_of_a_call

    monkeypatch.setattr(costs_of_a_call, "LAZY_SECONDS", 0.1)
    seen = []
    honest = CostModel.profile
    monkeypatch.setattr(CostModel, "profile", lambda *given, **more: seen.append(given) or honest(*given, **more))
    target = deep()
    with pytest.warns(UserWarning, match="measuring the models"):
        early(target, tiny.prompts(1), sv.EarlyExit(3), verify_length="auto")
    assert seen[0][1].config.num_hidden_layers == 3


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
@pytest.mark.parametrize("packs", [False, True])
def test_logits_equal_a_fresh_forward_after_every_step(family, packs):
    target = deep(family)
    generator = torch.Generator().manual_seed(1)
    inputs = tiny.prompts(4)
    ids, valid = inputs["input_ids"], inputs["attention_mask"].bool()
    runner = ReadFirst(target, model_traits(target), Stopwatch(), "target", halves=lambda: Halves(target, 2))
    runner.packs = packs
    runner.prefill(ids[:, :-1], valid[:, :-1], valid, None)
    rows = [ids[row][valid[row]][:-1].tolist() for row in range(4)]
    for round_ in range(8):
        if round_ == 4:
            runner.select([2, 0])
            rows = [rows[2], rows[0]]
        width = 1 + round_ % 4
        counts = [width, *(1 + (row + round_) % width for row in range(1, len(rows)))]
        tokens = torch.randint(3, 64, (len(rows), width), generator=generator)
        logits = runner.forward(tokens, counts).logits
        for row, count in enumerate(counts):
            fed = tokens[row, :count].tolist()
            fresh = target(input_ids=torch.tensor([rows[row] + fed])).logits[0, -count:]
            error = (logits[row, :count] - fresh).abs().max()
            assert error < 1e-4 * float(fresh.abs().max()), (round_, row)
        kept = [counts[row] // (1 + (row + round_) % 3) for row in range(len(rows))]
        padding = [runner.lengths[row] - len(rows[row]) - counts[row] for row in range(len(rows))]
        rows = [rows[row] + tokens[row, : kept[row]].tolist() for row in range(len(rows))]
        runner.rewind([padding[row] + len(rows[row]) for row in range(len(rows))])


@pytest.mark.parametrize(
    ("ids", "temperature", "setting", "verification"),
    [
        (None, None, {}, "token"),
        (None, 0.4, {"temperature": 0.7, "top_k": 3}, "block"),
        (torch.tensor([0, 2, 3]), None, {}, "block"),
    ],
)
def test_samples_have_the_targets_law(ids, temperature, setting, verification):
    check_law(model(7), sv.EarlyExit(1, ids=ids), setting, temperature, verification=verification)


@pytest.mark.parametrize("name", [name for name, info in sv.verifiers().items() if info.lossless])
def test_every_verifier_takes_its_drafts(name):
    target, inputs = deep(), tiny.prompts(3)
    plain = target.generate(**inputs, **GREEDY)
    assert torch.equal(plain.sequences, early(target, inputs, sv.EarlyExit(3), verification=name).sequences)


def test_outputs_are_those_of_plain_generation():
    target, inputs = deep(attention="eager"), tiny.prompts(3)
    inputs["attention_mask"][:] = 1
    wanted = {"output_scores": True, "output_logits": True, "output_hidden_states": True, "output_attentions": True}
    plain = target.generate(**inputs, **GREEDY, **wanted, eos_token_id=None)
    ours = early(target, inputs, sv.EarlyExit(3), **wanted, eos_token_id=None)
    assert torch.equal(plain.sequences, ours.sequences)
    for name in ("scores", "logits"):
        for theirs, mine in zip(plain[name], ours[name], strict=True):
            torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-4)
    for name in ("hidden_states", "attentions"):
        for theirs, mine in zip(plain[name], ours[name], strict=True):
            for one, other in zip(theirs, mine, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_drafts_come_from_the_first_layers(monkeypatch):
    """Tokens and laws are those of the model that `cut_layers` makes."""
    drafts = {}
    for kind in ("exit", "cut"):
        found = drafts[kind] = []
        honest = model_chains.ModelSession.propose
        with monkeypatch.context() as patch:
            patch.setattr(
                model_chains.ModelSession,
                "propose",
                lambda *given, f=found, h=honest: f.append(h(*given)) or f[-1],
            )
            target = deep()
            drafter = sv.EarlyExit(2, keep=20) if kind == "exit" else sv.trim_vocabulary(sv.cut_layers(target, 2), 20)
            early(target, tiny.prompts(3), drafter, do_sample=True, generator=torch.Generator().manual_seed(3))
    assert len(drafts["exit"]) == len(drafts["cut"]) > 3
    for mine, theirs in zip(drafts["exit"], drafts["cut"], strict=True):
        assert torch.equal(mine.tokens, theirs.tokens)
        if mine.q is not None:
            torch.testing.assert_close(mine.q, theirs.q)
            assert int((mine.q > 0).sum(-1).max()) <= 20


def test_nothing_of_the_target_is_changed():
    target = deep()
    before = (target.config.to_dict(), target.generation_config.to_dict(), sorted(vars(target)), str(target))
    hooks = [len(module._forward_hooks) for module in target.modules()]
    layers = list(target.model.layers)
    early(target, tiny.prompts(3), sv.EarlyExit(3, keep=20))
    assert before == (target.config.to_dict(), target.generation_config.to_dict(), sorted(vars(target)), str(target))
    assert hooks == [len(module._forward_hooks) for module in target.modules()]
    assert all(old is new for old, new in zip(layers, target.model.layers, strict=True))
    assert [layer.self_attn.layer_idx for layer in target.model.layers] == list(range(LAYERS))


def test_a_target_that_was_changed_between_calls():
    """Its layers are looked up in every call; the head may lag behind, which costs acceptance only."""
    target, inputs, drafter = deep(), tiny.prompts(3), sv.EarlyExit(3, keep=40)
    early(target, inputs, drafter)
    other = tiny.make_model(seed=5, **DEEP)
    target.model.layers[1].mlp = other.model.layers[1].mlp
    plain = target.generate(**inputs, **GREEDY)
    assert torch.equal(plain.sequences, early(target, inputs, drafter).sequences)
    target.double()
    plain = target.generate(**inputs, **GREEDY)
    assert torch.equal(plain.sequences, early(target, inputs, drafter).sequences)


def test_calls_at_once_do_not_see_each_other():
    target, drafter = deep(), sv.EarlyExit(3)
    inputs = [tiny.prompts(1 + number, seed=number) for number in range(3)]
    plain = [target.generate(**each, **GREEDY).sequences for each in inputs]
    found, barrier = {}, threading.Barrier(len(inputs))

    def run(number):
        barrier.wait()
        with torch.no_grad():
            for _ in range(2):
                out = target.generate(**inputs[number], custom_generate=sv.SpeculativeDecoding(drafter), **GREEDY)
                found.setdefault(number, []).append(out.sequences)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, right in enumerate(plain):
        assert len(found[number]) == 2
        assert all(torch.equal(right, mine) for mine in found[number])


def test_a_quantised_target(tmp_path):
    pytest.importorskip("bitsandbytes")
    tiny.make_model(hidden_size=64, intermediate_size=64, **DEEP).save_pretrained(tmp_path)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    target = AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map="cpu", quantization_config=config, dtype=torch.float32
    )
    inputs = tiny.prompts(3)
    plain = target.generate(**inputs, **GREEDY)
    ours = early(target, inputs, sv.EarlyExit(3, keep=40))
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.accepted > 0


WRONG = {
    "num_layers='4'": ({"num_layers": "4"}, TypeError),
    "num_layers=True": ({"num_layers": True}, TypeError),
    "num_layers=0": ({"num_layers": 0}, ValueError),
    "keep=0": ({"num_layers": 1, "keep": 0}, ValueError),
    "keep=2.5": ({"num_layers": 1, "keep": 2.5}, TypeError),
    r"\['counts'\]: allowed.* keep=": ({"num_layers": 1, "counts": {3: 1}}, ValueError),
    r"\['ids', 'keep'\]": ({"num_layers": 1, "keep": 5, "ids": torch.tensor([3])}, ValueError),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    arguments, kind = WRONG[message]
    with pytest.raises(kind, match=message):
        sv.EarlyExit(**arguments)


def test_wrong_arguments_for_the_target():
    target = deep()
    with pytest.raises(ValueError, match="num_layers=4: allowed are integers from 1 to 3, LlamaForCausalLM has 4"):
        early(target, tiny.prompts(1), sv.EarlyExit(4))
    with pytest.raises(ValueError, match="num_draft_paths=2: early exit after 2 layers drafts one path"):
        early(target, tiny.prompts(1), sv.EarlyExit(2), num_draft_paths=2, verification="multi_round")
    with pytest.raises(ValueError, match="keep=65"):
        early(target, tiny.prompts(1), sv.EarlyExit(2, keep=65))


@pytest.mark.filterwarnings("ignore:.*slower layout")
@pytest.mark.parametrize(("family", "layout"), [("bloom", "masked holes"), ("lfm2", "row by row")])
def test_other_layouts_are_refused(family, layout):
    target = tiny.make_model(family, attention="eager")
    with pytest.raises(ValueError, match=f"EarlyExit: .*runs in the layout '{layout}'"):
        early(target, tiny.prompts(2), sv.EarlyExit(1))


def test_layers_that_need_more_than_the_states_before_them_are_refused():
    """The numbers show it: here the third layer also looks at what the first one was given."""
    target, seen = deep(), []
    target.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    target.model.layers[2].register_forward_pre_hook(lambda _, given: (given[0] + seen[-1], *given[1:]))
    with pytest.raises(ValueError, match=r"EarlyExit\(num_layers=2\): LlamaForCausalLM can't go on .*relative error"):
        early(target, tiny.prompts(2), sv.EarlyExit(2))


def test_layers_that_return_more_than_states_are_refused():
    target = deep()
    target.model.layers[1].register_forward_hook(lambda _, given, output: (output,))
    target.model.layers[2].register_forward_pre_hook(lambda _, given: given[0])
    with pytest.raises(ValueError, match="LlamaDecoderLayer give a tuple"):
        early(target, tiny.prompts(2), sv.EarlyExit(2))


@pytest.mark.real_model
def test_a_real_model_answers_as_plain_generation_does(smollm2):
    from test_real_model import PROMPTS
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    options = {**GREEDY, "max_new_tokens": 16}
    plain = target.generate(**inputs, **options)
    ours = early(target, inputs, sv.EarlyExit(24), **options)
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.accepted > 0
