"""Acceptance heads: what they learn, their file, and the signal that they give."""

import json
from dataclasses import replace

import pytest
import test_sampling_law
import tiny
import torch
from heads import features, make_head
from safetensors.torch import load_file, save_file
from test_sampling_law import check_law, model
from test_schedules import SAMPLING, all_costs, costs, generate, table
from test_train_head import SMALL, Stop, failing, questions, schooled, stopping, target, train  # noqa: F401 - fixtures

import hf_specverify as sv
from hf_specverify.calibrating import default_signals
from hf_specverify.drafting.heads import AcceptanceHead, save_head
from hf_specverify.drafting.heads.acceptance import ACCEPTANCE, load_acceptance, save_acceptance
from hf_specverify.drafting.model_chains import ModelSession
from hf_specverify.training import acceptance as stage
from hf_specverify.training.acceptance import judge, new_acceptance_head, overlap, read_places
from hf_specverify.training.examples import Example
from hf_specverify.training.unroll import Laws, unroll, unroll_states


def make_acceptance(hidden_size=32, seed=0, scale=1.0):
    """A random one, whose values spread."""
    torch.manual_seed(seed)
    acceptance = AcceptanceHead(hidden_size)
    for parameter in acceptance.parameters():
        parameter += scale * torch.randn_like(parameter)
    return acceptance.requires_grad_(False).eval()


def make_drafter(model_of, draft=32, **options):
    head = make_head(model_of, draft=draft, **options)
    return sv.FeatureHead(head, acceptance=make_acceptance(head.config.hidden_size))


# What is learned.


def test_the_overlap_is_one_less_the_distance():
    """Against whole laws, of which all or two tokens are kept; two of five can't be drafted."""
    torch.manual_seed(0)
    law, scores = torch.randn(7, 5).softmax(-1), torch.randn(7, 3)
    q = torch.zeros(7, 5)
    q[:, [0, 2, 3]] = scores.softmax(-1)
    places = torch.tensor([0, -1, 1, 2, -1])
    exact = 1 - (law.double() - q).abs().sum(-1) / 2
    for kept in (5, 2):
        best = law.topk(kept, dim=-1)
        drafted = places[best.indices]
        found = overlap(scores, drafted.clamp(min=0), best.values * (drafted >= 0))
        if kept == 5:
            assert torch.allclose(found.double(), exact, atol=1e-6)
        else:
            lost = torch.minimum(law, q).scatter(-1, best.indices, 0.0).sum(-1)
            assert torch.allclose(found + lost, exact.float(), atol=1e-6) and float(lost.max()) > 0.01


def test_places_and_laws_belong_together(target):  # noqa: F811
    """Against loops over rows, steps and places."""
    head = make_head(target, draft=16, target_layers=(0, 2))
    torch.manual_seed(0)
    tokens, seen = torch.randint(64, (2, 6)), torch.randn(2, 6, 64)
    chances, learn = torch.rand(2, 7, 16).softmax(-1) * 0.9, torch.rand(2, 7) > 0.3
    learn[:, -1] = False
    laws = Laws(torch.arange(16).expand(2, 7, 16), chances, chances.argmax(-1), learn)
    read, accepted = read_places(head, Example(tokens, seen, laws), 3)
    states, scores = unroll_states(head, tokens, seen, 3), unroll(head, tokens, seen, 3)
    places = [
        (row, step, t) for step in range(3) for row in range(2) for t in range(6 - step) if learn[row, t + 1 + step]
    ]
    wanted = [torch.minimum(scores[k][row, t].softmax(-1), chances[row, t + 1 + k]).sum() for row, k, t in places]
    assert torch.equal(read, torch.stack([states[step][row, t] for row, step, t in places]))
    assert torch.allclose(accepted, torch.stack(wanted), atol=1e-6)


