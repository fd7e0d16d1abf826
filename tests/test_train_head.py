"""Training of feature heads on tiny targets: it learns, it resumes to the last bit, and it says what is wrong."""

import json
import sys
from dataclasses import replace
from itertools import chain

import pytest
import tiny
import torch
from heads import make_head
from tokenizing import word_tokenizer

import hf_specverify as sv
from hf_specverify import cli
from hf_specverify.drafting.heads import load_head
from hf_specverify.training import features, texts
from hf_specverify.training.examples import Examples, count_draft_ids
from hf_specverify.training.features import write_features
from hf_specverify.training.optimising import rate
from hf_specverify.training.start import new_head
from hf_specverify.training.store import Store
from hf_specverify.training.texts import own_prompts, pack, unpack
from hf_specverify.training.unroll import Laws, multi_step_loss, survival, unroll

SMALL = sv.HeadTraining(
    draft_vocab_size=64, unroll=2, epochs=1, batch_size=4, learning_rate=3e-3, max_length=40, max_new_tokens=20,
    temperatures=(1.0, 0.0), generation_batch=8, held_out=0.1, kept=16, checkpoint_every=2,
)  # fmt: skip
TEMPLATE = "{% for m in messages %}<bos> w1 {{ m.content }} w2{% endfor %}"


@pytest.fixture
def target():
    return tiny.make_model(**{"eos_token_id": None, "initializer_range": 0.2})


@pytest.fixture(scope="module")
def schooled():
    """A target whose answers follow a rule, so that a few texts are enough to learn what it says."""
    model = tiny.make_model(**{"eos_token_id": None, "initializer_range": 0.05})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with torch.enable_grad():
        for step in range(80):
            ids = torch.randint(61, (16, 1), generator=torch.Generator().manual_seed(step))
            for _ in range(12):
                ids = torch.cat([ids, (5 * ids[:, -1:] + 7) % 61], dim=1)
            model(input_ids=ids + 3, labels=ids + 3).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.requires_grad_(False).eval()


def questions(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        " ".join(f"w{int(word)}" for word in torch.randint(61, (4 + place % 3,), generator=generator))
        for place in range(count)
    ]


def train(target, out, settings=SMALL, **options):
    options = {"tokenizer": word_tokenizer(), "prompts": questions(20), "progress": False, **options}
    return sv.train_head(target, out, settings=settings, **options)


def acceptance(target, drafter):
    with sv.enabled(target):
        out = target.generate(
            **tiny.prompts(4, seed=99), assistant_model=drafter, num_draft_tokens=2, max_new_tokens=24,
            do_sample=False, return_dict_in_generate=True,
        )  # fmt: skip
    assert torch.equal(out.sequences, target.generate(**tiny.prompts(4, seed=99), max_new_tokens=24, do_sample=False))
    return out.speculation.acceptance_rate


@pytest.mark.parametrize("start", ["last_layer", "random"])
def test_a_trained_head_has_less_loss_and_more_accepted(schooled, tmp_path, start):
    settings = replace(SMALL, epochs=6, learning_rate=1e-2, start=start, checkpoint_every=1000)
    report = train(schooled, tmp_path, settings, prompts=questions(40))
    assert report.losses[-1] < 0.5 * report.losses[0]
    untrained = sv.FeatureHead(new_head(schooled, torch.arange(64), settings).eval())
    trained = sv.FeatureHead.from_pretrained(tmp_path, schooled)
    before, after = acceptance(schooled, untrained), acceptance(schooled, trained)
    assert after > before + 0.3, (before, after)
    assert report.texts + report.held_out == 40 and report.steps == 6 * -(-report.texts // 4)
    assert 1 >= report.survival[0] >= report.survival[1] > 0.3


class Stop(Exception):
    pass


def stopping(at):
    def on_step(step, loss):
        if step == at:
            raise Stop

    return on_step


def failing(honest, at):
    """A function that works as ever until it is called for the `at`-th time."""
    calls = []

    def run(*arguments, **options):
        calls.append(None)
        if len(calls) == at:
            raise Stop
        return honest(*arguments, **options)

    return run


def test_a_resumed_training_ends_with_the_same_weights(target, tmp_path):
    """Stopped once while texts are written, once while they are read, and twice while the head learns."""
    settings = replace(SMALL, epochs=2)
    whole = train(target, tmp_path / "whole", settings)
    out = tmp_path / "parts"
    for place, at in ((texts, "_generate"), (features, "_read")):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Stop):
            patch.setattr(place, at, failing(getattr(place, at), 2))
            train(target, out, settings)
        assert len(list((out / "training").glob(f"{place.__name__.split('.')[-1]}-*.safetensors"))) == 1
    for at in (3, 7):
        with pytest.raises(Stop):
            train(target, out, settings, on_step=stopping(at))
    seen = []
    parts = train(target, out, settings, on_step=lambda step, loss: seen.append(step))
    assert seen[0] == 7 and seen[-1] == whole.steps  # from the checkpoint after step 6
    assert parts.losses == whole.losses and parts.survival == whole.survival
    one, other = load_head(tmp_path / "whole").state_dict(), load_head(out).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_folder_with_another_run_is_refused(target, tmp_path):
    with pytest.raises(Stop):
        train(target, tmp_path, on_step=stopping(1))
    for options, name in (
        ({"settings": replace(SMALL, unroll=3)}, "unroll was 2 and is 3"),
        ({"prompts": questions(21)}, "prompts was"),
        ({"target": tiny.make_model(hidden_size=64)}, "target was"),
    ):
        with pytest.raises(ValueError, match=name):
            train(**{"target": target, "out": tmp_path, **options})


