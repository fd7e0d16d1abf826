"""The examples run as they stand, on tiny models."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest
import tiny
import torch
from heads import make_head
from tokenizing import byte_tokenizer
from transformers import AutoModelForCausalLM

import hf_specverify as sv
from hf_specverify import pack_weights, verification
from hf_specverify.calibrating import CalibrationSamples
from hf_specverify.drafting.heads import AcceptanceHead
from hf_specverify.int8_linear import int8_is_available
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.cost import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

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
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as the interpreter does for a script
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


def test_exit_agreement(tmp_path, monkeypatch, capsys):
    target = tiny.make_model(vocabulary=259, num_hidden_layers=4, eos_token_id=None)
    for layer in target.model.layers[2:]:  # they add nothing, so two layers say what four say
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond")
    arguments = ["--num-prompts", "2", "--max-new-tokens", "6", "--every", "1"]
    run(
        "exit_agreement.py",
        str(tmp_path / "target"),
        str(tmp_path / "prompts.txt"),
        *arguments,
        monkeypatch=monkeypatch,
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "12 tokens, 4 layers"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    assert rows[1:] == [["2", "1.000", "1.33"], ["3", "1.000", "1.14"]]
    assert float(rows[0][1]) < 0.5


def test_head_signals(pair, tmp_path, monkeypatch, capsys):
    target = AutoModelForCausalLM.from_pretrained(pair[0])
    head = make_head(target, draft=128)
    acceptance = AcceptanceHead(head.config.hidden_size).requires_grad_(False)
    sv.FeatureHead(head, acceptance=acceptance).save_pretrained(tmp_path / "head")
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond\nthird one\nfourth")
    arguments = [pair[0], str(tmp_path / "head"), str(tmp_path / "prompts.txt"), "--num-prompts", "4"]
    arguments += ["--max-new-tokens", "16", "--num-draft-tokens", "2"]
    run("head_signals.py", *arguments, "--companion", pair[1], monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    first = {row[0]: row[1:] for row in cells}
    assert {"expected", "q", "entropy", "S", "A", "expected, q", "S, A", "entropy, S"} <= set(first)
    sets = {name: float(first[name][1]) for name in ("of the head's law", "and its acceptance head", "of all")}
    assert sets["of the head's law"] <= sets["and its acceptance head"] <= sets["of all"]
    said = dict(line.split(" adds ") for line in lines if " adds " in line)
    for name, gain in (
        ("The acceptance head", sets["and its acceptance head"] - sets["of the head's law"]),
        ("The companion", sets["of all"] - sets["and its acceptance head"]),
    ):
        assert float(said[name].split()[0]) == pytest.approx(gain, abs=2e-4)
    assert all(float(first[name][0]) > 0 for name in ("acceptance head", "companion"))
    assert int(first["acceptance head"][1]) > int(first["companion"][1])  # a forward a token, against one a step
    run("head_signals.py", *arguments, "--temperature", "0", monkeypatch=monkeypatch)
    assert "companion" not in capsys.readouterr().out
    sv.FeatureHead(head).save_pretrained(tmp_path / "head")
    with pytest.raises(SystemExit):
        run("head_signals.py", *arguments, monkeypatch=monkeypatch)
    assert "has no acceptance head" in capsys.readouterr().err


def test_packed_passes(pair, monkeypatch, capsys):
    packed = []
    monkeypatch.setattr(sv, "pack_weights", lambda model: packed.append(pack_weights(model)))
    run(
        "packed_passes.py",
        pair[0],
        "--batch-size",
        "1",
        "2",
        "--tokens",
        "3",
        "--repeats",
        "2",
        monkeypatch=monkeypatch,
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["1", "3"], ["2", "3"]]
    assert all(float(cell) > 0 for row in rows for cell in [*row[2:4], *row[4].split(",")])
    assert len(packed) == 4 and all(packed)


@pytest.mark.parametrize("packed", [["--batch-size", "1"], ["--packed", "--temperature", "1"]])
def test_head_drafts(pair, tmp_path, packed, monkeypatch, capsys):
    target = AutoModelForCausalLM.from_pretrained(pair[0])
    sv.FeatureHead(make_head(target, draft=128)).save_pretrained(tmp_path / "head")
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond")
    arguments = [
        pair[0],
        str(tmp_path / "head"),
        str(tmp_path / "prompts.txt"),
        "--max-new-tokens",
        "9",
        "--repeats",
        "1",
        *packed,
    ]
    run("head_drafts.py", *arguments, monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    rows = {row[0]: row[1:] for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])}
    trees = [f"tree of {nodes}{cut}" for nodes in (4, 7, 12) for cut in ("", ", cut")]
    assert list(rows) == ["chain of 1", "chain of 2", "chain of 3", "chain, auto", *trees]
    assert all(float(row[0]) >= 1 and float(row[3].split(",")[0]) > 0 for row in rows.values())
    scored = {name: float(row[1]) for name, row in rows.items()}
    assert 0 < scored["chain of 1"] < scored["chain of 3"] < scored["tree of 12"]


@pytest.mark.skipif(not int8_is_available(), reason="no fbgemm")
@pytest.mark.parametrize("more", [[], ["--auto", "--temperature", "1", "--batch-size", "2"]])
def test_draft_forms(pair, tmp_path, more, monkeypatch, capsys):
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond\nthird")
    (tmp_path / "text.txt").write_text("first second third")
    forms = ["none", "int8-copy", "none+trim:100", "int8-copy+layers:1+trim:100"]
    arguments = [*pair, str(tmp_path / "prompts.txt"), "--trim-text", str(tmp_path / "text.txt"), "--forms", *forms]
    run("draft_forms.py", *arguments, "--max-new-tokens", "9", *more, monkeypatch=monkeypatch)
    plain, *lines = capsys.readouterr().out.splitlines()
    assert plain.startswith(f"batch {2 if '--batch-size' in more else 1}, plain: ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    lengths = ["3", "auto"] if "--auto" in more else ["3"]
    assert [row[:2] for row in rows] == [[form, length] for form in forms for length in lengths]
    fixed = [row for row in rows if row[1] == "3"]
    assert all(float(row[2]) >= 0 and 0 <= float(row[3]) <= 1 and 1 <= float(row[4]) <= 4 for row in fixed)
    assert all(float(row[5].split()[0]) > 0 for row in rows)
    with pytest.raises(SystemExit, match="allowed are none and int8-copy"):
        run("draft_forms.py", *arguments[:-4], "nf4", monkeypatch=monkeypatch)


def test_draft_forms_beside_other_drafters_and_stock(pair, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompts.txt").write_text("first prompt first prompt\nsecond\nthird")
    arguments = [*pair, str(tmp_path / "prompts.txt"), "--forms", "none", "lookup", "early-exit:1", "--stock"]
    more = ["--max-new-tokens", "9", "--num-draft-tokens", "1", "3", "--batch-size", "1", "3"]
    run("draft_forms.py", *arguments, *more, monkeypatch=monkeypatch)
    tables: list[list[list[str]]] = []
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("batch "):
            tables.append([])
        elif not line.startswith(("| drafter", "| ---")):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    names = [[name, length] for name in ("none", "lookup", "early-exit:1") for length in "13"]
    stock = [[f"stock, {name}", length] for length in "13" for name in ("none", "lookup")]
    assert [[row[:2] for row in table] for table in tables] == [names + stock, names]
    assert all(row[2:5] == ["–", "–", "–"] for row in tables[0][len(names) :])
    assert all(1 <= float(row[4]) <= 1 + int(row[1]) for table in tables for row in table if "stock" not in row[0])
    assert all(float(row[5].split()[0]) > 0 for table in tables for row in table)


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


def test_step_times_and_the_speeds_that_follow(pair, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond\n")
    steps, replay = tmp_path / "steps.json", tmp_path / "replay.json"
    run(
        "step_times.py", *pair, str(tmp_path / "prompts.txt"), "--max-new-tokens", "28", "--batch-size", "2",
        "--repeats", "1", "--json", str(steps), monkeypatch=monkeypatch,
    )  # fmt: skip
    figures = json.loads(steps.read_text())["figures"]
    assert all(figure["milliseconds"] > 0 and figure["steps"] > 0 for figure in figures)
    ways = {(figure["verifier"], figure["paths"]) for figure in figures}
    assert {("plain", 1), ("block", 1), ("k_seq", 4)} <= ways
    for figure in figures:
        figure["milliseconds"] = 10.0 if figure["verifier"] == "plain" else 20.0
    steps.write_text(json.dumps({"figures": figures}))
    found = [{**figure, "tokens_per_pass": 1.0 + figure["paths"]} for figure in figures]
    replay.write_text(json.dumps({"temperature": 0.6, "figures": found}))
    capsys.readouterr()
    run("step_times.py", "--speed", str(steps), str(replay), monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| verifier | K | T=0.6, L=3 | T=0.6, L=5")
    assert "| `traversal` | 3 | 2.00 | 2.00 | 2.00 |" in lines


def test_domain_switch(tmp_path, monkeypatch, capsys):
    generator = torch.Generator().manual_seed(0)
    for name, share in (("code", 1.0), ("chat", 0.5)):
        samples = CalibrationSamples.empty(("q", "position"))
        q = torch.rand(3000, generator=generator)
        samples.add({"q": q, "position": torch.ones(3000)}, share * q, torch.arange(3000) // 30, 100)
        (tmp_path / name).mkdir()
        samples.save(tmp_path / name / "samples.safetensors")
    plot = tmp_path / "switch.png"
    folders = [str(tmp_path / name) for name in ("code", "chat")]
    run("domain_switch.py", *folders, "--plot", str(plot), monkeypatch=monkeypatch)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if "–" in line]
    fixed, followed = (float(rows[-1][column]) for column in (6, 7))
    assert fixed > 0.05
    assert followed < fixed / 4
    assert float(rows[0][8]) == pytest.approx(0, abs=0.05)
    assert float(rows[-1][8]) == pytest.approx(-0.25, abs=0.06)
    assert plot.stat().st_size > 1000
    with pytest.raises(SystemExit, match="not recorded"):
        run("domain_switch.py", *folders, "--signals", "A", monkeypatch=monkeypatch)


def test_fit_samples(tmp_path, monkeypatch, capsys):
    """Two folders in which acceptance is q; what is joined tells as much, and the table predicts it."""
    generator = torch.Generator().manual_seed(0)
    for name in ("chat", "code"):
        samples, q = CalibrationSamples.empty(("q", "position")), torch.rand(3000, generator=generator)
        samples.add(
            {"q": q, "position": torch.ones(3000)}, (torch.rand(3000) < q).float(), torch.arange(3000) // 30, 100
        )
        (tmp_path / name).mkdir()
        samples.save(tmp_path / name / "samples.safetensors")
    folders, out = [str(tmp_path / name) for name in ("chat", "code")], tmp_path / "table"
    run(
        "fit_samples.py",
        *folders,
        "--signals",
        "q",
        "--compare",
        "position",
        "--out",
        str(out),
        monkeypatch=monkeypatch,
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6000 positions")
    assert float(lines[1].split()[1]) > 0.2 > float(lines[2].split()[1])
    predicted = CalibrationTable.from_pretrained(out).predict({"q": torch.tensor([0.2, 0.8])})
    assert predicted.tolist() == pytest.approx([0.2, 0.8], abs=0.06)
    with pytest.raises(SystemExit, match="not recorded"):
        run("fit_samples.py", *folders, "--signals", "A", monkeypatch=monkeypatch)
    with pytest.raises(SystemExit, match="there is none"):
        run("fit_samples.py", str(tmp_path), "--signals", "q", monkeypatch=monkeypatch)


def test_companion_cost(tmp_path, monkeypatch, capsys):
    """The cheaper the companion the better; what the drafter's signals bring alone does not depend on it."""
    generator = torch.Generator().manual_seed(0)
    length, c = torch.randint(1, 3, (4000,), generator=generator).float(), torch.rand(4000, generator=generator)
    signals = {"match_length": length, "c": c}
    table = CalibrationTable.fit(signals, (c > 0.4).float(), sets=[("match_length", "c")])
    table.save_pretrained(tmp_path / "table")
    points = [Point(role, 8, 8, n, 0.8 + 0.05 * n) for role in ("target", "companion") for n in (8, 64)]
    CostModel(points, Fingerprint.of({})).save(tmp_path / "costs.json")
    arguments = [str(tmp_path / "table"), str(tmp_path / "costs.json"), "--batch-size", "8", "--context", "8"]
    run("companion_cost.py", *arguments, monkeypatch=monkeypatch)
    row = [float(cell) for cell in capsys.readouterr().out.splitlines()[-1].split("|")[2:-1]]
    assert row[:5] == sorted(row[:5])
    assert row[0] < row[5] < row[4]