def test_it_learns_and_its_quality_is_reported(schooled, tmp_path):  # noqa: F811
    """A head that can draft a quarter of all tokens is right at some places; its acceptance head says at which."""
    settings = replace(
        SMALL, epochs=3, learning_rate=1e-2, temperatures=(1.0,), draft_vocab_size=16, held_out=0.5,
        acceptance_epochs=60, checkpoint_every=1000,
    )  # fmt: skip
    seen = []

    def watched(trained, head, examples, steps):
        parts = [read_places(head, example, steps) for example in examples.held_out_batches()]
        read, accepted = (torch.cat(part) for part in zip(*parts, strict=True))
        seen.extend([judge(new_acceptance_head(head, 0), head, examples, steps), read, accepted, trained(read)])
        return judge(trained, head, examples, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_specverify.training.training.judge", watched)
        quality = train(schooled, tmp_path, settings, prompts=questions(40)).acceptance
    untrained, read, accepted, said = seen
    mean, missing = accepted.mean(), -(accepted * said.log2() + (1 - accepted) * (1 - said).log2()).mean()
    entropy = float(-mean * mean.log2() - (1 - mean) * (1 - mean).log2())
    assert quality.error == pytest.approx(float((said - accepted).abs().mean()), rel=1e-4)
    assert quality.entropy == pytest.approx(entropy, rel=1e-4)
    assert quality.bits == pytest.approx(entropy - float(missing), abs=1e-4)
    assert quality.bits > 0.1 > untrained.bits and quality.error < 0.5 * untrained.error, (quality, untrained)
    record = json.loads((tmp_path / "training.json").read_text())["result"]
    assert record["acceptance"]["bits"] == quality.bits
    assert f"{quality.bits:.3f} of the {quality.entropy:.3f} bits" in (tmp_path / "README.md").read_text()
    assert torch.equal(sv.FeatureHead.from_pretrained(tmp_path, schooled).acceptance(read), said)


def test_an_interrupted_stage_goes_on_to_the_last_bit(target, tmp_path):  # noqa: F811
    settings = replace(SMALL, acceptance_epochs=6)
    whole = train(target, tmp_path / "whole", settings)
    steps = []
    for at in (4, 3):  # a checkpoint every two steps
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
            patch.setattr(stage, "read_places", failing(read_places, at))
            train(target, tmp_path / "parts", settings, on_step=lambda step, loss: steps.append(step))
        assert not (tmp_path / "parts" / ACCEPTANCE).exists()
    saved = torch.load(tmp_path / "parts" / "training" / "acceptance-6.pt", weights_only=True)
    assert saved["step"] == 4
    parts = train(target, tmp_path / "parts", settings, on_step=lambda step, loss: steps.append(step))
    assert steps == list(range(1, whole.steps + 1))  # the head was trained once
    assert parts.acceptance == whole.acceptance and parts.losses == whole.losses
    same_files(tmp_path / "whole", tmp_path / "parts")


def same_files(one, other):
    for name in (ACCEPTANCE, "model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


RUN = {
    "target_layers", "draft_vocab_size", "start", "unroll", "step_decay", "epochs", "batch_size", "learning_rate",
    "max_length", "max_new_tokens", "temperatures", "generation_batch", "kept", "held_out", "precision",
    "checkpoint_every", "seed", "prompts", "texts", "own", "target",
}  # fmt: skip


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_began_without_this_stage_gets_it(target, tmp_path, finished):  # noqa: F811
    """Its files say nothing of the stage; the head is not trained again."""
    whole, out = train(target, tmp_path / "whole"), tmp_path / "old"
    before = replace(SMALL, acceptance_epochs=0)
    if finished:
        assert train(target, out, before).acceptance is None
        assert not (out / ACCEPTANCE).exists()
    else:
        with pytest.raises(Stop):
            train(target, out, before, on_step=stopping(4))
    assert set(json.loads((out / "training" / "run.json").read_text())) == RUN
    steps = []
    report = train(target, out, on_step=lambda step, loss: steps.append(step))
    assert steps == [] if finished else steps[0] == 5
    assert replace(report, folder="") == replace(whole, folder="")
    same_files(tmp_path / "whole", out)
    assert train(target, out, before).acceptance is None and not (out / ACCEPTANCE).exists()


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (0.5, TypeError)])
def test_bad_epochs_are_named(value, error):
    with pytest.raises(error, match="acceptance_epochs="):
        replace(SMALL, acceptance_epochs=value)