def test_what_is_written(target, tmp_path):
    before = target.generation_config.to_dict()
    report = train(target, tmp_path, target_name="user/name", licence="apache-2.0", about="From nowhere.")
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["settings"]["unroll"] == 2 and record["result"]["steps"] == report.steps
    card = (tmp_path / "README.md").read_text()
    assert "license: apache-2.0\n" in card and "\nFrom nowhere.\n" in card
    assert "base_model: user/name" in card and f"| 1 | {report.survival[0]:.3f} |" in card
    head = load_head(tmp_path)
    assert head.dtype == torch.bfloat16 and head.own == frozenset()
    assert head.config.target == "user/name" and head.config.target_layers == (0, 1, 2)
    assert head.config.num_draft_tokens == 2
    assert target.generation_config.to_dict() == before and not target.training


def test_texts_as_they_are_and_prompts_of_its_own(target, tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    given = [" ".join(f"w{(3 * place + word) % 61}" for word in range(90)) for place in range(4)]
    report = train(target, tmp_path / "texts", prompts=(), texts=given)
    assert report.texts + report.held_out == 4 * 3  # pieces of 40, 40 and 10 tokens
    longer = replace(SMALL, max_length=160)
    report = train(target, tmp_path / "own", longer, tokenizer=tokenizer, prompts=(), own=16)
    written = json.loads((tmp_path / "own" / "training" / "own_prompts.json").read_text())
    assert 8 < len(written) == len(set(written)) and report.texts + report.held_out == len(written)
    assert all("<" not in text for text in written)


def test_own_prompts_need_a_chat_template(target):
    with pytest.raises(ValueError, match="chat template"):
        own_prompts(target, word_tokenizer(), 4, SMALL, lambda: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": (), "texts": ()}, "nothing to learn from"),
        ({"tokenizer": None}, "tokenizer=None"),
        ({"own": -1}, "own=-1"),
        ({"prompts": questions(1)}, "only one text"),
        ({"settings": replace(SMALL, target_layers=(0, 5))}, "reads layer 5"),
        ({"settings": replace(SMALL, target_layers=(1, 1))}, "different integers"),
    ],
)
def test_bad_input_is_named(target, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        train(target, tmp_path, **options)


def test_bad_types_are_named(target, tmp_path):
    for options, message in (({"prompts": "one text"}, "prompts="), ({"settings": 3}, "settings=3")):
        with pytest.raises(TypeError, match=message):
            train(target, tmp_path, **options)
    with pytest.raises(ValueError, match="training mode"):
        train(tiny.make_model().train(), tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("unroll", 0, ValueError), ("epochs", 1.5, TypeError), ("batch_size", 0, ValueError),
        ("learning_rate", 0, ValueError), ("learning_rate", "high", TypeError), ("step_decay", 1.1, ValueError),
        ("held_out", 0.6, ValueError), ("precision", "int8", ValueError), ("start", "first", ValueError),
        ("temperatures", (), ValueError), ("temperatures", (-1,), ValueError), ("max_length", 4, ValueError),
        ("seed", -1, ValueError), ("kept", True, TypeError),
    ],
)  # fmt: skip
def test_bad_settings_are_named(field, value, error):
    with pytest.raises(error, match=f"{field}="):
        replace(SMALL, **{field: value})


