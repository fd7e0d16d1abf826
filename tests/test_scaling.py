"""Commands on two processes (gloo): the same results as on one, also where a process dies and the run is resumed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from tokenizing import byte_tokenizer
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify.cli import app
from hf_specverify.scheduling import CalibrationTable

WORKER = Path(__file__).with_name("scaling_worker.py")
PROMPTS = 5
COMMON = {"prompts": "prompts.jsonl", "batch-size": 1, "max-new-tokens": 10, "dtype": "float32"}
MODELS = {"target": "target", "draft": "draft"}


def command(name, **options):
    given = {**MODELS, **COMMON, **options}
    return [name, "--quiet", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


CALIBRATE = command("calibrate", companion="companion", out="calibration", **{"num-prompts": PROMPTS})
GENERATE = command("generate", out="answers.jsonl", temperature=1, verification="block")
DIAGNOSE = command("diagnose", out="diagnosis", rule="lenience", **{"num-prompts": 3, "batch-size": 2})
PARALLEL = command("generate", out="parallel.jsonl", **{"tp-plan": "auto", "num-prompts": 2, "batch-size": 2})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = tiny.make_model(vocabulary=260, eos_token_id=None)
    made = {"target": target, "draft": tiny.near_copy(target), "companion": tiny.near_copy(target, seed=4)}
    for name, model in made.items():
        model.save_pretrained(folder / name)
        byte_tokenizer().save_pretrained(folder / name)
    lines = [json.dumps({"prompt": f"text {'x' * n} number {n}"}) for n in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def folder(models, tmp_path):
    return linked(models, tmp_path)


def linked(models, folder):
    for path in models.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(Path(sv.__file__).parents[1]), "OMP_NUM_THREADS": "1", **more}


def alone(folder, arguments, monkeypatch):
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def two(models, tmp_path_factory):
    """The folder in which two processes ran the commands, started by `accelerate launch`."""
    folder = linked(models, tmp_path_factory.mktemp("two"))
    (folder / "commands.json").write_text(json.dumps([CALIBRATE, GENERATE, DIAGNOSE, PARALLEL]))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port())]
    run = subprocess.run(
        [*launch, str(WORKER), "commands.json"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_table_is_that_of_one_process(two, folder, monkeypatch):
    assert alone(folder, CALIBRATE, monkeypatch).exit_code == 0
    ours, theirs = (contents(place / "calibration") for place in (folder, two))
    assert ours == theirs
    assert CalibrationTable.from_pretrained(two / "calibration").number.sum() > 30


def test_the_answers_are_those_of_one_process(two, folder, monkeypatch):
    assert alone(folder, GENERATE, monkeypatch).exit_code == 0
    assert (folder / "answers.jsonl").read_bytes() == (two / "answers.jsonl").read_bytes()


def test_the_diagnosis_is_that_of_one_process(two, folder, monkeypatch):
    assert alone(folder, DIAGNOSE, monkeypatch).exit_code == 0
    one, both = (json.loads((place / "diagnosis" / "diagnosis.json").read_text()) for place in (folder, two))
    assert one["laws"] == both["laws"]
    for run in (*one["runs"], *both["runs"]):
        for sequence in run["sequences"]:
            sequence.pop("seconds")
    assert one["runs"] == both["runs"]
    assert len(one["runs"]) == 2 * 4


def test_a_tensor_parallel_target_answers_as_a_whole_one(two, folder, monkeypatch):
    whole = [part for part in PARALLEL if part not in ("--tp-plan", "auto")]
    assert alone(folder, whole, monkeypatch).exit_code == 0
    assert (folder / "parallel.jsonl").read_text() == (two / "parallel.jsonl").read_text()


def test_a_run_that_lost_a_process_goes_on(two, folder, monkeypatch):
    """Process 1 dies after its first part; the other ends with an error, and one process does the rest."""
    (folder / "commands.json").write_text(json.dumps([GENERATE]))
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), "commands.json", "1"],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(2)
    ]  # fmt: skip
    errors = [process.communicate()[1] for process in processes]
    assert processes[1].returncode == -9, errors[1][-2000:]
    assert processes[0].returncode not in (0, -9), errors[0][-2000:]
    parts = folder / "answers.jsonl.parts"
    assert sorted(path.name for path in parts.glob("0*")) == [f"00000{n}.json" for n in (0, 1, 2, 4)]
    assert not (folder / "answers.jsonl").exists()
    before = {path: path.stat().st_mtime_ns for path in parts.glob("0*")}
    assert alone(folder, GENERATE, monkeypatch).exit_code == 0
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert (folder / "answers.jsonl").read_bytes() == (two / "answers.jsonl").read_bytes()
