"""Which models a calibration is of: fingerprints, refusals and warnings that name the field, tables by name."""

import copy
import warnings
from dataclasses import replace
from weakref import WeakKeyDictionary

import pytest
import tiny
import torch
from hub_tables import full_table, small_costs
from tokenizing import byte_tokenizer, word_tokenizer

import hf_specverify as sv
from hf_specverify.hub import shipped
from hf_specverify.hub.comparing import check_models, compare_models, differences
from hf_specverify.hub.identifying import identify
from hf_specverify.hub.shipped import find_table, shipped_tables
from hf_specverify.hub.vocabularies import tokenizer_hashes, vocabulary_hash_of
from hf_specverify.hub.weights import weights_hash
from hf_specverify.scheduling import CalibrationTable, CostModel, costs_of_a_call
from hf_specverify.scheduling.fingerprint import Fingerprint


@pytest.fixture(scope="module")
def models():
    target = tiny.make_model()
    return {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=5)}


@pytest.fixture(scope="module")
def table(models):
    return full_table(**models)


def test_weights_have_one_hash_in_both_precisions(models):
    """Rounding to bfloat16 is what loading in bfloat16 does; and back again it changes nothing."""
    model = models["target"]
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    assert weights_hash(rounded) == weights_hash(model)
    assert weights_hash(copy.deepcopy(rounded).float()) == weights_hash(model)
    assert weights_hash(models["draft"]) != weights_hash(model)
    assert weights_hash(sv.cut_layers(model, 1)) != weights_hash(model)
    changed = copy.deepcopy(model)
    changed.model.norm.weight.data[0] += 0.5
    assert weights_hash(changed) != weights_hash(model)
    empty = copy.deepcopy(model)
    empty.lm_head.to("meta")
    assert weights_hash(empty) is None


def test_quantised_weights_keep_their_hash_when_they_are_packed(tmp_path):
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    tiny.make_model(hidden_size=64, intermediate_size=64).save_pretrained(tmp_path)
    form = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    packed = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=form, device_map="cpu")
    before = identify(packed)
    packed(torch.tensor([[5, 6, 7]]))
    again = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=form, device_map="cpu")
    again(torch.tensor([[5, 6, 7]]))
    assert (before.quantization, before.weights_sha256) == ("nf4", identify(again).weights_sha256)
    assert list(differences(before, identify(packed))) == []
    dense = identify(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert dense.quantization is None
    assert ("quantization", False) in list(differences(before, dense))
    assert not any(refused for _, refused in differences(before, dense))


def test_tokenizers_are_compared_as_they_are_not_as_they_were_called():
    tokenizer = byte_tokenizer()
    before = tokenizer_hashes(byte_tokenizer())
    tokenizer(["a", "long text"], padding=True, truncation=True, max_length=3)
    assert tokenizer_hashes(tokenizer) == before
    assert tokenizer_hashes(word_tokenizer(64))[0] != tokenizer_hashes(word_tokenizer(64, shift=1))[0]
    tokenizer.add_tokens(["<more>"])
    assert tokenizer_hashes(tokenizer)[0] != before[0]


def test_the_vocabulary_is_found_beside_the_weights(tmp_path):
    from transformers import AutoModelForCausalLM

    tokenizer = byte_tokenizer()
    tiny.make_model(vocabulary=259).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert vocabulary_hash_of(model) == tokenizer_hashes(tokenizer)[0]
    found = identify(model)
    assert found.id is None  # a folder is no name
    assert str(tmp_path) not in str(found)
    assert identify(model, tokenizer).tokenizer_sha256 is not None


def test_the_same_models_pass_in_silence(table, models):
    assert compare_models(table, models) == ()
    assert compare_models(table, {}) == ()


def changed(table, role, **fields):
    return replace(table, origin=replace(table.origin, **{role: replace(getattr(table.origin, role), **fields)}))


REFUSED = {
    "target.vocab_size is 99 in the calibration, and here it is 64": ("target", {"vocab_size": 99}),
    "draft.architecture is 'Other'": ("draft", {"architecture": "Other"}),
    "companion.weights_sha256 is 000000000000…": ("companion", {"weights_sha256": "0" * 64}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_models_are_refused_by_field(message, table, models):
    role, fields = REFUSED[message]
    with pytest.raises(ValueError, match=f"calibration: {message}"):
        check_models(changed(table, role, **fields), models)
    check_models(changed(table, role, **fields), {name: model for name, model in models.items() if name != role})


def named(model, id, revision):
    model = copy.copy(model)
    model.config = copy.deepcopy(model.config)
    model.config._name_or_path, model.config._commit_hash = id, revision
    return model


def test_revisions_are_compared_where_the_names_are_the_same(table, models):
    here = {"target": named(models["target"], "them/small", "b" * 40)}
    recorded = {"id": "them/small", "revision": "a" * 40}
    with pytest.raises(ValueError, match=r"target\.revision is 'aaaa.*, and here it is 'bbbb"):
        check_models(changed(table, "target", **recorded), here)
    check_models(changed(table, "target", **{**recorded, "revision": None}), here)
    check_models(changed(table, "target", **{**recorded, "revision": "b" * 40}), here)
    # Another name for the same weights is fine; where the weights can't be compared it is not.
    check_models(changed(table, "target", **{**recorded, "id": "me/copy"}), here)
    with pytest.raises(ValueError, match=r"target\.id is 'me/copy' in the calibration, and here it is 'them/small'"):
        check_models(changed(table, "target", **{**recorded, "id": "me/copy", "weights_sha256": None}), here)


def test_other_vocabularies_are_refused(table, models):
    one, other = word_tokenizer(64), word_tokenizer(64, shift=1)
    of_one = replace(table, origin=replace(table.origin, target=identify(models["target"], one)))
    check_models(of_one, models, {"target": one})
    check_models(of_one, models)  # not known
    with pytest.raises(ValueError, match=r"target\.vocabulary_sha256"):
        check_models(of_one, models, {"target": other})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "cuda"}, "draft.device is 'cuda' in the calibration, and here it is 'cpu'"),
        ({"dtype": "bfloat16"}, "draft.dtype is 'bfloat16'"),
        ({"quantization": "int8", "weights_sha256": "0" * 64}, "draft.quantization is 'int8'"),
        ({"dtype": "float16", "weights_sha256": "0" * 64}, "draft.dtype is 'float16'"),
    ],
)
def test_another_form_is_warned_of(fields, message, table, models):
    with pytest.warns(UserWarning, match=message) as caught:
        check_models(changed(table, "draft", **fields), models)
    assert len(caught) == 1


