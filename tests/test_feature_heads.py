"""Feature heads in whole calls: exact, and drafting what a forward over the whole text would draft."""

import pytest
import test_sampling_law
import tiny
import torch
from heads import features, make_head
from test_outputs import EVERYTHING, close
from test_sampling_law import check_law, model

import hf_specverify as sv
from hf_specverify.drafting.heads.reader import HeadReader
from hf_specverify.training.unroll import unroll

FAMILIES = ("llama", "qwen3", "gpt2", "gemma3_text", "mistral", "gpt_neox", "llama4_text")
SLOW = ("bloom", "gpt_neo", "qwen3_next")  # layouts without trees
WAYS = {
    "chain": ({}, {}),
    "paths": ({}, {"num_draft_paths": 3, "verification": "traversal"}),
    "branching": ({"branching": (2, 2)}, {"verification": "traversal"}),
    "dynamic": ({"tree": sv.DynamicTree(3, 8)}, {"verification": "traversal"}),
}


def both(target, drafter, inputs, **options):
    arguments = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True}
    theirs = {name: value for name, value in options.items() if not name.startswith("num_draft")}
    theirs.pop("verification", None)
    plain = target.generate(**inputs, **{**arguments, **theirs})
    with sv.enabled(target):
        ours = target.generate(**inputs, assistant_model=drafter, **{"num_draft_tokens": 3, **arguments, **options})
    return plain, ours


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_plain_output(family, way):
    target = tiny.make_model(family)
    made, options = WAYS[way]
    drafter = sv.FeatureHead(make_head(target, draft=32), **made)
    plain, ours = both(target, drafter, tiny.prompts(3), **options)
    assert torch.equal(plain.sequences, ours.sequences)
    report = ours.speculation
    assert report.steps[0].drafted == (0, 0, 0)  # the prompt's hidden states come with the first step
    assert sum(report.steps[1].drafted) > 0


@pytest.mark.parametrize("family", SLOW)
@pytest.mark.filterwarnings("ignore:.*slower layout")
def test_other_layouts(family):
    target = tiny.make_model(family, attention="eager")
    drafter = sv.FeatureHead(make_head(target))
    plain, ours = both(target, drafter, tiny.prompts(3))
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.drafted > 0
    # Recurrent layers round differently in blocks.
    check_drafts(target, drafter, tiny.prompts(2), tolerance=1e-2 if family == "qwen3_next" else 1e-4)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_prompts_and_prefill_in_chunks(length, chunk):
    target = tiny.make_model()
    inputs = {"input_ids": torch.arange(3, 3 + length)[None].repeat(2, 1)}
    drafter = sv.FeatureHead(make_head(target))
    plain, ours = both(target, drafter, inputs, prefill_chunk_size=chunk)
    assert torch.equal(plain.sequences, ours.sequences)
    check_drafts(target, drafter, inputs, prefill_chunk_size=chunk)


def check_drafts(target, drafter, inputs, tolerance=1e-4, **options):
    """Every logits that the reader gave are those of `unroll` over the row's whole text and what was drafted."""
    seen = []
    honest = HeadReader.catch_up, HeadReader.feed

    def catch_up(self, state):
        logits = honest[0](self, state)
        padding = [state.host_padding[row] for row in state.rows]
        texts = [
            torch.from_numpy(state.host_ids[row, pad:length].copy())
            for row, pad, length in zip(state.rows, padding, state.lengths, strict=True)
        ]
        seen.append((texts, [logits], []))
        return logits

    def feed(self, tokens):
        logits = honest[1](self, tokens)
        seen[-1][1].append(logits)
        seen[-1][2].append(tokens[:, 0].clone())
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadReader, "catch_up", catch_up)
        patch.setattr(HeadReader, "feed", feed)
        _, ours = both(target, drafter, inputs, **options)
    assert len(seen) > 3 and len(seen) < ours.speculation.target_passes
    assert len({len(text) for texts, _, _ in seen for text in texts}) > 3
    for texts, logits, tokens in seen:
        for row, text in enumerate(texts):
            drafted = torch.tensor([step[row] for step in tokens], dtype=torch.long)
            for step, wanted in enumerate(reference(target, drafter.head, text, drafted)):
                assert torch.allclose(wanted, logits[step][row][drafter.head.draft_ids], atol=tolerance, rtol=1e-4)


