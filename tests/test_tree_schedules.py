"""Cuts of dynamic trees in whole calls: what is verified changes, the output does not."""

import pytest
import test_sampling_law
import tiny
import torch
from heads import make_head
from test_sampling_law import check_law, model
from test_schedules import all_costs, costs, crowd_costs, generate, table
from test_trees import fed_tokens

import hf_specverify as sv
from hf_specverify.drafting.dynamic_trees import DynamicTreeSession
from hf_specverify.scheduling import CalibrationTable
from hf_specverify.scheduling.recording import RecordingSchedule
from hf_specverify.scheduling.tree_schedule import TreeSchedule

NO_END = {"eos_token_id": None}
SHAPE = sv.DynamicTree(3, 8)
CUT = {"verify_length": "goodput", "verification": "traversal"}
DRAFTERS = {
    "model": lambda target: sv.DraftModel(tiny.near_copy(target), tree=SHAPE),
    "head": lambda target: sv.FeatureHead(make_head(target), tree=SHAPE),
}


@pytest.mark.parametrize("names", [None, ("q",), ("q", "entropy", "position")])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drafts", DRAFTERS)
def test_greedy_output_is_plain_output(drafts, batch, names):
    target = tiny.make_model(**NO_END)
    inputs = tiny.prompts(batch)
    plain = target.generate(**inputs, max_new_tokens=60, do_sample=False)
    ours = generate(
        target, DRAFTERS[drafts](target), inputs, calibration=names and table(*names), costs=costs(0.05),
        num_draft_tokens=4, max_new_tokens=60, **CUT,
    )  # fmt: skip
    assert torch.equal(plain, ours.sequences)
    report = ours.speculation
    assert 0 < report.verified < report.drafted, "some nodes must be cut for this to test anything"
    assert report.schedule == "goodput" and report.choices["cut"] > 0
    assert (report.drift is None) == (names is not None)
    assert sv.SpeculationReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("drafts", DRAFTERS)
def test_the_target_is_fed_the_chosen_nodes_and_nothing_else(drafts, monkeypatch):
    monkeypatch.setattr("hf_specverify.decoding.row_runner.PACK_BELOW", 1.0)
    target = tiny.make_model(**NO_END)
    drafter = DRAFTERS[drafts](target)
    options = {**CUT, "calibration": table("q"), "costs": costs(0.03), "num_draft_tokens": 4}
    generate(target, drafter, tiny.prompts(4), **options)  # the probe has its own forwards
    counts = fed_tokens(target)
    report = generate(target, drafter, tiny.prompts(4), **options).speculation
    # The prompt goes before the first block.
    assert counts[2:] == [len(step.rows) + sum(step.verified) for step in report.steps[1:]]
    assert any(len(set(step.verified)) > 1 for step in report.steps)


def test_nothing_is_verified_where_nothing_pays():
    target = tiny.make_model(**NO_END)
    ours = generate(
        target, DRAFTERS["model"](target), tiny.prompts(2), calibration=table("q"), costs=costs(50.0), **CUT
    )
    assert ours.speculation.drafted > ours.speculation.verified == 0


def test_a_draft_that_is_dear_leaves_more_to_verify():
    """What was spent on drafting is paid for, so that a node more makes less of a difference to the step."""
    target = tiny.make_model(**NO_END)
    shares = []
    for seconds in (1e-6, 2.0):
        ours = generate(
            target, DRAFTERS["model"](target), tiny.prompts(2), calibration=table("q"), costs=all_costs(seconds), **CUT
        )
        shares.append(ours.speculation.verified / ours.speculation.drafted)
    assert shares[0] < shares[1]


def test_the_law_while_sampling(monkeypatch):
    monkeypatch.setattr(test_sampling_law, "SAMPLES", 1000)
    nodes = {"grown": 0, "verified": 0}
    honest = TreeSchedule.choose

    def choose(self, drafts, state):
        chosen = honest(self, drafts, state)
        for name, trees in (("grown", drafts), ("verified", chosen)):
            nodes[name] += sum(trees.lengths)
        return chosen

    monkeypatch.setattr(TreeSchedule, "choose", choose)
    drafter = sv.DraftModel(model(8), tree=sv.DynamicTree(2, 4))
    check_law(model(7), drafter, {}, None, costs=crowd_costs(), calibration=table("q"), **CUT)
    assert 0.05 < nodes["verified"] / nodes["grown"] < 0.95


def test_signals_are_those_of_the_drafts_laws():
    target = tiny.make_model(**NO_END)
    draft, seen = tiny.near_copy(target), []
    honest = DynamicTreeSession.propose

    def propose(self, state, lengths):
        trees = honest(self, state, lengths)
        for place, (row, length) in enumerate(zip(state.rows, state.lengths, strict=True)):
            text = state.ids[row, state.host_padding[row] : length]
            for node in range(trees.lengths[place]):
                path = trees.tokens[place][trees.ancestors[place, node]]
                law = draft(input_ids=torch.cat([text, path])[None]).logits[0, -2].softmax(-1)
                top = law.topk(2).values
                known = {
                    "q": law[path[-1]], "max_q": top[0], "margin": top[0] - top[1],
                    "entropy": -(law * law.clamp(min=1e-30).log()).sum(),
                }  # fmt: skip
                assert set(trees.signals) == set(known)
                seen.extend(float(trees.signals[name][place, node] - value) for name, value in known.items())
        return trees

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamicTreeSession, "propose", propose)
        sv.calibrate(
            target, sv.DraftModel(draft, tree=sv.DynamicTree(3, 7)), [tiny.prompts(2)], num_draft_tokens=3,
            max_new_tokens=8, do_sample=False,
        )  # fmt: skip
    assert len(seen) > 100
    assert max(map(abs, seen)) < 1e-4