def test_draft_cost(tmp_path, monkeypatch, capsys):
    """Cheaper drafts speed speculation up; a companion that knows what q does not is the best way to cut them."""
    generator = torch.Generator().manual_seed(0)
    q, A = (torch.rand(4000, generator=generator) for _ in range(2))
    table = CalibrationTable.fit({"A": A, "q": q}, (A > 0.5).float(), sets=[("A", "q")])
    table.save_pretrained(tmp_path / "table")
    slopes = {"target": 0.05, "draft": 0.01, "companion": 0.001}
    points = [Point(role, 8, 8, n, slope * (4 + n)) for role, slope in slopes.items() for n in (8, 72)]
    CostModel(points, Fingerprint.of({})).save(tmp_path / "costs.json")
    arguments = [str(tmp_path / "table"), str(tmp_path / "costs.json"), "--batch-size", "8", "--context", "8"]
    run("draft_cost.py", *arguments, monkeypatch=monkeypatch)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    rows = {line[1]: [float(cell) for cell in line[2:]] for line in lines}
    assert rows["a draft pass, of a target pass"] == [0.2, 0.1, 0.05, 0.02, 0.01]
    fixed = rows["best fixed length over plain"]
    assert fixed == sorted(fixed) and fixed[0] < fixed[-1]
    cut, asked = (rows[f"{way} over the better of these"] for way in ("cut", "cut with companion"))
    assert all(one > other for one, other in zip(asked, cut, strict=True))
    assert asked[-1] > asked[0] and asked[-1] > 1.05


