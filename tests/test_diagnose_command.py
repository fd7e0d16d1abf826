"""`specverify diagnose`, on tiny models in folders."""

import json

import pytest
import tiny
from tokenizing import byte_tokenizer
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify.cli import app
from hf_specverify.diagnose_command import parse_options

pytestmark = pytest.mark.filterwarnings("ignore:.*is lossy")


@pytest.fixture
def folders(tmp_path):
    target = tiny.make_model(vocabulary=259)
    target.generation_config.repetition_penalty = 1.5
    for name, model in {"target": target, "draft": tiny.near_copy(target)}.items():
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    lines = [{"question": f"what is {n}?", "answer": f"#### {n}"} for n in range(6)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def run(folder, *more, **named):
    options = {
        "target": folder / "target", "draft": folder / "draft", "prompts": folder / "prompts.jsonl",
        "out": folder / "out", "num-prompts": 3, "batch-size": 2, "max-new-tokens": 8, "dtype": "float32", **named,
    }  # fmt: skip
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    return CliRunner().invoke(app, ["diagnose", *arguments, *more], env={"COLUMNS": "200"})


def test_it_writes_a_report(folders):
    result = run(folders, "--verification-option", "leniency=0.3", task="gsm8k", template="Solve: {prompt}")
    assert result.exit_code == 0, result.output
    found = sv.Diagnosis.load(folders / "out" / "diagnosis.json")
    assert found.settings["rule"] == "lenience(leniency=0.3)"
    assert found.settings["options"] == {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    assert found.metadata["template"] == "Solve: {prompt}"
    assert found.arms == ["target", "matched", "lossless", "rule"]
    assert len(found.samples.runs) == 8
    assert (folders / "out" / "report.html").exists()
    assert "tokens per target pass" in result.output
    assert "calls" in result.stderr


def test_an_interrupted_run_goes_on_and_another_one_does_not(folders, monkeypatch):
    from hf_specverify.diagnostics.arms import Comparison

    made, generate = [], Comparison.generate

    def counted(self, arm, inputs):
        made.append(self.max_new_tokens)
        if self.max_new_tokens == 8 and made.count(8) == 4:
            raise KeyboardInterrupt
        return generate(self, arm, inputs)

    monkeypatch.setattr(Comparison, "generate", counted)
    assert run(folders, "--no-matched", verification="min_p").exit_code != 0
    assert len(sv.DiagnosisSamples.load(folders / "out" / "samples.json").runs) == 3
    result = run(folders, "--no-matched", "--quiet", verification="min_p")
    assert result.exit_code == 0, result.output
    assert made.count(8) == 4 + 3
    assert result.stdout == ""
    other = run(folders, "--no-matched", verification="typical")
    assert "samples were made with rule=" in str(other.exception)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"task": "humaneval"}, "no text in prompt"),
        ({"task": "poems"}, "kind='poems'"),
        ({"temperature": 0}, "temperature=0"),
        ({"template": "nothing"}, "template='nothing'"),
        ({"verification-option": "leniency"}, "verification_option='leniency'"),
        ({"num-prompts": 9}, "num_prompts=9"),
    ],
)
def test_mistakes_are_named_before_models_are_loaded(folders, named, message):
    result = run(folders, **{**named, "target": folders / "missing"})
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_generated_code_needs_its_flag(folders):
    line = {"prompt": "def f():\n", "entry_point": "f", "test": "def check(f):\n    assert f() is None\n"}
    (folders / "code.jsonl").write_text(json.dumps(line))
    named = {"task": "humaneval", "prompts": folders / "code.jsonl", "num-prompts": 1}
    assert "allow_execution=False" in str(run(folders, **named).exception)
    result = run(folders, "--execute-generated-code", "--no-matched", **named)
    assert result.exit_code == 0, result.output
    scores = sv.Diagnosis.load(folders / "out" / "diagnosis.json").table["rule"]["score_humaneval"]
    assert scores.value in (0, 1)


def test_options_are_read_as_json_or_text():
    assert parse_options(["a=0.5", "b=null", "kind=chow", "c=2"]) == {"a": 0.5, "b": None, "kind": "chow", "c": 2}
    for wrong in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            parse_options(wrong)
