"""Drafts of several paths in whole calls: trees are scored, verified, committed and taken back like chains."""

import pytest
import tiny
import torch
from test_identity import PROCESSORS
from test_outputs import EVERYTHING, close
from test_sampling_law import check_law, model

import hf_specverify as sv
from hf_specverify.decoding.masks import TreeRegion, visible_slots
from hf_specverify.decoding.probe import make_runner
from hf_specverify.decoding.timing import Stopwatch
from hf_specverify.decoding.traits import AttentionPattern
from hf_specverify.drafting.shape import TreeShape

TREES = [name for name, info in sv.verifiers().items() if info.structure != "chain"]
FAMILIES = [
    (family, attention)
    for family in ("llama", "qwen2", "qwen3", "gpt2", "gemma3_text", "mistral", "phi3", "gpt_neox", "llama4_text")
    for attention in ("sdpa", "eager")
]


def both(target, draft, inputs, **arguments):
    arguments = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True, **arguments}
    ours = ("verification", "num_draft_paths", "num_draft_tokens")
    plain = target.generate(**inputs, **{name: value for name, value in arguments.items() if name not in ours})
    with sv.enabled(target):
        return plain, target.generate(
            **inputs, assistant_model=draft, **{"verification": "traversal", "num_draft_paths": 3, **arguments}
        )


@pytest.mark.parametrize(("family", "attention"), FAMILIES)
def test_greedy_output_is_plain_output(family, attention):
    target = tiny.make_model(family, attention=attention)
    plain, ours = both(target, tiny.near_copy(target), tiny.prompts(3), num_draft_tokens=4)
    assert torch.equal(plain.sequences, ours.sequences)
    report = ours.speculation
    assert 0 < report.accepted < report.verified
    # A second or third choice of the draft was taken somewhere, so its nodes had to be moved.
    _, chain = both(target, tiny.near_copy(target), tiny.prompts(3), num_draft_tokens=4, num_draft_paths=1)
    assert report.tokens_per_target_pass > chain.speculation.tokens_per_target_pass


@pytest.mark.parametrize("processors", PROCESSORS)
def test_processors_see_the_text_of_each_node(processors):
    target = tiny.make_model()
    plain, ours = both(target, tiny.near_copy(target), tiny.prompts(3), num_draft_tokens=4, **PROCESSORS[processors])
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.accepted > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_scores_and_states_of_committed_tokens(batch):
    target = tiny.make_model(attention="eager")
    inputs = tiny.prompts(batch)
    plain, ours = both(target, tiny.near_copy(target), inputs, **EVERYTHING, repetition_penalty=1.3)
    assert torch.equal(plain.sequences, ours.sequences)
    ends = [row.index(1) if 1 in row else len(row) - 1 for row in plain.sequences[:, 9:].tolist()]
    for row, end in enumerate(ends):
        padding = int((inputs["attention_mask"][row] == 0).sum())
        for token in range(end + 1):
            start = padding if token == 0 else 0
            close(plain.scores[token][row], ours.scores[token][row])
            close(plain.logits[token][row], ours.logits[token][row])
            for theirs, mine in zip(plain.hidden_states[token], ours.hidden_states[token], strict=True):
                close(theirs[row, start:], mine[row, start:])
            for theirs, mine in zip(plain.attentions[token], ours.attentions[token], strict=True):
                close(theirs[row, :, start:, padding:], mine[row, :, start:, padding:])


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("do_sample", [False, True])
def test_the_target_as_its_own_draft_is_always_accepted(name, do_sample):
    """Any node that stood at a wrong slot in the cache of either would give other laws, and rejections."""
    if do_sample and name not in ("traversal", "greedy_multipath_block"):
        pytest.skip("rejects some tokens even where p = q: it draws once more")
    target = tiny.make_model(**{"eos_token_id": None})
    torch.manual_seed(5)
    paths = 1 if do_sample and name == "greedy_multipath_block" else 3
    _, ours = both(
        target,
        target,
        tiny.prompts(3),
        num_draft_tokens=3,
        num_draft_paths=paths,
        verification=name,
        do_sample=do_sample,
    )
    assert set(ours.speculation.steps[0].accepted) == {3}
    assert ours.speculation.acceptance_rate == 1


SLOW = pytest.mark.slow
DRAFTERS = {name: lambda: model(8) for name in TREES} | {
    "traversal, top-k": lambda: sv.DraftModel(model(8), drawing="deterministic"),
    "traversal, without replacement": lambda: sv.DraftModel(model(8), drawing="without_replacement", branching=(2, 2)),
    "multi_round_without_replacement, top-k": lambda: sv.DraftModel(
        model(8), drawing="deterministic", branching=(3, 2)
    ),
    "multi_round_without_replacement, independent": lambda: sv.DraftModel(model(8), drawing="independent"),
}


@pytest.mark.parametrize("name", [name if name == "traversal" else pytest.param(name, marks=SLOW) for name in DRAFTERS])
def test_a_batch_of_rows_of_different_length_has_the_target_s_law(name):
    drafter = DRAFTERS[name]()
    branches = isinstance(drafter, sv.DraftModel) and drafter.branching
    check_law(model(7), drafter, {}, None, verification=name.split(",")[0], num_draft_paths=1 if branches else 2)