def test_lossy_sweep(pair, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompts.txt").write_text("first prompt\nsecond\n")
    file = tmp_path / "sweep.json"
    run(
        "lossy_sweep.py", *pair, str(tmp_path / "prompts.txt"), "--num-prompts", "2", "--max-new-tokens", "12",
        "--json", str(file), monkeypatch=monkeypatch,
    )  # fmt: skip
    results = {(r["rule"], *sorted(map(str, r["options"].items()))): r for r in json.loads(file.read_text())}
    rules = {name for name, *_ in results}
    assert rules == {name for name, info in verification.verifiers().items() if not info.lossless}
    lenient = [results["lenience", f"('leniency', {leniency})"] for leniency in (0.8, 0.3)]
    assert lenient[0]["tv"] < lenient[1]["tv"] and lenient[0]["accepted"] < lenient[1]["accepted"]
    for result in results.values():
        cap = result["options"].get("max_overshoot")
        assert cap is None or result["ratio_95"] <= max(cap, 1) * 1.0001
        assert 0 < result["accepted"] <= 1.0001 and -1e-6 < result["tv"] < 1
        assert ("matched_surprise" in result) == (result["rule"] in ("typical", "min_p"))
    assert capsys.readouterr().out.count("| `lenience` ") == 4 + 3


def test_head_prompts(tmp_path, monkeypatch):
    for name in ("one", "two"):
        run("head_prompts.py", str(tmp_path / name), "--count", "300", monkeypatch=monkeypatch)
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "one").read_text().splitlines()]
    assert len(prompts) == len(set(prompts)) == 300
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    assert any("```python" in prompt for prompt in prompts)
    # None of the demo's own prompts, for its measurements are to be of prompts that a head never saw.
    from hf_specverify.benchmark.demo_prompts import BUILT_IN

    assert not {text for group in BUILT_IN for text in group.prompts} & set(prompts)


