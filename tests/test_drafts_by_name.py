"""What commands draft with: early exit and feature heads by name, and heads trimmed to the tokens of a text."""

import json

import pytest
import tiny
import torch
from heads import make_head
from rich.console import Console
from tokenizing import byte_tokenizer
from transformers import AutoTokenizer
from typer.testing import CliRunner

import hf_specverify as sv
from hf_specverify.benchmark.demo import DemoOptions, run_demo
from hf_specverify.benchmark.drafts import check_trim_text, load_draft
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.settings import BenchSettings, cells_for
from hf_specverify.cli import app
from hf_specverify.scheduling import CalibrationTable, CostModel

TEXT = "zebra zoo zigzag zebra zoo"


@pytest.fixture
def folders(tmp_path):
    target = tiny.make_model(vocabulary=259)
    for name, model in {"target": target, "draft": tiny.near_copy(target)}.items():
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    sv.FeatureHead(make_head(target, draft=64)).save_pretrained(tmp_path / "head")
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"zoo zoo {n}"}) for n in range(4)))
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def run(command, folder, **more):
    named = {"target": folder / "target", "dtype": "float32", **more}
    given = [str(part) for name, value in named.items() for part in (f"--{name.replace('_', '-')}", value)]
    result = CliRunner().invoke(app, [command, *given, *([] if command == "explain" else ["--quiet"])])
    return result, " ".join(str(result.exception).split()) + " ".join(result.output.replace("│", " ").split())


def bench(folder, **more):
    return run(
        "bench", folder, prompts=folder / "prompts.jsonl", out=folder / "out.json", num_prompts=2, batch_size="1,2",
        max_new_tokens=8, num_draft_tokens=2, temperature="0,1", repeats=1, **more,
    )  # fmt: skip


def test_bench_with_early_exit(folders):
    result, output = bench(folders, draft="early-exit:1")
    assert result.exit_code == 0, output
    found = json.loads((folders / "out.json").read_text())
    assert found["settings"]["draft"] == "early-exit:1"
    greedy = [record for record in found["runs"] if record["temperature"] == 0]
    assert {record["method"] for record in greedy} == {"plain", "stock", "ours"}
    assert all(all(record["identical_to_plain"]) for record in greedy if record["method"] != "plain")
    assert all(record["speculation"]["drafted"] > 0 for record in greedy if record["method"] == "ours")


def test_bench_with_a_head_has_no_stock(folders, monkeypatch):
    from hf_specverify.scheduling import costs_of_a_call

    monkeypatch.setattr(costs_of_a_call, "LAZY_SECONDS", 0.1)
    result, output = bench(folders, draft=f"head:{folders / 'head'}", schedule="fixed,auto")
    assert result.exit_code == 0, output
    found = json.loads((folders / "out.json").read_text())
    greedy = [record for record in found["runs"] if record["temperature"] == 0]
    assert {record["method"] for record in greedy} == {"plain", "ours"}
    ours = [record for record in greedy if record["method"] == "ours"]
    assert all(all(record["identical_to_plain"]) for record in ours)
    assert any(record["speculation"]["drafted"] > 0 for record in ours)


def test_calibrate_profile_and_explain_take_a_head(folders):
    draft = f"head:{folders / 'head'}"
    result, output = run(
        "calibrate", folders, draft=draft, companion=folders / "draft", prompts=folders / "prompts.jsonl",
        out=folders / "out", num_prompts=4, batch_size=2, max_new_tokens=12, num_draft_tokens=3, signals="q,S",
    )  # fmt: skip
    assert result.exit_code == 0, output
    table = CalibrationTable.from_pretrained(folders / "out")
    assert table.names == ("q", "S")
    assert table.origin.draft.architecture == "HeadModel" and table.origin.drafting["drafter"] == "FeatureHead"
    assert "--draft head:head " in table.origin.command and str(folders) not in table.origin.command
    options = {"draft": draft, "batch_size": "1,2", "context": 8}
    result, output = run("profile", folders, out=folders / "costs.json", tokens="1,2", budget=0.2, **options)
    assert result.exit_code == 0, output
    assert CostModel.load(folders / "costs.json").roles == ("target", "draft")
    result, output = run("explain", folders, costs=folders / "costs.json", **options)
    assert result.exit_code == 0, output
    assert "HeadModel" in output and "A draft token costs" in output