# Its file.


def test_round_trip_beside_the_head(target, tmp_path):  # noqa: F811
    drafter = make_drafter(target)
    drafter.save_pretrained(tmp_path / "both")
    save_head(drafter.head, tmp_path / "alone")
    for name in ("config.json", "model.safetensors"):  # as others read them
        assert (tmp_path / "both" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    again = sv.FeatureHead.from_pretrained(tmp_path / "both", target, dtype=torch.bfloat16)
    assert again.head.dtype == torch.bfloat16
    normed = torch.randn(3, 32)
    assert torch.equal(again.acceptance(normed), drafter.acceptance(normed))
    assert again.acceptance(normed.bfloat16()).dtype == torch.float32
    assert again.signals == {*sv.DraftModel.signals, "expected"}
    alone = sv.FeatureHead.from_pretrained(tmp_path / "alone", target)
    assert alone.acceptance is None and alone.signals == sv.DraftModel.signals
    alone.save_pretrained(tmp_path / "both")  # one of another head must not stay there
    assert sv.FeatureHead.from_pretrained(tmp_path / "both", target).acceptance is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("hidden.bias"), r"hidden\.bias.*missing"),
        (lambda tensors: tensors.pop("out.weight"), r"out\.weight.*missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "extra.*not known"),
        (lambda tensors: tensors.update({"hidden.weight": torch.zeros(64, 31)}), r"hidden\.weight must.*\(64, 32\)"),
        (lambda tensors: tensors.update({"out.weight": torch.zeros(64)}), r"out\.weight must.*\(1, 64\)"),
        (lambda tensors: tensors.update({"out.bias": torch.zeros(1, dtype=torch.long)}), r"out\.bias must.*int64"),
    ],
)
def test_bad_tensors_are_named(tmp_path, change, message):
    save_acceptance(make_acceptance(), tmp_path)
    tensors = load_file(tmp_path / ACCEPTANCE)
    change(tensors)
    save_file(tensors, tmp_path / ACCEPTANCE)
    with pytest.raises(ValueError, match=message):
        load_acceptance(tmp_path, 32)


def test_a_damaged_file_and_a_head_of_another_size(target, tmp_path):  # noqa: F811
    make_drafter(target).save_pretrained(tmp_path)
    (tmp_path / ACCEPTANCE).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"acceptance\.safetensors is damaged"):
        sv.FeatureHead.from_pretrained(tmp_path, target)
    with pytest.raises(ValueError, match="acceptance: it reads 16 numbers"):
        sv.FeatureHead(make_head(target), acceptance=make_acceptance(16))
    with pytest.raises(TypeError, match="acceptance=3"):
        sv.FeatureHead(make_head(target), acceptance=3)


def test_other_widths_are_read(tmp_path):
    wide = AcceptanceHead(32, 5).requires_grad_(False)
    save_acceptance(wide, tmp_path)
    assert torch.equal(load_acceptance(tmp_path, 32)(torch.ones(32)), wide(torch.ones(32)))


# The signal.


