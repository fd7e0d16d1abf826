"""The command line: help, version, exit codes and messages."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hf_specverify as sv
from hf_specverify import cli

ROOT = str(Path(cli.__file__).parents[1])


def run(monkeypatch, capsys, *arguments):
    """Call main() as the installed script does; return exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["specverify", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


def test_help_names_the_commands_and_gives_examples(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    for text in ("demo", "bench", "--version", "--debug", "specverify demo --target"):
        assert text in out


def test_help_of_the_demo_names_its_options(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "demo", "--help")
    assert code == 0
    for option in (
        "--target",
        "--draft",
        "--prompts",
        "--batch-size",
        "--temperature",
        "--max-new-tokens",
        "--repeats",
    ):
        assert option in out


def test_help_of_the_benchmark_is_its_own(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "bench", "--help")
    assert code == 0
    assert "--num-draft-tokens" in out
    assert "specverify bench" in out


def test_the_command_line_imports_neither_torch_nor_transformers_for_help():
    code = (
        f"import sys; sys.path.insert(0, {ROOT!r}); sys.argv = ['specverify', '--help']\n"
        "from hf_specverify import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"


def test_every_public_name_is_found_where_it_is_said_to_be():
    assert sorted(sv._PLACE_OF) == sorted(sv.__all__)
    assert set(sv.__all__) <= set(dir(sv))
    for place, names in sv._PLACES.items():
        module = importlib.import_module(f"hf_specverify.{place}")
        assert all(getattr(sv, name) is getattr(module, name) for name in names)
    assert sv.scheduling.CalibrationTable  # a part that nobody imported
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        sv.speed


def test_every_part_can_be_the_first_that_is_imported():
    code = (
        f"import sys, importlib, pkgutil; sys.path.insert(0, {ROOT!r})\n"
        "import torch, hf_specverify\n"
        "names = [module.name for module in pkgutil.iter_modules(hf_specverify.__path__, 'hf_specverify.')]\n"
        "for name in names:\n"
        "    for loaded in [key for key in sys.modules if key.startswith('hf_specverify')]: del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
        "print(len(names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_version(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--version")
    assert code == 0
    assert out.startswith("hf_specverify")


def test_wrong_input_is_one_line_on_stderr_and_exit_code_2(monkeypatch, capsys, tmp_path):
    prompts = tmp_path / "prompts.csv"
    prompts.write_text("a\n")
    code, out, err = run(monkeypatch, capsys, "demo", "--prompts", str(prompts))
    assert (code, out) == (2, "")
    assert err.startswith("Error: prompts=")
    assert ".jsonl" in err
    assert len(err.splitlines()) == 1


def test_a_missing_file_is_one_line_on_stderr_and_exit_code_2(monkeypatch, capsys, tmp_path):
    code, _, err = run(monkeypatch, capsys, "demo", "--prompts", str(tmp_path / "absent.txt"))
    assert code == 2
    assert "absent.txt" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, capsys, tmp_path, place):
    arguments = ["demo", "--prompts", str(tmp_path / "absent.txt")]
    arguments.insert(place, "--debug")
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" in err
    assert "FileNotFoundError" in err
    assert err.splitlines()[-1].startswith("Error: ")


def test_without_a_command_there_is_help(monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys)
    assert (code, err) == (0, "")
    assert "Commands" in out


@pytest.mark.parametrize(
    "arguments", [("demo", "--batch-size", "0"), ("demo", "--no-such-option"), ("no-such-command",)]
)
def test_wrong_usage_is_exit_code_2(monkeypatch, capsys, arguments):
    code, _, err = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert arguments[-1].lstrip("-") in err or "batch-size" in err


@pytest.mark.parametrize(("arguments", "streams"), [((), True), (("--quiet",), False)])
def test_options_reach_the_demo_and_json_is_all_that_stdout_gets(monkeypatch, capsys, arguments, streams):
    received = {}

    def run_demo(options, out, err, *, stream):
        received.update(options=options, stream=stream)
        out.print("a table")
        err.print("progress")
        return {"groups": []}

    monkeypatch.setattr("hf_specverify.benchmark.demo.run_demo", run_demo)
    code, out, err = run(
        monkeypatch, capsys, "demo", "--json", "--draft", "d", "--repeats", "1", "--temperature", "0.5", *arguments
    )
    assert code == 0
    assert json.loads(out) == {"groups": []}
    assert ("progress" in err) == streams
    assert received["stream"] == streams
    assert (received["options"].draft, received["options"].repeats, received["options"].temperature) == ("d", 1, 0.5)