@pytest.mark.parametrize("do_sample", [False, True])
def test_calibrate_records_every_child_of_a_reached_node(do_sample, monkeypatch):
    """The target as its own draft: p of a child is its q."""
    target = tiny.make_model(**NO_END)
    drafter = sv.DraftModel(target, tree=SHAPE)
    decided = []
    honest = RecordingSchedule.learn

    def learn(self, outcome):
        for place, accepted in enumerate(outcome.accepted):
            path = {-1, *outcome.path[place, :accepted].tolist()}
            parents = outcome.verified.parents[place, : outcome.verified.lengths[place]].tolist()
            decided.append(sum(parent in path for parent in parents))
        honest(self, outcome)

    monkeypatch.setattr(RecordingSchedule, "learn", learn)
    torch.manual_seed(0)
    fitted = sv.calibrate(
        target, drafter, [tiny.prompts(3), tiny.prompts(2, seed=9)], num_draft_tokens=3, max_new_tokens=20,
        do_sample=do_sample, temperature=1.0, top_k=0,
    )  # fmt: skip
    samples = fitted.samples
    assert len(samples.outcome) == sum(decided) > 100
    assert set(samples.signals) == {"q", "entropy", "max_q", "margin", "position"}
    assert len(samples.groups.unique()) == 5
    assert set(samples.signals["position"].tolist()) == {1.0, 2.0, 3.0}
    if do_sample:
        assert float((samples.outcome - samples.signals["q"]).abs().max()) < 1e-4
    else:
        best = samples.signals["q"] == samples.signals["max_q"]
        assert torch.equal(samples.outcome, best.double()) and 0 < int(best.sum()) < len(best)


def test_a_calibration_of_trees_is_for_trees(tmp_path):
    target = tiny.make_model(**NO_END)
    trees, chains = DRAFTERS["model"](target), sv.DraftModel(tiny.near_copy(target))
    made = {}
    for name, drafter in (("trees", trees), ("chains", chains)):
        fitted = sv.calibrate(target, drafter, [tiny.prompts(3)], sets=[("q",)], max_new_tokens=20, do_sample=False)
        fitted.save_pretrained(tmp_path / name)
        made[name] = CalibrationTable.from_pretrained(tmp_path / name)
    assert made["trees"].origin.drafting["tree_nodes"] == 8
    ours = generate(target, trees, tiny.prompts(2), calibration=tmp_path / "trees", costs=costs(0.05), **CUT)
    assert 0 < ours.speculation.verified < ours.speculation.drafted
    for drafter, wrong in ((trees, "chains"), (chains, "trees")):
        with pytest.raises(ValueError, match=f"calibration: it was made with drafts that are {wrong}"):
            generate(target, drafter, tiny.prompts(2), calibration=made[wrong], costs=costs(), **CUT)


def test_without_a_calibration_the_text_corrects_what_the_draft_says():
    """A draft that knows nothing says little of its tokens; after some steps fewer of them are verified."""
    target = tiny.make_model(**NO_END)
    stranger = tiny.make_model(seed=5, initializer_range=0.8, **NO_END)
    report = generate(
        target, sv.DraftModel(stranger, tree=SHAPE), tiny.prompts(3), costs=costs(0.02), max_new_tokens=90, **CUT
    ).speculation
    assert report.drift < 0, "more is promised than accepted"
    shares = [sum(step.verified) / sum(step.drafted) for step in report.steps if sum(step.drafted)]
    assert report.steps[0].choice == "fixed" and shares[0] == 1
    cut = [share for share, step in zip(shares, report.steps, strict=False) if step.choice == "cut"]
    assert sum(cut[-10:]) < sum(cut[:10])


@pytest.mark.parametrize(
    ("draft", "options", "message"),
    [
        ({"tree": SHAPE}, {"verify_length": "auto"}, "tree=.*verify_length='auto'.*allowed with a tree"),
        ({"tree": SHAPE}, {"draft_length": "goodput"}, "tree=.*draft_length='goodput'.*allowed with a tree"),
        ({"branching": (2, 1)}, {"verify_length": "goodput"}, r"branching=\(2, 1\): verify_length='goodput'"),
        ({"branching": (2, 1)}, {"verify_length": "auto"}, r"branching=\(2, 1\): verify_length='auto'"),
        ({"tree": SHAPE}, {"verify_length": "goodput", "calibration": table("S")}, "'S'.*companion.*single chains"),
        ({"tree": SHAPE}, {"verify_length": "goodput", "calibration": table("match_length")}, "not given by"),
        ({"tree": SHAPE}, {"verify_length": "goodput", "calibration": 3}, "calibration=3"),
    ],
)
def test_what_is_refused(draft, options, message):
    target = tiny.make_model()
    drafter = sv.DraftModel(tiny.near_copy(target), **draft)
    with pytest.raises(ValueError, match=message):
        generate(target, drafter, tiny.prompts(1), verification="traversal", costs=costs(), **options)


def test_a_companion_is_not_asked_about_trees():
    target = tiny.make_model()
    with pytest.raises(ValueError, match="companion reads single chains"):
        sv.calibrate(
            target, DRAFTERS["model"](target), [tiny.prompts(1)], companion_model=tiny.near_copy(target),
            max_new_tokens=6,
        )  # fmt: skip
