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
COMMON = {"target": "target", "draft": "draft", "prompts": "prompts.jsonl", "max-new-tokens": 10, "dtype": "float32"}


def command(name, **options):
    given = {**COMMON, **options}
    return [name, "--quiet", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]


CALIBRATE = command(
    "calibrate", companion="companion", out="calibration", device="cpu", **{"num-prompts": PROMPTS, "batch-size": 1}
)
GENERATE = command(
    "generate", out="answers.jsonl", temperature=1, verification="block", device="cpu", **{"batch-size": 1}
)
DIAGNOSE = command(
    "diagnose", out="diagnosis", verification="lenience", device="cpu", **{"num-prompts": 3, "batch-size": 2}
)
PARALLEL = command("generate", out="parallel.jsonl", **{"tp-plan": "auto", "num-prompts": 2, "batch-size": 2})
LOST = ["lost.jsonl" if part == "answers.jsonl" else part for part in GENERATE]


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
    """Of a process that uses this package, one thread, and no GPU."""
    package = str(Path(sv.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def alone(folder, arguments, monkeypatch):
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def two(models, tmp_path_factory):
    """The folder in which two processes ran the commands; the second died in the last of them."""
    folder = linked(models, tmp_path_factory.mktemp("two"))
    (folder / "commands.json").write_text(json.dumps([CALIBRATE, DIAGNOSE, PARALLEL, LOST]))
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), "commands.json"],
            cwd=folder,
            env=environment(RANK=str(rank), LOCAL_RANK=str(rank), **ranks),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert processes[1].returncode == -9, errors[1][-3000:]
    assert processes[0].returncode > 0, errors[0][-3000:]
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


def test_the_answers_are_those_of_one_process(folder, monkeypatch):
    """As `docs/scaling.md` starts it."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port()), "-m", "hf_specverify.cli"]
    run = subprocess.run([*launch, *GENERATE], cwd=folder, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    both = (folder / "answers.jsonl").read_bytes()
    assert len(both.splitlines()) == PROMPTS
    assert alone(folder, [*GENERATE, "--out", "alone.jsonl"], monkeypatch).exit_code == 0
    assert (folder / "alone.jsonl").read_bytes() == both


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
    assert alone(folder, [*whole, "--device", "cpu"], monkeypatch).exit_code == 0
    assert (folder / "parallel.jsonl").read_text() == (two / "parallel.jsonl").read_text()


def test_a_run_that_lost_a_process_goes_on(two, folder, monkeypatch):
    """Process 1 died after its first part, and the other ended with an error; one process does the rest."""
    parts = two / "lost.jsonl.parts"
    before = {path: path.read_bytes() for path in parts.glob("0*")}
    assert sorted(path.name for path in before) == [f"00000{number}.json" for number in (0, 1, 2, 4)]
    assert not (two / "lost.jsonl").exists()
    assert alone(two, LOST, monkeypatch).exit_code == 0
    assert all(path.read_bytes() == content for path, content in before.items())  # seconds would differ
    assert alone(folder, LOST, monkeypatch).exit_code == 0
    assert (two / "lost.jsonl").read_bytes() == (folder / "lost.jsonl").read_bytes()