def stored(target, tmp_path, settings=SMALL):
    """Texts of different length with their features, and the batches from them."""
    generator = torch.Generator().manual_seed(0)
    rows = [(torch.randint(3, 64, (size,), generator=generator), size // 3) for size in (9, 30, 17, 5, 12, 22, 8, 11)]
    written, read = Store(tmp_path, "texts"), Store(tmp_path, "features")
    written.save(0, pack(rows[:5]))
    written.save(1, pack(rows[5:]))
    write_features(target, (0, 2), settings.kept, written, read, 2, lambda: None)
    ids = count_draft_ids(target, written, 2, settings.draft_vocab_size)
    return rows, Examples(read, 2, ids, 64, settings, torch.device("cpu")), ids


def test_features_are_those_of_plain_forwards(target, tmp_path):
    rows, examples, ids = stored(target, tmp_path, replace(SMALL, draft_vocab_size=40))
    assert len(ids) == 40 and {0, 2} <= set(ids.tolist())  # padding and begin are kept in any case
    batch = examples.batch([0, 1, 2])
    for row, (text, begin) in enumerate(rows[:3]):
        size = len(text)
        plain = target(input_ids=text[None], output_hidden_states=True)
        states = torch.cat([plain.hidden_states[0], plain.hidden_states[2]], dim=-1)[0, :-1]
        assert torch.allclose(batch.features[row, : size - 1], states, rtol=1e-2, atol=1e-2)
        assert torch.equal(batch.tokens[row, : size - 1], text[1:])
        law = plain.logits[0].softmax(-1)
        dense = torch.zeros(size, 40).scatter_add_(1, batch.laws.tokens[row, :size], batch.laws.chances[row, :size])
        best = law.topk(16, dim=-1)
        wanted = torch.zeros_like(law).scatter_(1, best.indices, best.values)[:, ids]
        assert torch.allclose(dense, wanted, rtol=1e-2, atol=1e-3)
        inside = torch.isin(law.argmax(-1), ids)
        assert torch.equal(batch.laws.best[row, :size] >= 0, inside)
        assert torch.equal(ids[batch.laws.best[row, :size][inside]], law.argmax(-1)[inside])
        assert batch.laws.learn[row].nonzero()[:, 0].tolist() == list(range(max(begin - 1, 0), size - 1))


def test_every_text_comes_once_an_epoch_in_an_order_of_its_own(target, tmp_path):
    _, examples, _ = stored(target, tmp_path, replace(SMALL, batch_size=2))
    assert sorted([*examples.train, *examples.held_out]) == list(range(8)) and len(examples.held_out) == 2
    orders = [examples.batches_of_epoch(epoch) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(chain.from_iterable(order)) == examples.train for order in orders)
    assert len(orders[0]) == examples.steps_per_epoch == 3


def test_what_an_acceptance_head_learns_from_the_head_does_not_know(target, tmp_path):
    _, examples, _ = stored(target, tmp_path, replace(SMALL, held_out=0.5))
    unknown = examples.unknown_to_the_head()
    assert sorted([*unknown.train, *unknown.held_out]) == examples.held_out and len(unknown.train) == 2
    assert not set(unknown.batches_of_epoch(0)[0]) & {*examples.train, *unknown.held_out}


def test_loss_and_survival_are_what_they_say(target):
    """Against loops over places and steps, with whole laws."""
    head = make_head(target, draft=16, target_layers=(0, 2))
    torch.manual_seed(0)
    ids = torch.randint(64, (2, 7))
    scores = unroll(head, ids[:, 1:], torch.randn(2, 6, 64), 3)
    dense = torch.rand(2, 7, 16).softmax(-1) * 0.9
    learn = torch.rand(2, 7) > 0.3
    learn[:, -1] = False
    best = dense.argmax(-1).masked_fill(torch.rand(2, 7) > 0.9, -1)
    laws = Laws(torch.arange(16).expand(2, 7, 16), dense, best, learn)
    total, alive, places = 0.0, torch.zeros(3), 0
    for step in range(3):
        parts = [
            -(dense[row, t + 1 + step] * scores[step][row, t].log_softmax(-1)).sum()
            for row in range(2)
            for t in range(6 - step)
            if learn[row, t + 1 + step]
        ]
        total += 0.5**step * sum(parts) / len(parts)
    for row in range(2):
        for t in range(4):
            if all(learn[row, t + 1 + step] for step in range(3)):
                places += 1
                for step in range(3):
                    if int(scores[step][row, t].argmax()) != int(best[row, t + 1 + step]):
                        break
                    alive[step] += 1
    assert torch.allclose(multi_step_loss(scores, laws, 0.5), torch.as_tensor(total))
    counts, judged = survival(scores, laws)
    assert int(judged) == places > 0 and counts.tolist() == alive.tolist()


def test_texts_are_packed_and_unpacked():
    rows = [(torch.arange(4), 2), (torch.arange(1), 0), (torch.arange(7), 3)]
    again = unpack(pack(rows))
    assert all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(rows, again, strict=True))
    assert unpack(pack([])) == []


def test_the_rate_rises_and_falls():
    rates = [rate(step, 100) for step in range(100)]
    assert rates[0] < rates[4] == 1.0 and rates[-1] == min(rates[5:]) and 0.1 <= rates[-1] < 0.11


def test_a_start_from_the_last_layer(target):
    """With its own features the head begins as that layer: mlp, norms and projections of the hidden half."""
    head = new_head(target, torch.arange(64), SMALL)
    last, own = target.model.layers[-1], head.layers[0]
    assert torch.equal(own.mlp.up_proj.weight, last.mlp.up_proj.weight)
    assert torch.equal(own.self_attn.q_proj.weight[:, 32:], last.self_attn.q_proj.weight)
    assert not torch.equal(own.self_attn.q_proj.weight[:, :32], last.self_attn.q_proj.weight)
    assert torch.allclose(head.norm.weight, target.model.norm.weight, atol=1e-5)
    assert torch.equal(head.lm_head, target.lm_head.weight) and head.fc.weight.dtype == torch.float32
    other = new_head(target, torch.arange(64), replace(SMALL, start="random"))
    assert not torch.equal(other.layers[0].mlp.up_proj.weight, last.mlp.up_proj.weight)


def test_norms_that_store_their_distance_to_one():
    target = tiny.make_model("gemma3_text")
    target.model.norm.weight.fill_(0.25)
    assert torch.allclose(new_head(target, torch.arange(64), SMALL).norm.weight, torch.tensor(1.25), atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "gemma3_text", "bloom", "mixtral"])
