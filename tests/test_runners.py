"""The cache after every kind of block: rejected tokens leave no trace, finished rows leave the others alone."""

import warnings

import pytest
import tiny
import torch

from hf_specverify.decoding.hole_runner import HoleRunner
from hf_specverify.decoding.probe import make_runner
from hf_specverify.decoding.row_runner import RowRunner
from hf_specverify.decoding.single_runner import SingleRunner
from hf_specverify.decoding.timing import Stopwatch
from hf_specverify.decoding.traits import model_traits

RUNNERS = [
    ("llama", RowRunner, "sdpa"),
    ("llama", RowRunner, "eager"),
    ("gemma3_text", RowRunner, "sdpa"),
    ("mistral", RowRunner, "eager"),
    ("gpt2", RowRunner, "sdpa"),
    ("llama4_text", RowRunner, "sdpa"),
    ("llama", HoleRunner, "sdpa"),
    ("bloom", HoleRunner, "eager"),
    ("llama", SingleRunner, "sdpa"),
    ("gemma3_text", SingleRunner, "sdpa"),
    ("qwen3_next", SingleRunner, "sdpa"),
]


@pytest.mark.parametrize(("family", "kind", "attention"), RUNNERS)
@pytest.mark.parametrize("last_only", [False, True])
def test_logits_equal_a_fresh_forward_after_every_step(family, kind, attention, last_only):
    model = tiny.make_model(family, attention=attention)
    generator = torch.Generator().manual_seed(1)
    inputs = tiny.prompts(4)
    ids, valid = inputs["input_ids"], inputs["attention_mask"].bool()
    runner = kind(model, model_traits(model), Stopwatch(), "target")
    runner.prefill(ids[:, :-1], valid[:, :-1], valid, None)
    rows = [ids[row][valid[row]][:-1].tolist() for row in range(4)]
    # One row accepts everything, one nothing, the others something; from the fifth round on two rows are left.
    for round_ in range(8):
        if round_ == 4:
            runner.select([2, 0])
            rows = [rows[2], rows[0]]
        width = 1 + round_ % 4
        counts = [1 + (row + round_) % width for row in range(len(rows))]
        counts[0] = width
        tokens = torch.randint(3, 64, (len(rows), width), generator=generator)
        logits = runner.forward(tokens, counts, last_only=last_only).logits
        for row, count in enumerate(counts):
            fed = tokens[row, :count].tolist()
            fresh = model(input_ids=torch.tensor([rows[row] + fed])).logits[0, -count:]
            mine = logits[row] if last_only else logits[row, :count]
            error = (mine - (fresh[-1:] if last_only else fresh)).abs().max()
            assert error < 1e-4 * float(fresh.abs().max()), (round_, row)
        kept = [(0, counts[row])[(row + round_) % 3 == 0] if row < 2 else counts[row] // 2 for row in range(len(rows))]
        padding = [runner.lengths[row] - len(rows[row]) - counts[row] for row in range(len(rows))]
        rows = [rows[row] + tokens[row, : kept[row]].tolist() for row in range(len(rows))]
        runner.rewind([padding[row] + len(rows[row]) for row in range(len(rows))])


def test_the_row_cache_grows():
    model = tiny.make_model()
    runner = RowRunner(model, model_traits(model), Stopwatch(), "target")
    ids = tiny.prompts(2)["input_ids"]
    valid = torch.ones_like(ids, dtype=torch.bool)
    runner.prefill(ids, valid, valid, None)
    tokens = torch.randint(3, 64, (2, 41), generator=torch.Generator().manual_seed(2))
    runner.forward(tokens[:, :1], [1, 1])
    length = ids.shape[1] + 1
    runner.cache.plan.capacity = length  # as if there were no room behind
    for layer in runner.cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
    logits = runner.forward(tokens[:, 1:], [40, 40]).logits
    assert torch.allclose(logits, model(input_ids=torch.cat([ids, tokens], 1)).logits[:, -40:], atol=1e-4)


def test_the_probe_rejects_a_layout_that_is_silently_wrong():
    from hf_specverify.decoding.probe import _error, _ragged_logits, _reference

    model = tiny.make_model("gpt_neo", attention="eager")
    traits = model_traits(model)
    sequences, reference, noise = _reference(model, traits)
    assert noise < 1e-5
    errors = [
        _error(lambda kind=kind: _ragged_logits(kind, model, traits, sequences), reference)[0]
        for kind in (RowRunner, SingleRunner)
    ]
    assert errors[0] > 1e-3
    assert errors[1] < 1e-5


def test_the_probe_does_not_take_a_lack_of_memory_for_a_verdict(monkeypatch):
    model = tiny.make_model()

    def exhausted(self, *arguments, **options):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(RowRunner, "forward", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        make_runner(model, Stopwatch(), "target")
    monkeypatch.undo()
    assert isinstance(make_runner(model, Stopwatch(), "target"), RowRunner)


def test_the_probe_knows_models_of_one_class_apart(monkeypatch):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.3}
    layouts = []
    for alibi in (False, True):
        monkeypatch.setitem(tiny.FAMILIES, "falcon", {**sizes, "alibi": alibi, **tiny.COMMON})
        model = tiny.make_model("falcon", attention="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layouts.append(make_runner(model, Stopwatch(), "target").layout)
    assert layouts == ["row cache", "masked holes"]


def test_a_refusal_names_training_mode():
    model = tiny.make_model("gpt2", attention="eager", attn_pdrop=0.5, resid_pdrop=0.5).train()
    with pytest.raises(ValueError, match="training mode"):
        make_runner(model, Stopwatch(), "target")