@pytest.mark.parametrize("do_sample", [False, True])
def test_the_signal_is_that_of_the_place_and_not_of_its_token(do_sample):
    """In a call with rejections: what the network says of a forward over the text before the place."""
    target, seen = tiny.make_model(), []  # noqa: F811
    drafter, honest = make_drafter(target), ModelSession.propose

    def watched(self, state, lengths):
        drafts = honest(self, state, lengths)
        for place, (row, length, drafted) in enumerate(zip(state.rows, state.lengths, drafts.lengths, strict=True)):
            text = torch.from_numpy(state.host_ids[row, state.host_padding[row] : length].copy())
            if drafted:
                seen.append((text, drafts.tokens[place, :drafted], drafts.signals["expected"][place, :drafted]))
        return drafts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelSession, "propose", watched)
        sv.calibrate(
            target, drafter, [tiny.prompts(3)], num_draft_tokens=3, max_new_tokens=24, do_sample=do_sample,
            sets=[("expected",)],
        )  # fmt: skip
    assert len(seen) > 10
    for text, drafted, expected in seen:
        states = features(target, drafter.head, text)[:, :-1]
        place = states.shape[1] - 1
        states = torch.nn.functional.pad(states, (0, 0, 0, len(drafted) - 1))
        ids = torch.cat([text, drafted[:-1]])[None, 1:]  # without the last: no place knows its own token
        for step, normed in enumerate(unroll_states(drafter.head, ids, states, len(drafted))):
            assert torch.allclose(drafter.acceptance(normed[0, place]), expected[step], atol=1e-4)
    values = torch.cat([expected for *_, expected in seen])
    assert float(values.std()) > 0.05


def test_calibrate_records_it_and_a_call_cuts_by_it():
    target = tiny.make_model(eos_token_id=None)  # noqa: F811
    drafter, inputs = make_drafter(target), tiny.prompts(3)
    assert default_signals(drafter) == ("q", "entropy", "max_q", "margin", "expected", "position")
    fitted = sv.calibrate(target, drafter, [inputs], num_draft_tokens=3, max_new_tokens=24, sets=[("expected", "q")])
    assert fitted.names == ("expected", "q") and "expected" in fitted.samples.signals
    plain = target.generate(**inputs, max_new_tokens=30, do_sample=False)
    options = {"calibration": table("expected"), "num_draft_tokens": 5}
    cut = generate(target, drafter, inputs, verify_length="goodput", costs=costs(0.1), **options)
    stopped = generate(target, drafter, inputs, draft_length="goodput", costs=all_costs(0.05), **options)
    assert torch.equal(plain, cut.sequences) and torch.equal(plain, stopped.sequences)
    assert 0 < cut.speculation.verified < cut.speculation.drafted
    assert len(stopped.speculation.draft_lengths) > 2


@pytest.mark.parametrize(
    ("tokens", "options"), [(3, {}), pytest.param(4, {"draft_length": "goodput"}, marks=pytest.mark.slow)]
)
def test_cuts_keep_the_law(tokens, options, monkeypatch):
    """Some tokens are verified and some are cut, or not drafted; the first step of a call has no drafts."""
    monkeypatch.setattr(test_sampling_law, "TOKENS", tokens)
    monkeypatch.setattr(test_sampling_law, "SAMPLES", 3000)
    drafter = make_drafter(model(7), draft=4)  # of five
    drafter.acceptance = make_acceptance(seed=2, scale=0.5)
    drafter.acceptance.out.bias += 0.6  # its values lie on both sides of what pays
    options = {**SAMPLING, "calibration": table("expected"), **options}
    prompt = {"input_ids": torch.tensor([[1, 4, 2, 1, 4]]).repeat(1000, 1)}
    step = generate(
        model(7), drafter, prompt, do_sample=True, top_k=0, max_new_tokens=tokens, num_draft_tokens=2, **options
    ).speculation.steps[1]
    assert 0.1 < sum(step.verified) / (1000 * (tokens - 2)) < 0.9
    check_law(model(7), drafter, {}, None, **options)


def test_a_head_without_one_does_not_give_it():
    target = tiny.make_model()  # noqa: F811
    options = {"verify_length": "goodput", "calibration": table("expected"), "costs": costs()}
    with pytest.raises(ValueError, match="signal 'expected' is not given by feature head"):
        generate(target, sv.FeatureHead(make_head(target)), tiny.prompts(1), **options)