@pytest.mark.slow
def test_processors_while_sampling_trees():
    check_law(model(7), model(8), {"temperature": 0.7, "top_k": 3}, None, verification="traversal", num_draft_paths=2)


@pytest.mark.parametrize("name", ["block", "hierarchical"])
def test_chains_with_other_verifiers(name):
    check_law(model(7), model(8), {}, None, verification=name)


def test_history_of_nodes_in_the_draft():
    """A penalty on both sides: q is what a node was drawn from, whatever its own text."""
    target = tiny.make_model(**{"eos_token_id": None})
    torch.manual_seed(5)
    _, ours = both(target, target, tiny.prompts(2), do_sample=True, repetition_penalty=1.5, no_repeat_ngram_size=2)
    assert ours.speculation.acceptance_rate == 1


@pytest.mark.parametrize("family", ["bloom", "gpt_neo"])
@pytest.mark.filterwarnings("ignore:.*slower layout")
def test_layouts_without_trees_refuse_them(family):
    target = tiny.make_model(family, attention="eager")
    with sv.enabled(target), pytest.raises(ValueError, match=r"num_draft_paths=2.*layout"):
        target.generate(
            **tiny.prompts(1), assistant_model=tiny.near_copy(target), num_draft_paths=2, verification="naive"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_draft_paths": 2, "verification": "token"}, "num_draft_paths=2.*'token' takes single chains"),
        ({"num_draft_paths": 2, "verification": "naive", "assistant_model": sv.PromptLookup()}, "drafts one path"),
        ({"verification": "token", "branching": (2,)}, "'token' takes single chains"),
        ({"verification": "k_seq", "branching": (2,), "drawing": "without_replacement"}, "not made for without_repl"),
        ({"verification": "naive", "branching": (2,), "drawing": "independent"}, "branch at the root only"),
        ({"verification": "naive", "branching": (2,), "num_draft_paths": 2}, "says it already"),
        ({"branching": (0,)}, "branching"),
        ({"drawing": "greedy"}, "drawing='greedy'"),
    ],
)
def test_what_is_refused(options, message):
    target = tiny.make_model()
    drawing = {name: options.pop(name) for name in ("drawing", "branching") if name in options}
    with sv.enabled(target), pytest.raises(ValueError, match=message):
        draft = options.pop("assistant_model", None) or sv.DraftModel(tiny.near_copy(target), **drawing)
        target.generate(**tiny.prompts(1), assistant_model=draft, do_sample=True, max_new_tokens=4, **options)


def test_equal_prefixes_are_scored_once():
    """A draft that is sure of itself draws the same path three times: one node per depth."""
    target = tiny.make_model()
    torch.manual_seed(0)
    _, ours = both(target, target, tiny.prompts(2), do_sample=True, temperature=0.01, num_draft_tokens=3)
    step = ours.speculation.steps[0]
    assert step.depths == step.verified == (3, 3)


def test_tree_shape():
    shape = TreeShape((2, 1, 2))
    assert (shape.levels, shape.walks, shape.offset(2)) == ([2, 2, 4], 4, 4)
    assert [shape.walk(number, 3) for number in range(4)] == [[0, 2, 4], [0, 2, 5], [1, 3, 6], [1, 3, 7]]
    region = shape.region(2, 1, torch.device("cpu"))
    assert region.depths.tolist() == [[0, 0, 1, 1, 2, 2, 2, 2]]
    seen = [row.nonzero().flatten().tolist() for row in region.visible[0]]
    assert seen == [[0, 2, 4], [0, 2, 5], [1, 3, 6], [1, 3, 7]]


def test_windows_count_places_and_not_slots():
    """Two branches behind three tokens, window 3: a node sees two tokens before it in its own text."""
    region = TreeRegion(
        torch.tensor([[0, 1, 1, 2]]), torch.tensor([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]]).bool()
    )
    mask = visible_slots(torch.ones(1, 3).bool(), torch.tensor([3]), 4, 7, AttentionPattern(window=3), region)
    seen = [row.nonzero().flatten().tolist() for row in mask[0]]
    assert seen == [[1, 2, 3], [2, 3, 4], [2, 3, 5], [3, 5, 6]]


def fed_tokens(target):
    """Count the tokens of every forward."""
    counts = []
    target.get_input_embeddings().register_forward_hook(lambda _, inputs, __: counts.append(inputs[0].numel()))
    return counts