def reference(target, head, text, drafted):
    """By step the scores (D,) of what comes next, from forwards over the whole text."""
    seen = features(target, head, text)[:, :-1]
    place = seen.shape[1] - 1
    seen = torch.nn.functional.pad(seen, (0, 0, 0, len(drafted)))
    ids = torch.cat([text, drafted])[None, 1:]
    return [scores[0, place] for scores in unroll(head, ids, seen, len(drafted) + 1)]


@pytest.mark.parametrize("options", [{}, {"draft": 16}, {"kind": "qwen3", "norm_output": True, "fc_norm": True}])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_drafts_are_those_of_the_whole_text(family, options):
    target = tiny.make_model(family)
    check_drafts(target, sv.FeatureHead(make_head(target, **options)), tiny.prompts(3))


def test_the_check_of_drafts_would_see_a_wrong_feature(monkeypatch):
    target = tiny.make_model()
    honest = HeadReader.see
    monkeypatch.setattr(
        HeadReader, "see", lambda self, states, prompt: honest(self, [s.roll(1, dims=1) for s in states], prompt)
    )
    with pytest.raises(AssertionError):
        check_drafts(target, sv.FeatureHead(make_head(target)), tiny.prompts(2))


def test_rows_leave_at_different_steps():
    """Prompts whose answers end at different places, by an end token that comes up."""
    target = tiny.make_model()
    inputs = tiny.prompts(4)
    free = target.generate(**inputs, max_new_tokens=24, do_sample=False, eos_token_id=None)[:, 9:]
    ends = [int(free[0, 3]), int(free[1, 9])]
    plain, ours = both(target, sv.FeatureHead(make_head(target)), inputs, eos_token_id=ends)
    assert torch.equal(plain.sequences, ours.sequences)
    assert len({len(step.rows) for step in ours.speculation.steps}) > 1


@pytest.mark.parametrize("way", WAYS)
def test_scores_and_states_are_returned_as_ever(way):
    """The user's hidden states are all of them, and not only those that the head reads."""
    target = tiny.make_model(attention="eager")
    made, options = WAYS[way]
    drafter = sv.FeatureHead(make_head(target, target_layers=(2, 0)), **made)
    plain, ours = both(target, drafter, tiny.prompts(1), **EVERYTHING, eos_token_id=None, **options)
    assert torch.equal(plain.sequences, ours.sequences)
    for theirs, mine in zip(plain.hidden_states, ours.hidden_states, strict=True):
        assert len(theirs) == len(mine) == 3
        for one, other in zip(theirs, mine, strict=True):
            close(one, other)


