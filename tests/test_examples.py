"""The examples run as they stand, on tiny models."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest
import tiny
from tokenizing import byte_tokenizer

from hf_specverify import verification

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def pair(tmp_path):
    """Folders of a tiny target and of a draft near it."""
    target = tiny.make_model(vocabulary=259)
    for name, model in (("target", target), ("draft", tiny.near_copy(target))):
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    return str(tmp_path / "target"), str(tmp_path / "draft")


def run(name, *arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_verifiers(pair, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("verifiers.py", *pair, "first prompt", "second", monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "token", "block", "greedy_multipath_block", "traversal", "traversal"
    ]  # fmt: skip
    assert all(1 <= float(line.split()[2]) <= 6 for line in lines)
    assert (tmp_path / "verifiers.png").stat().st_size > 1000


def test_mixed_prompts(tmp_path, monkeypatch, capsys):
    chat = [{"category": "stem", "turns": [f"question {n}", "more"]} for n in range(4)]
    chat.insert(1, {"category": "translation", "turns": ["no chat"]})
    chat.insert(1, {"category": "writing", "turns": ["too long" * 100]})
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, chat)))
    (tmp_path / "maths.jsonl").write_text("\n".join(json.dumps({"question": f"sum {n}"}) for n in range(3)))
    with gzip.open(tmp_path / "code.jsonl.gz", "wt") as file:
        file.write("\n".join(json.dumps({"prompt": f"def f{n}():\n"}) for n in range(3)))
    files = [str(tmp_path / name) for name in ("chat.jsonl", "maths.jsonl", "code.jsonl.gz")]
    run("mixed_prompts.py", *files, "2", monkeypatch=monkeypatch)
    texts = [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()]
    code = [f"Complete this function.\n```python\ndef f{n}():\n```" for n in range(2)]
    assert texts == ["question 0", "sum 0", code[0], "question 2", "sum 1", code[1]]


def test_replay_verifiers(pair, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond\n")
    file = tmp_path / "out.json"
    try:
        run(
            "replay_verifiers.py", *pair, str(tmp_path / "prompts.txt"), "--max-new-tokens", "20", "--batch-size", "2",
            "--json", str(file), monkeypatch=monkeypatch,
        )  # fmt: skip
    finally:
        verification._REGISTRY.pop("replay", None)
    figures = json.loads(file.read_text())["figures"]
    block = [figure for figure in figures if figure["verifier"] == "block"]
    assert [figure["length"] for figure in block] == [3, 5, 8]
    assert all(1 <= figure["tokens_per_pass"] <= 9 for figure in figures)
    names = {figure["verifier"] for figure in figures if figure["paths"] == 3}
    assert names == {
        "greedy_multipath_block", "traversal", "multi_round", "multi_round_without_replacement", "k_seq", "naive"
    }  # fmt: skip
    assert "against token" in capsys.readouterr().out
