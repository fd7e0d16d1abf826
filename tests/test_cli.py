"""The command line: help, version, exit codes and messages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_specverify import cli

PACKAGE = str(Path(cli.__file__).parent)


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
    for option in ("--target", "--draft", "--prompts", "--batch-size", "--sample", "--max-new-tokens", "--repeats"):
        assert option in out


def test_help_of_the_benchmark_is_its_own(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "bench", "--help")
    assert code == 0
    assert "--draft-length" in out
    assert "specverify bench" in out


def test_the_command_line_imports_neither_torch_nor_transformers_for_help():
    # The package's own __init__ is kept out: what is looked at is what this module and its help import.
    code = (
        "import sys, types\n"
        f"package = types.ModuleType('hf_specverify'); package.__path__ = [{PACKAGE!r}]\n"
        "sys.modules['hf_specverify'] = package; sys.argv = ['specverify', '--help']\n"
        "from hf_specverify import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"


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
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, tmp_path, place):
    arguments = ["demo", "--prompts", str(tmp_path / "absent.txt")]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["specverify", *arguments])
    with pytest.raises(FileNotFoundError):
        cli.main()


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
        monkeypatch, capsys, "demo", "--json", "--draft", "d", "--repeats", "1", "--sample", *arguments
    )
    assert code == 0
    assert json.loads(out) == {"groups": []}
    assert ("progress" in err) == streams
    assert received["stream"] == streams
    assert (received["options"].draft, received["options"].repeats, received["options"].sample) == ("d", 1, True)