def test_library_prompts(tmp_path, monkeypatch, capsys):
    library = tmp_path / "library"
    (library / "test").mkdir(parents=True)
    body = "\n".join(f"        number += {step}" for step in range(3))
    functions = [
        f'class Kind:\n    def add_{name}(self, number):\n        """Adds {name}."""\n{body}\n        return number\n'
        for name in ("ones", "tens", "more")
    ]
    unasked = (
        'def tiny():\n    """Too short."""\n\n\ndef untold(a):\n    a += 1\n    a += 2\n    a += 3\n    return a\n'
    )
    (library / "kinds.py").write_text("\n\n".join([*functions, unasked]))
    (library / "broken.py").write_text("def no(:\n")
    (library / "test" / "left_out.py").write_text(functions[0].replace("ones", "none"))
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(library)})
    for name in ("one", "two"):
        run("library_prompts.py", str(tmp_path / name), "--count", "3", monkeypatch=monkeypatch)
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "one").read_text().splitlines()]
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    for name in ("ones", "tens", "more"):
        [prompt] = [prompt for prompt in prompts if f"add_{name}" in prompt]
        question, code = prompt.split("\n\n```python\n")
        assert question[-1] in ".?" and f"Adds {name}." in code
        compile(code.removesuffix("```"), "shown", "exec")  # the source stands at the left
    with pytest.raises(SystemExit):
        run("library_prompts.py", str(tmp_path / "many"), "--count", "4", monkeypatch=monkeypatch)
    assert "the library has 3 such functions, not 4" in capsys.readouterr().err
