"""`specverify generate`, on tiny models in folders."""

import json

import pytest
import tiny
import torch
from tokenizing import byte_tokenizer
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify.benchmark.prompts import encode_chunk
from hf_specverify.cli import app
from hf_specverify.diagnostics.text_metrics import real_tokens
from hf_specverify.generating import Answering
from hf_specverify.scheduling import CostModel

TEXTS = [f"text {'x' * (3 * n % 5)} number {n}" for n in range(5)]


@pytest.fixture
def target():
    model = tiny.make_model(vocabulary=259)
    model.generation_config.repetition_penalty = 1.5  # which is put aside
    return model


@pytest.fixture
def folders(target, tmp_path):
    models = {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=4)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return tmp_path


def run(folder, *more, **named):
    options = {
        "target": folder / "target", "draft": folder / "draft", "prompts": folder / "prompts.jsonl",
        "out": folder / "answers.jsonl", "batch-size": 2, "max-new-tokens": 12, "dtype": "float32", **named,
    }  # fmt: skip
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    return CliRunner().invoke(app, ["generate", *arguments, *more], env={"COLUMNS": "200"})


def answers(folder, name="answers.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_greedy_answers_are_the_plain_ones(folders, target):
    result = run(folders)
    assert result.exit_code == 0, result.output
    assert "Answers to 5 prompts" in result.stdout
    found = answers(folders)
    assert [answer["index"] for answer in found] == [0, 1, 2, 3, 4]
    target.generation_config.repetition_penalty = None
    for text, answer in zip(TEXTS, found, strict=True):
        inputs = encode_chunk(byte_tokenizer(), [text], 0, torch.device("cpu"))
        plain = target.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        tokens = real_tokens(plain.tolist(), {1}, 0)
        assert answer["text"] == byte_tokenizer().decode(tokens, skip_special_tokens=True)
        assert answer["tokens"] == len(tokens)
        assert answer["ending"] == ("eos" if tokens[-1] == 1 else "limit")
    batches = {answer["speculation"]["batch"]: answer["speculation"] for answer in found}
    assert [answer["speculation"]["batch"] for answer in found] == [0, 0, 1, 1, 2]
    assert sum(batch["committed"] for batch in batches.values()) == sum(answer["tokens"] for answer in found)


def test_an_interrupted_run_goes_on(folders, monkeypatch):
    make, made = Answering.make, []

    def counted(self, number):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return make(self, number)

    options = {"temperature": 1, "companion": folders / "companion"}
    monkeypatch.setattr(Answering, "make", counted)
    assert run(folders, **options).exit_code != 0
    assert not (folders / "answers.jsonl").exists()
    made.clear()
    assert run(folders, **options).exit_code == 0
    assert made == [2]
    made.clear()
    assert run(folders, **options, out=folders / "other.jsonl").exit_code != 0
    made.clear()
    assert run(folders, **options, out=folders / "other.jsonl").exit_code == 0
    assert (folders / "answers.jsonl").read_bytes() == (folders / "other.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"temperature": 0.5}, "temperature=0.0, now it is 0.5"),
        ({"batch-size": 3}, "batch_size=2, now it is 3"),
        ({"seed": 1}, "seed=0, now it is 1"),
        ({"verification": "block"}, "verification='token', now it is 'block'"),
        ({"num-draft-tokens": 2}, "num_draft_tokens=None, now it is 2"),
    ],
)
def test_another_run_does_not_go_on(folders, named, message):
    assert run(folders, "--quiet").exit_code == 0
    result = run(folders, "--quiet", **named)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_costs_of_a_schedule_are_measured_once(folders, monkeypatch):
    monkeypatch.setattr("hf_specverify.generate_command.LAZY_SECONDS", 0.1)
    result = run(folders, "--json", "--quiet", schedule="auto", temperature=1)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["prompts"] == 5
    kept = folders / "answers.jsonl.parts" / "costs.json"
    assert CostModel.load(kept).roles == ("target", "draft")
    monkeypatch.setattr(CostModel, "profile", None)
    (folders / "answers.jsonl.parts" / "000001.json").unlink()
    before = (folders / "answers.jsonl").read_bytes()
    assert run(folders, "--quiet", schedule="auto", temperature=1).exit_code == 0
    assert (folders / "answers.jsonl").read_bytes() == before
    assert answers(folders)[0]["speculation"]["schedule"] == "auto"
    given = run(folders, "--quiet", schedule="auto", costs=kept, out=folders / "given.jsonl", temperature=1)
    assert given.exit_code == 0
    assert answers(folders, "given.jsonl") == answers(folders)


def test_some_prompts_by_lookup(folders):
    result = run(folders, "--json", **{"draft": "lookup", "num-prompts": 2, "num-draft-tokens": 3})
    assert result.exit_code == 0, result.output
    assert [answer["index"] for answer in answers(folders)] == [0, 2]
    found = json.loads(result.stdout)
    assert (found["prompts"], found["tokens"]) == (2, sum(answer["tokens"] for answer in answers(folders)))
    assert set(found["seconds"]) == set(sv.report.PHASES)


def test_a_shortened_draft_and_a_tree(folders):
    named = {"draft-quantization": "none+layers:1", "verification": "traversal:2", "temperature": 0.8, "top-p": 0.9}
    assert run(folders, **named).exit_code == 0
    assert answers(folders)[0]["speculation"]["verification"] == "traversal"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"schedule": "cut"}, "schedule='cut' needs a calibration"),
        ({"schedule": "best"}, "schedule='best'"),
        ({"verification": "tokens"}, "verification='tokens'"),
        ({"num-prompts": 9}, "num_prompts=9"),
        ({"device": "gpu"}, "device='gpu' is no device"),
        ({"draft-device": "there"}, "draft_device='there' is no device"),
        ({"device": "cpu", "device-map": "auto"}, "device and device_map exclude each other"),
        ({"device-map": "everywhere"}, "device_map='everywhere'"),
        ({"tp-plan": "[]"}, "tp_plan='[]'"),
        ({"tp-plan": "auto"}, "tp_plan='auto' with one process"),
        ({"tp-plan": "auto", "schedule": "auto"}, "tp_plan='auto' with schedule='auto'"),
        ({"dtype": "float8"}, "dtype='float8'"),
        ({"verification-option": "leniency=0.3"}, "verification='token' has no options"),
    ],
)
def test_mistakes_are_named_before_models_are_loaded(folders, named, message):
    result = run(folders, **{**named, "target": folders / "missing"})
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert not (folders / "answers.jsonl.parts").exists()