@pytest.mark.parametrize("paths", [1, 3])
def test_packed_scoring_feeds_no_filler_and_changes_nothing(paths, monkeypatch):
    target = tiny.make_model(**{"eos_token_id": None})
    inputs = tiny.prompts(3)
    draft = sv.PromptLookup() if paths == 1 else tiny.near_copy(target)
    monkeypatch.setattr("hf_specverify.decoding.row_runner.PACK_BELOW", 1.0)
    name = "token" if paths == 1 else "traversal"
    both(target, draft, inputs, verification=name, num_draft_paths=paths)  # the probe has its own forwards
    counts = fed_tokens(target)
    with sv.enabled(target):
        ours = target.generate(
            **inputs,
            assistant_model=draft,
            verification=name,
            num_draft_paths=paths,
            num_draft_tokens=4,
            max_new_tokens=40,
            do_sample=False,
            return_dict_in_generate=True,
            output_hidden_states=True,
        )
    plain = target.generate(
        **inputs, max_new_tokens=40, do_sample=False, return_dict_in_generate=True, output_hidden_states=True
    )
    assert torch.equal(plain.sequences, ours.sequences)
    steps = ours.speculation.steps
    wanted = [len(step.rows) + sum(step.verified) for step in steps]
    # The prompt goes with the first block of chains, and before the first block of trees.
    scored = counts[1 : len(steps)] if paths == 1 else counts[2 : len(steps) + 1]
    assert scored == wanted[1:]
    assert any(len(set(step.verified)) > 1 for step in steps), "some step must have rows of different length"
    for theirs, mine in zip(plain.hidden_states[5], ours.hidden_states[5], strict=True):
        close(theirs, mine)


def test_packing_is_found_possible_with_sdpa_only():
    for attention, packs in (("sdpa", True), ("eager", False)):
        runner = make_runner(tiny.make_model(attention=attention), Stopwatch(), "target")
        assert (runner.takes_trees, runner.packs) == (True, packs)


def test_prompts_of_one_token_with_packed_first_blocks(monkeypatch):
    """Nothing is cached yet when the first packed forward comes, so the cache must know the batch by itself."""
    monkeypatch.setattr("hf_specverify.decoding.row_runner.PACK_BELOW", 1.0)
    target = tiny.make_model()
    inputs = {"input_ids": torch.full((3, 1), 2)}
    for paths in (1, 3):
        plain, ours = both(target, tiny.near_copy(target), inputs, num_draft_paths=paths)
        assert torch.equal(plain.sequences, ours.sequences)
    torch.manual_seed(0)
    _, ours = both(target, target, inputs, do_sample=True, temperature=0.5)
    assert ours.speculation.acceptance_rate == 1


@pytest.mark.parametrize("family", ["bloom", "gpt_neo"])
@pytest.mark.filterwarnings("ignore:.*slower layout")
def test_branching_is_refused_where_the_target_has_no_trees(family):
    target = tiny.make_model(family, attention="eager")
    draft = sv.DraftModel(tiny.make_model(), branching=(2, 1))
    with sv.enabled(target), pytest.raises(ValueError, match=r"branching=\(2, 1\).*without trees"):
        target.generate(**tiny.prompts(1), assistant_model=draft, verification="naive", max_new_tokens=8)


def test_a_deterministic_draft_of_one_path_draws_nothing():
    drafts = []
    target = tiny.make_model()
    with pytest.MonkeyPatch.context() as patch:
        from hf_specverify.drafting.model_chains import ModelSession

        honest = ModelSession.propose
        patch.setattr(ModelSession, "propose", lambda *a: drafts.append(honest(*a)) or drafts[-1])
        with sv.enabled(target):
            draft = sv.DraftModel(tiny.near_copy(target), drawing="deterministic")
            target.generate(**tiny.prompts(2), assistant_model=draft, do_sample=True, max_new_tokens=8)
            draft = sv.DraftModel(tiny.near_copy(target), drawing="independent")
            with pytest.raises(ValueError, match="draft_temperature=0: drawing='independent'"):
                target.generate(**tiny.prompts(2), assistant_model=draft, do_sample=True, draft_temperature=0)
    assert drafts and all(batch.q is None for batch in drafts)


def test_q_is_float32_whatever_the_default_is():
    """A law that is kept in fewer bits than it was drawn from is another law."""
    target = tiny.make_model()
    draft = tiny.near_copy(target)
    torch.set_default_dtype(torch.bfloat16)
    try:
        from hf_specverify.drafting.model_chains import ModelSession

        kinds = []
        honest = ModelSession.propose
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                ModelSession, "propose", lambda *a: kinds.append(honest(*a)) or kinds[-1]
            )  # fmt: skip
            with sv.enabled(target):
                target.generate(**tiny.prompts(2), assistant_model=draft, do_sample=True, max_new_tokens=6)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {batch.q.dtype for batch in kinds if batch.q is not None} == {torch.float32}


def test_attention_that_takes_positions_from_its_cache_is_refused_where_it_matters():
    tuned = {"attn_temperature_tuning": True, "no_rope_layers": [0, 1]}
    for floor, fits in ((8192, True), (10, False)):
        target = tiny.make_model("llama4_text", floor_scale=floor, **tuned)
        with sv.enabled(target):
            arguments = {**tiny.prompts(1), "assistant_model": sv.PromptLookup(), "max_new_tokens": 8}
            if fits:
                target.generate(**arguments)
            else:
                with pytest.raises(ValueError, match="attention temperature tuning"):
                    target.generate(**arguments)