def test_a_companion_that_is_not_asked_is_not_compared(table, models):
    others = models | {"companion": models["draft"]}
    with pytest.raises(ValueError, match=r"companion\.weights_sha256"):
        check_models(table, others)
    check_models(table.marginal(["q"]), others)


def test_a_table_with_a_draft_needs_one(table, models):
    with pytest.raises(ValueError, match="made with a draft, a local LlamaForCausalLM"):
        check_models(table, models | {"draft": None})


def generate(models, **options):
    options = {"verify_length": "goodput", "costs": small_costs(models), **options}
    with sv.enabled(models["target"]):
        return models["target"].generate(
            **tiny.prompts(2), assistant_model=models["draft"], companion_model=models.get("companion"),
            max_new_tokens=8, do_sample=False, num_draft_tokens=3, **options,
        )  # fmt: skip


def test_generate_checks_the_table(table, models, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        generate(models, calibration=table)
    changed(table, "draft", device="cuda").save_pretrained(tmp_path / "warns")
    changed(table, "target", vocab_size=99).save_pretrained(tmp_path / "other")
    with pytest.warns(UserWarning, match=r"draft\.device"):
        generate(models, calibration=str(tmp_path / "warns"))
    with pytest.raises(ValueError, match=r"target\.vocab_size"):
        generate(models, calibration=tmp_path / "other")
    with pytest.raises(ValueError, match=r"draft\.weights_sha256"):
        generate(models | {"draft": models["companion"]}, calibration=table)


def test_calibrate_says_which_models_it_saw(models):
    found = sv.calibrate(
        models["target"], models["draft"], [tiny.prompts(2)], companion_model=models["companion"], num_draft_tokens=3,
        max_new_tokens=12, do_sample=True, temperature=0.7, top_k=0,
    )  # fmt: skip
    origin = found.origin
    assert origin.target == identify(models["target"])
    assert (origin.draft.weights_sha256, origin.companion.weights_sha256) == (
        weights_hash(models["draft"]), weights_hash(models["companion"]),
    )  # fmt: skip
    assert origin.sampling == {"max_new_tokens": 12, "do_sample": True, "temperature": 0.7, "top_k": 0}
    assert origin.drafting["num_draft_tokens"] == 3
    assert origin.versions["torch"] == torch.__version__
    generate(models, calibration=found)
    lookup = sv.calibrate(models["target"], sv.PromptLookup(3), [tiny.prompts(2)], max_new_tokens=30, do_sample=False)
    assert lookup.origin.draft is None
    assert lookup.origin.drafting["drafter"] == "PromptLookup"
    assert lookup.origin.drafting["max_matching_ngram_size"] == 3


def test_a_table_of_drafts_without_a_model_is_not_one_of_a_draft_model(models):
    lookup = sv.calibrate(
        models["target"], sv.PromptLookup(1), [tiny.prompts(2)], num_draft_tokens=3, max_new_tokens=12, do_sample=False
    )
    check_models(lookup, {"target": models["target"], "draft": None})
    with pytest.raises(ValueError, match="made with drafts of PromptLookup, which has no draft model"):
        check_models(lookup, {"target": models["target"], "draft": models["draft"]})


@pytest.fixture
def shelf(table, models, tmp_path, monkeypatch):
    """Shipped tables: of these models for two kinds of text, and of others."""
    monkeypatch.setattr(shipped, "PLACES", (tmp_path / "absent", tmp_path / "tables"))
    table.save_pretrained(tmp_path / "tables" / "ours" / "chat")
    changed(table, "draft", weights_sha256="0" * 64).save_pretrained(tmp_path / "tables" / "theirs" / "chat")
    table.save_pretrained(tmp_path / "tables" / "ours" / "code")
    table.marginal(["q"]).save_pretrained(tmp_path / "tables" / "ours" / "own" / "code")
    return tmp_path


def test_shipped_tables_are_found_by_name_and_fingerprint(shelf, table, models):
    assert [found.name for found in shipped_tables()] == ["ours/chat", "ours/code", "ours/own/code", "theirs/chat"]
    assert find_table("chat", models).origin.draft == table.origin.draft
    assert find_table("theirs/chat", {}).origin.draft.weights_sha256 == "0" * 64
    with pytest.raises(ValueError, match=r"none of that name.*theirs/chat.*draft\.weights_sha256"):
        find_table("theirs/chat", models)
    assert find_table("code", models).names == table.names  # it asks the companion that is there
    assert find_table("code", models | {"companion": None}).names == ("q",)
    table.marginal(["q"]).save_pretrained(shelf / "tables" / "more" / "code")
    with pytest.raises(ValueError, match="means several tables; allowed: 'more/code', 'ours/own/code'"):
        find_table("code", models | {"companion": None})
    assert find_table("ours/own/code", models).names == ("q",)
    with pytest.raises(ValueError, match=r"user/name on the Hub.*\(more/code, ours/chat"):
        find_table("maths", models)
    assert len(generate(models, calibration="chat")) == 2


@pytest.mark.parametrize("name", ["chat", "ours/chat", "folder"])
def test_costs_beside_a_calibration_are_used_where_they_fit(name, shelf, models, monkeypatch):
    """Those of a folder and of a shipped table; where they are of another machine the models are measured."""
    folder = shelf / "tables" / "ours" / "chat"
    measured = []

    def profile(*arguments, **options):
        measured.append(arguments)
        return small_costs(models)

    monkeypatch.setattr(CostModel, "profile", profile)
    monkeypatch.setattr(costs_of_a_call, "_MEASURED", WeakKeyDictionary())
    costs = small_costs(models)
    costs.save(folder / "cost_table.json")
    calibration = str(folder) if name == "folder" else name
    for how in ("goodput", "auto"):
        generate(models, calibration=calibration, verify_length=how, costs=None)
    assert not measured
    elsewhere = {**costs.fingerprint.machine, "threads": 99}
    CostModel(costs.points, Fingerprint(elsewhere, costs.fingerprint.models)).save(folder / "cost_table.json")
    with pytest.warns(UserWarning, match="costs=None: measuring"):
        generate(models, calibration=calibration, costs=None)
    assert len(measured) == 1


def test_costs_that_are_given_come_before_those_beside_a_calibration(shelf, models):
    folder = shelf / "tables" / "ours" / "chat"
    small_costs(models).save(folder / "cost_table.json")
    only_target = small_costs({"target": models["target"]})
    with pytest.raises(ValueError, match="need the companion"):
        generate(models, calibration="chat", costs=only_target)


def test_of_several_tables_that_fit_one_without_a_warning_is_taken(shelf, table, models):
    changed(table, "draft", dtype="bfloat16").save_pretrained(shelf / "tables" / "rounded" / "chat")
    assert find_table("chat", models).origin.draft.dtype == "float32"


def test_a_folder_is_read_again_where_it_has_changed(tmp_path, table):
    table.save_pretrained(tmp_path)
    first = find_table(tmp_path, {})
    assert find_table(str(tmp_path), {}) is first
    table.marginal(["q"]).save_pretrained(tmp_path)
    assert find_table(tmp_path, {}).names == ("q",)
    assert isinstance(first, CalibrationTable)


def test_shipped_tables_of_this_installation_can_be_read():
    for found in shipped_tables():
        assert found.table.origin.models, found.name
        assert (found.folder / "README.md").is_file(), found.name