def test_generate_and_diagnose_take_a_head(folders, monkeypatch):
    from hf_specverify import generate_command

    monkeypatch.setattr(generate_command, "LAZY_SECONDS", 0.1)
    options = {"draft": f"head:{folders / 'head'}", "prompts": folders / "prompts.jsonl", "max_new_tokens": 8}
    result, output = run("generate", folders, out=folders / "answers.jsonl", schedule="auto", **options)
    assert result.exit_code == 0, output
    answers = [json.loads(line) for line in (folders / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 4 and "feature head" in answers[0]["speculation"]["drafter"]
    assert CostModel.load(next(folders.rglob("costs*.json"))).roles == ("target", "draft")
    result, output = run(
        "diagnose", folders, out=folders / "diagnosis", verification="typical", num_prompts=2, **options
    )
    assert result.exit_code == 0, output


def test_the_demo_takes_a_head(folders):
    options = DemoOptions(
        str(folders / "target"), f"head:{folders / 'head'}", folders / "prompts.jsonl", max_new_tokens=8, repeats=1
    )
    quiet = Console(quiet=True)
    (group,) = run_demo(options, quiet, quiet)["groups"]
    assert [way["way"] for way in group["ways"]] == ["plain", "stock", "ours"]  # stock looks up in place of it
    assert [way["answers_identical_to_plain"] for way in group["ways"]] == [4, 4, 4]
    for draft in ("early-exit:1", "head:"):
        with pytest.raises(ValueError, match=r"draft='.*allowed: .*head:FOLDER"):
            DemoOptions(draft=draft)


def test_a_head_goes_where_it_is_sent_in_the_dtype_that_is_asked_for(folders):
    target = load_model(str(folders / "target"), "float32")
    name = f"head:{folders / 'head'}"
    head = load_draft(name, target, "bfloat16", target_name="", device=torch.device("meta")).head
    assert (head.dtype, head.device.type) == (torch.bfloat16, "meta")
    assert load_draft(name, target, "float32", target_name="").head.device == target.device


def test_bench_with_a_trimmed_early_exit(folders):
    result, output = bench(
        folders, draft="early-exit:1", draft_quantization="none+trim:16", trim_text=folders / "text.txt"
    )
    assert result.exit_code == 0, output


def test_calibrate_profile_and_explain_take_early_exit(folders):
    result, output = run(
        "calibrate", folders, draft="early-exit:1", prompts=folders / "prompts.jsonl", out=folders / "out",
        num_prompts=4, batch_size=2, max_new_tokens=16,
    )  # fmt: skip
    assert result.exit_code == 0, output
    table = CalibrationTable.from_pretrained(folders / "out")
    assert table.origin.draft is None
    assert table.origin.drafting["drafter"] == "EarlyExit"
    assert table.origin.drafting["num_layers"] == 1
    options = {"draft": "early-exit:1", "batch_size": "1,2", "context": 8}
    result, output = run("profile", folders, out=folders / "costs.json", tokens="1,2", budget=0.2, **options)
    assert result.exit_code == 0, output
    assert CostModel.load(folders / "costs.json").roles == ("target", "draft")
    result, output = run("explain", folders, costs=folders / "costs.json", **options)
    assert result.exit_code == 0, output
    assert "tokens/s" in output


def test_generate_and_diagnose_take_early_exit(folders, monkeypatch):
    from hf_specverify import generate_command

    monkeypatch.setattr(generate_command, "LAZY_SECONDS", 0.1)
    options = {"draft": "early-exit:1", "prompts": folders / "prompts.jsonl", "max_new_tokens": 8}
    result, output = run("generate", folders, out=folders / "answers.jsonl", schedule="auto", **options)
    assert result.exit_code == 0, output
    assert len((folders / "answers.jsonl").read_text().splitlines()) == 4
    costs = next(folders.rglob("costs*.json"))
    assert CostModel.load(costs).roles == ("target", "draft")
    result, output = run(
        "diagnose", folders, out=folders / "diagnosis", verification="typical", num_prompts=2, **options
    )
    assert result.exit_code == 0, output


def kept_words(model, folder):
    words = {index: word for word, index in AutoTokenizer.from_pretrained(folder).get_vocab().items()}
    return {words[index] for index in model.kept_ids.tolist()}


def test_a_text_says_which_tokens_are_kept(folders):
    space = byte_tokenizer().tokenize(" ")[0]
    frequent = {"<pad>", "<eos>", "<bos>", "z", "o", space}
    model = load_model(str(folders / "draft"), "float32", "none+trim:6", trim_text=folders / "text.txt")
    assert kept_words(model, folders / "draft") == frequent
    # Of a file of prompts the prompts count, and not their notation.
    model = load_model(str(folders / "draft"), "float32", "none+trim:6", trim_text=folders / "prompts.jsonl")
    assert kept_words(model, folders / "draft") == frequent
    model = load_model(str(folders / "draft"), "float32", "none+trim:6")
    assert kept_words(model, folders / "draft").isdisjoint({"z", space})
    target = tiny.make_model(vocabulary=259)
    drafter = load_draft(
        "early-exit:1", target, "float32", "none+trim:6",
        target_name=str(folders / "target"), trim_text=folders / "text.txt",
    )  # fmt: skip
    assert kept_words(drafter.drafting_model(target), folders / "target") == frequent


def test_commands_keep_the_tokens_of_a_text(folders):
    options = {"draft": folders / "draft", "draft_quantization": "none+trim:16", "trim_text": folders / "text.txt"}
    result, output = bench(folders, **options)
    assert result.exit_code == 0, output
    assert json.loads((folders / "out.json").read_text())["settings"]["trim_text"] == str(folders / "text.txt")
    calibration = {"prompts": folders / "prompts.jsonl", "out": folders / "out", "num_prompts": 4, "batch_size": 2}
    result, output = run("calibrate", folders, max_new_tokens=16, **calibration, **options)
    assert result.exit_code == 0, output
    assert len(CalibrationTable.from_pretrained(folders / "out").metadata["trim_text_sha256"]) == 64
    result, output = run("profile", folders, out=folders / "costs.json", tokens="1", context=8, budget=0.1, **options)
    assert result.exit_code == 0, output


WRONG = [
    ({"draft": "early-exit"}, "draft='early-exit'.*'early-exit:N'"),
    ({"draft": "early-exit:0"}, "draft='early-exit:0'.*from 1"),
    ({"draft": "early-exit:x"}, "draft='early-exit:x'"),
    ({"draft": "early-exit:2", "draft_quantization": "nf4"}, "'nf4' with draft='early-exit:2'.*none\\+trim:N"),
    ({"draft": "early-exit:2", "draft_quantization": "none+layers:1"}, "whose layers are the target's"),
    ({"draft": "early-exit:2", "verifications": ("traversal:3",)}, "'traversal:3' with draft='early-exit:2'"),
    ({"draft": "head:"}, "draft='head:'.*'head:FOLDER' or 'head:USER/NAME'"),
    ({"draft": "head:x", "draft_quantization": "nf4"}, "'nf4' with draft='head:x'.*allowed: 'none'"),
    ({"draft": "head:x", "draft_quantization": "none+trim:9"}, "'none\\+trim:9' with draft='head:x'"),
    ({"draft": "model", "trim_text": "text.txt"}, "trim_text='text.txt'.*'\\+trim:N'"),
]


def test_heads_draw_several_paths():
    cells = cells_for(BenchSettings(draft="head:x", verifications=("traversal:3",), num_prompts=8), 1)
    assert {cell.method for cell in cells} == {"plain", "ours"}


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_bad_settings(fields, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        BenchSettings(**fields)


def test_a_text_without_a_trimmed_head_is_refused(folders):
    text = folders / "text.txt"
    with pytest.raises(ValueError, match="allowed: with '\\+trim:N'"):
        check_trim_text(text, "nf4", "none+layers:2")
    check_trim_text(text, "none", "nf4+trim:9")
    options = {"draft": folders / "draft", "trim_text": text}
    for command, more in (
        ("profile", {"out": folders / "costs.json"}),
        ("explain", {}),
        ("calibrate", {"prompts": folders / "prompts.jsonl", "out": folders / "out"}),
    ):
        result, output = run(command, folders, **options, **more)
        assert result.exit_code != 0
        assert "trim_text=" in output
    with pytest.raises(FileNotFoundError):
        load_model(str(folders / "draft"), "float32", "none+trim:6", trim_text=folders / "nothing.txt")


def test_counts_of_a_bitsandbytes_draft(tmp_path):
    """What the issue promises: counts or a text, for a quantised draft, q zero elsewhere and the law the target's."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    target = tiny.make_model(vocabulary=259, hidden_size=64, intermediate_size=64)
    target.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    draft = load_model(str(tmp_path), "float32", "nf4+trim:16", trim_text=tmp_path / "text.txt")
    assert type(draft.model.layers[0].mlp.up_proj) is bitsandbytes.nn.Linear4bit
    ids = byte_tokenizer()(TEXT)["input_ids"]
    assert set(ids) <= set(draft.kept_ids.tolist())
    by_counts = sv.trim_vocabulary(draft.trimmed_from, 16, counts=torch.bincount(torch.tensor(ids)))
    assert torch.equal(by_counts.kept_ids, draft.kept_ids)
    inputs = {"input_ids": torch.tensor([ids[:9]]), "attention_mask": torch.ones(1, 9, dtype=torch.long)}
    plain = target.generate(**inputs, max_new_tokens=12, do_sample=False)
    with sv.enabled(target):
        ours = target.generate(**inputs, max_new_tokens=12, do_sample=False, assistant_model=draft)
    assert torch.equal(plain, ours)