def test_families_that_look_different(family, tmp_path):
    target = tiny.make_model(family, attention="eager" if family == "bloom" else "sdpa")
    report = train(target, tmp_path, replace(SMALL, precision="bfloat16"), prompts=questions(8))
    assert all(loss == loss for loss in report.losses)
    if family == "bloom":
        return
    with sv.enabled(target):
        drafter = sv.FeatureHead.from_pretrained(tmp_path, target)
        out = target.generate(**tiny.prompts(2), assistant_model=drafter, max_new_tokens=8, do_sample=False)
    assert torch.equal(out, target.generate(**tiny.prompts(2), max_new_tokens=8, do_sample=False))


def test_the_command(target, tmp_path, monkeypatch, capsys):
    target.save_pretrained(tmp_path / "target")
    word_tokenizer().save_pretrained(tmp_path / "target")
    (tmp_path / "prompts.txt").write_text("\n".join(questions(12)))
    (tmp_path / "skip.jsonl").write_text(json.dumps({"prompt": questions(12)[3]}))
    options = {"draft-vocab-size": 32, "unroll": 2, "epochs": 1, "batch-size": 4, "max-length": 30, "seed": 1,
               "max-new-tokens": 10, "generation-batch": 6, "temperatures": "0", "target-layers": "1,2"}  # fmt: skip
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    paths = ["--target", tmp_path / "target", "--out", tmp_path / "head", "--prompts", tmp_path / "prompts.txt",
             "--skip", tmp_path / "skip.jsonl"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["specverify", "train-head", *map(str, paths), *arguments, "--json", "--quiet"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    report = json.loads(capsys.readouterr().out)
    assert report["texts"] + report["held_out"] == 11
    head = load_head(tmp_path / "head")
    assert head.config.target_layers == (1, 2) and head.config.draft_vocab_size == 32
