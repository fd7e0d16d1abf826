"""What all commands have in common: help, JSON, quiet, errors, interrupts, names of options."""

import importlib
import json
import signal
import sys
from collections import defaultdict

import pytest
import tiny
import typer
from hub_tables import full_table
from tokenizing import byte_tokenizer

from hf_specverify import cli
from hf_specverify.hub import pushing, shipped

# Each command: where it is, what a user may interrupt there, and whether it takes long.
PLACES = {
    "demo": ("hf_specverify.benchmark.demo", "load_model", True),
    "generate": ("hf_specverify.placing", "load_model", True),
    "bench": ("hf_specverify.benchmark.bench_command", "load_model", True),
    "calibrate": ("hf_specverify.placing", "load_model", True),
    "profile": ("hf_specverify.profile_command", "load_model", True),
    "explain": ("hf_specverify.explain_command", "load_model", True),
    "companion": ("hf_specverify.companion_command", "make_companion", False),
    "diagnose": ("hf_specverify.placing", "load_model", True),
    "train-head": ("hf_specverify.train_head_command", "load_model", True),
    "push": ("hf_specverify.push_command", "push_folder", False),
    "tables": ("hf_specverify.tables_command", "load_model", False),
}
HEAD = ["--draft-vocab-size", 16, "--unroll", 1, "--epochs", 1, "--max-length", 20, "--max-new-tokens", 6]
EVERY = pytest.mark.parametrize("name", PLACES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target, a draft near it, prompts, and a calibration."""
    place = tmp_path_factory.mktemp("commands")
    target = tiny.make_model(vocabulary=259)
    draft = tiny.near_copy(target)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(place / name)
        byte_tokenizer().save_pretrained(place / name)
    (place / "prompts.txt").write_text("first text\nanother one\n")
    full_table(target, draft, names=("q",)).save_pretrained(place / "tables" / "tiny" / "chat")
    return place


@pytest.fixture(autouse=True)
def elsewhere(folder, monkeypatch):
    """The Hub, and the tables that come along."""
    monkeypatch.setattr(pushing, "upload", lambda folder, repo_id, **options: "c" * 40)
    monkeypatch.setattr(shipped, "PLACES", (folder / "tables",))


def arguments(name, folder):
    """A small run of a command that succeeds."""
    models = ["--target", folder / "target", "--draft", folder / "draft", "--dtype", "float32"]
    prompts = ["--prompts", folder / "prompts.txt"]
    small = ["--max-new-tokens", 6, "--num-prompts", 2, "--batch-size", 2]
    out = ["--out", folder / f"{name}-out"]
    return {
        "demo": [*models, *prompts, "--max-new-tokens", 4, "--batch-size", 2, "--repeats", 1],
        "bench": [*models, *prompts, *small, "--num-draft-tokens", 2, "--temperature", 0, "--repeats", 1],
        "calibrate": [*models, *prompts, *small, *out],
        "generate": [*models, *prompts, *small, *out],
        "profile": [*models, *out, "--batch-size", 1, "--tokens", "1,2", "--context", 8],
        "explain": [*models, "--batch-size", 1, "--context", 8],
        "companion": [*models[2:], *out, "--method", "layers", "--num-layers", 1],
        "diagnose": [*models, *prompts, *small, *out, "--no-matched"],
        "train-head": [*models[:2], *models[4:], *prompts, *out, *HEAD],
        "push": [folder / "tables" / "tiny" / "chat", "me/table"],
        "tables": [*models],
    }[name]


@pytest.fixture
def run(monkeypatch, capfd):
    """Call main() as the installed script does; returns exit code, stdout, stderr."""

    def call(*given):
        monkeypatch.setattr(sys, "argv", ["specverify", *map(str, given)])
        monkeypatch.setenv("COLUMNS", "200")
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, *capfd.readouterr()

    return call


def test_these_are_all_commands():
    assert sorted(PLACES) == sorted(
        command.name or command.callback.__name__ for command in cli.app.registered_commands
    )


@EVERY
def test_help_has_examples(name, run):
    for flag in ("--help", "-h"):
        code, out, err = run(name, flag)
        assert (code, err) == (0, "")
        for text in ("Examples", f"specverify {name} ", "--json", "--quiet", "-q"):
            assert text in out


@EVERY
def test_json_is_one_document_and_quiet_is_quiet(name, run, folder):
    given = [*arguments(name, folder), "--json"]
    if name != "companion":  # makes its folder once
        code, out, err = run(name, *given)
        assert code == 0, err
        json.loads(out)
        assert (err != "") == PLACES[name][2] or name == "tables", "progress of long work belongs on stderr"
    code, out, err = run(name, *given, "--quiet")
    assert (code, err) == (0, "")
    assert isinstance(json.loads(out), dict | list)
    assert not _constants(out)


def _constants(text):
    found = []
    json.loads(text, parse_constant=found.append)
    return found


WRONG = {
    "an unknown option": lambda name, folder: ["--no-such-option", "1"],
    "a value of another type": lambda name, folder: WRONG_VALUES.get(name, ["--dtype", "float31"]),
    "a folder that isn't there": lambda name, folder: MISSING.get(name, ["--target", str(folder / "absent")]),
}
WRONG_VALUES = {"push": ["one-too-many"], "bench": ["--temperature", "warm"], "diagnose": ["--top-p", "many"]}
MISSING = {"companion": ["--draft", "/absent/model"], "push": ["absent-folder", "me/table"]}


def wrong(name, folder, kind):
    given = arguments(name, folder)
    if name == "push" and kind != "an unknown option":
        return [*(given if kind.startswith("a value") else []), *WRONG[kind](name, folder)]
    if name == "companion":
        given[given.index("--out") + 1] = folder / "new"
    return [*given, *WRONG[kind](name, folder)]


@EVERY
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_input_is_exit_code_2_and_one_line(name, kind, run, folder):
    given = wrong(name, folder, kind)
    code, out, err = run(name, *given, "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert len(err.splitlines()) == 1
    code, out, err = run(name, *given, "--quiet", "--debug")
    assert (code, out) == (2, "")
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("Error: ")


@EVERY
def test_an_interrupt_is_130_and_one_line(name, run, folder, monkeypatch):
    module, worker, _ = PLACES[name]
    monkeypatch.setattr(f"{module}.{worker}", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        assert run(name, *arguments(name, folder)) == (130, "", "Interrupted\n")
    finally:
        signal.signal(signal.SIGINT, before)


@EVERY
def test_a_fault_of_ours_is_1_and_one_line(name, run, folder, monkeypatch):
    def fail(*_, **__):
        raise KeyError("nowhere")

    module, worker, _ = PLACES[name]
    monkeypatch.setattr(f"{module}.{worker}", fail)
    code, out, err = run(name, *arguments(name, folder))
    assert (code, out) == (1, "")
    assert err == "Error: KeyError: 'nowhere' (--debug shows the traceback)\n"
    code, _, err = run(name, *arguments(name, folder), "--debug")
    assert code == 1
    assert "Traceback" in err


def options():
    """{command: {name of an option: (all its names, its help)}}"""
    found = {}
    for name in PLACES:
        single = typer.Typer()
        module = {"bench": "benchmark.bench_command"}.get(name, f"{name}_command".replace("-", "_"))
        function = "bench" if name == "bench" else module
        if name == "demo":
            single.command()(cli.demo)
        else:
            single.command()(getattr(importlib.import_module(f"hf_specverify.{module}"), function))
        parameters = [one for one in typer.main.get_command(single).params if one.opts[0].startswith("--")]
        found[name] = {one.opts[0]: (tuple(one.opts), one.help) for one in parameters}
    return found


def test_the_same_thing_has_the_same_name_everywhere():
    by_name, by_help = defaultdict(set), defaultdict(set)
    for command in options().values():
        assert {"--json", "--quiet"} <= set(command)
        for name, (names, text) in command.items():
            by_name[name].add(names)
            by_help[text].add(name)
    assert all(len(names) == 1 for names in by_name.values())
    quantizations = {"--draft-quantization", "--companion-quantization"}
    assert all(len(names) == 1 or names == quantizations for names in by_help.values())
    # What `generate` has too is called as it is there; a benchmark takes several values of it.
    for other in ("--rule", "--option", "--sample", "--draft-length", "--gamma", "--output", "--model", "--limit"):
        assert other not in by_name
    for name in ("--target", "--draft", "--companion", "--prompts", "--out", "--dtype", "--max-new-tokens"):
        assert sum(name in command for command in options().values()) >= 3