def test_nothing_of_the_target_changes():
    target = tiny.make_model()
    before, config = {name: value.clone() for name, value in target.state_dict().items()}, target.config.to_dict()
    drafter = sv.FeatureHead(make_head(target))
    both(target, drafter, tiny.prompts(2))
    assert target.config.to_dict() == config and "generate" not in vars(target)
    assert all(torch.equal(value, target.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize(("way", "tokens", "samples"), [("chain", 4, 4000), ("dynamic", 3, 1000)])
def test_the_law_while_sampling(way, tokens, samples, monkeypatch):
    """The first step of a call has no drafts; the head scores four tokens of five."""
    monkeypatch.setattr(test_sampling_law, "TOKENS", tokens)
    monkeypatch.setattr(test_sampling_law, "SAMPLES", samples)
    target = model(7)
    made, options = WAYS[way]
    check_law(target, sv.FeatureHead(make_head(target, draft=4), **made), {}, None, **options)


@pytest.mark.parametrize(
    ("drafts", "options"), [("head", {}), ("head", {"no_repeat_ngram_size": 2}), ("model", {"repetition_penalty": 1.4})]
)
def test_dynamic_trees_are_those_of_eagle2(drafts, options):
    """Against the algorithm in plain words, one node after the other, with laws over whole texts."""
    target = tiny.make_model(**{"eos_token_id": None})
    shape = sv.DynamicTree(width=3, nodes=7)
    draft = tiny.near_copy(target)
    drafter = sv.FeatureHead(make_head(target), tree=shape) if drafts == "head" else sv.DraftModel(draft, tree=shape)
    from hf_specverify.drafting.dynamic_trees import DynamicTreeSession

    seen = []
    honest = DynamicTreeSession.propose

    def propose(self, state, lengths):
        trees = honest(self, state, lengths)
        for place, (row, length) in enumerate(zip(state.rows, state.lengths, strict=True)):
            text = torch.from_numpy(state.host_ids[row, state.host_padding[row] : length].copy())
            walks = [[int(trees.tokens[place, node]) for node in walk if node >= 0] for walk in trees.paths[place]]
            seen.append((text, lengths[place], {tuple(w[: n + 1]) for w in walks for n in range(len(w))}))
        return trees

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamicTreeSession, "propose", propose)
        plain, ours = both(target, drafter, tiny.prompts(2), verification="traversal", max_new_tokens=12, **options)
    assert torch.equal(plain.sequences, ours.sequences)
    assert ours.speculation.drafted > 0
    drafted = [entry for entry in seen if entry[2]]
    assert len(drafted) > 4
    for text, depth, tree in drafted:
        assert tree == expected_tree(target, draft if drafts == "model" else drafter.head, text, depth, shape, options)


def expected_tree(target, draft, text, depth, shape, options):
    """Prefixes of the tree: expand the likeliest of each level, then keep the likeliest of all."""
    from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

    processors = LogitsProcessorList()
    if "no_repeat_ngram_size" in options:
        processors.append(NoRepeatNGramLogitsProcessor(2))
    if "repetition_penalty" in options:
        processors.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))

    def law(path):
        ids = torch.cat([text, torch.tensor(path, dtype=torch.long)])[None]
        if isinstance(draft, torch.nn.Module) and hasattr(draft, "fc"):
            logits = reference(target, draft, text, ids[0, len(text) :])[-1]
        else:
            logits = draft(input_ids=ids).logits[0, -1]
        return processors(ids, logits[None].clone())[0].log_softmax(-1)

    pool, frontier = {}, {(): 0.0}
    for _ in range(depth):
        level = {}
        for path, chance in frontier.items():
            best = law(path).topk(shape.width)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if value > -1e20:
                    level[(*path, token)] = chance + value
        pool |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[: shape.width])
    return {path for path, _ in sorted(pool.items(), key=lambda item: -item[1])[: shape.nodes]}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda head: sv.FeatureHead(head, tree=sv.DynamicTree(), branching=(2,)), {}, "tree=.*branching"),
        (lambda head: sv.FeatureHead(head, tree=sv.DynamicTree(), drawing="independent"), {}, "tree=.*drawing"),
        (lambda head: sv.FeatureHead(head, branching=(0,)), {}, "branching=.*integers from 1"),
        (lambda head: sv.DynamicTree(width=0), {}, "width=0.*integers from 1"),
        (lambda head: sv.DynamicTree(nodes=1.5), {}, "nodes=1.5"),
        (lambda head: sv.FeatureHead(head, tree=sv.DynamicTree()), {"num_draft_paths": 2, "verification": "traversal"},
         "num_draft_paths=2: tree="),
        (lambda head: sv.FeatureHead(head, tree=sv.DynamicTree()), {"verification": "block"}, "block.*single chains"),
        (lambda head: sv.FeatureHead(head, tree=sv.DynamicTree()),
         {"verification": "multi_round", "do_sample": True}, "multi_round.*deterministic"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_named(make, options, message):
    target = tiny.make_model()
    with sv.enabled(target), pytest.raises(ValueError, match=message):
        drafter = make(make_head(target))
        target.generate(**tiny.prompts(1), assistant_model=drafter, max_new_tokens=4, **options)


def test_wrong_types_are_named():
    target = tiny.make_model()
    with pytest.raises(TypeError, match="head="):
        sv.FeatureHead(target)
    with pytest.raises(TypeError, match="tree=3"):
        sv.FeatureHead(make_head(target), tree=3)


@pytest.mark.parametrize("verify_length", ["auto"])
def test_auto_works_with_a_head(verify_length):
    target = tiny.make_model()
    from hf_specverify.scheduling import CostModel

    costs = CostModel.profile(target, batch_sizes=(1, 3), tokens=(1, 4), context=16, budget_seconds=0.5, repeats=1)
    drafter = sv.FeatureHead(make_head(target))
    plain, _ = both(target, drafter, tiny.prompts(3), max_new_tokens=24)
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(3), assistant_model=drafter, verify_length=verify_length, costs=costs, max_new_tokens=24,
            do_sample=False,
        )  # fmt: skip
    assert torch.equal(out, plain.sequences)
