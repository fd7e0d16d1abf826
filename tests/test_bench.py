"""The benchmark end to end with tiny models: what is run, what is written, resuming, and the command line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from hf_specverify.benchmark import bench as bench_module
from hf_specverify.benchmark import runs as runs_module
from hf_specverify.benchmark.bench import BlockRunner, blocks_of, count_runs, run_bench
from hf_specverify.benchmark.bench_command import bench
from hf_specverify.benchmark.environment import load_model
from hf_specverify.benchmark.measuring import Commit
from hf_specverify.benchmark.prompts import encode_chunk
from hf_specverify.benchmark.records import RunRecord
from hf_specverify.benchmark.result import BenchResult, ResumeError
from hf_specverify.benchmark.runs import Outcome, run_cell
from hf_specverify.benchmark.settings import LOOKUP, BenchSettings, Block, Cell, cells_for, rotated
from hf_specverify.benchmark.summary import CellSummary, GroupSummary, Spread, table_of
from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.cost_points import Point
from hf_specverify.scheduling.fingerprint import Fingerprint

PROMPTS = ["the cat sat on the mat and the cat", "one two three", "a b a b a b a", "red green blue red green"]
TINY = BenchSettings(
    target="tiny",
    draft="tiny-draft",
    num_prompts=2,
    max_new_tokens=6,
    batch_sizes=(1, 2),
    draft_lengths=(2, 3),
    temperatures=(0.0, 1.0),
    dtype="float32",
    repeats=1,
)


class WordTokenizer:
    """Every word is one of the ids 3 to 63."""

    pad_token_id = 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [3 + sum(map(ord, word)) % 61 for word in text.split()]}


def tiny_model(seed: int, hidden: int = 32) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def target() -> Any:
    torch.set_num_threads(1)
    return tiny_model(0)


@pytest.fixture(scope="module")
def draft() -> Any:
    return tiny_model(1)


@pytest.fixture(scope="module")
def result(target: Any, draft: Any) -> BenchResult:
    return run_bench(TINY, target, draft, WordTokenizer(), PROMPTS)


# --- sampling options -------------------------------------------------------------------------------------------------


def test_generation_configs_are_neutral_inside_and_restored_after_an_error(target: Any) -> None:
    original = target.generation_config
    original.repetition_penalty = 3.0
    try:
        assert runs_module.neutralised_fields(target) == {"repetition_penalty": 3.0}
        with pytest.raises(RuntimeError), runs_module.neutral_generation([target], 0):
            assert target.generation_config.repetition_penalty is None
            assert target.generation_config.eos_token_id == 2
            raise RuntimeError
        assert target.generation_config is original
    finally:
        original.repetition_penalty = None


def test_stock_drafts_exactly_the_length_of_the_cell(target: Any) -> None:
    """A draft that is the target itself is always right, so every block brings draft length + 1 tokens."""
    inputs = encode_chunk(WordTokenizer(), PROMPTS[:1], 0, target.device)
    options = runs_module.token_options(replace(TINY, max_new_tokens=12, ignore_eos=True), 0.0)
    twin = tiny_model(0)
    with runs_module.neutral_generation([target, twin], 0):
        before = twin.generation_config
        outcome = run_cell(Cell("stock", 3), target, twin, inputs, options)
        assert twin.generation_config is before
    assert [commit.tokens[0] for commit in outcome.commits] == [4, 4, 4]
    assert before.num_assistant_tokens is None


def test_plain_is_stamped_once_per_token(target: Any) -> None:
    inputs = encode_chunk(WordTokenizer(), PROMPTS[:2], 0, target.device)
    outcome = run_cell(Cell("plain"), target, LOOKUP, inputs, {"max_new_tokens": 5, "min_new_tokens": 5})
    assert [commit.tokens for commit in outcome.commits] == [{0: 1, 1: 1}] * 5
    times = [commit.elapsed for commit in outcome.commits]
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] <= outcome.wall_seconds
    assert outcome.new_ids.shape == (2, 5)


# --- end to end -------------------------------------------------------------------------------------------------------


def test_every_cell_runs_in_the_recorded_order(result: BenchResult) -> None:
    assert result.complete
    assert len(result.runs) == count_runs(TINY) == 2 * (2 * 5 + 3)
    blocks = list(dict.fromkeys(run.block_key for run in result.runs))
    assert blocks == [block.key for block in blocks_of(TINY)]
    for turn, key in enumerate(blocks):
        runs = [run for run in result.runs if run.block_key == key]
        assert [run.cell for run in runs] == [cell.name for cell in rotated(cells_for(TINY, key[0]), turn)]
        assert [run.position for run in runs] == list(range(len(runs)))
        assert len({run.seed for run in runs}) == 1


def test_greedy_output_is_that_of_plain_decoding(result: BenchResult) -> None:
    greedy = [run for run in result.runs if run.temperature == 0 and run.method != "plain"]
    assert all(run.identical_to_plain == (True,) * run.batch_size for run in greedy)
    assert all(run.identical_to_plain is None for run in result.runs if run.temperature or run.method == "plain")


def test_what_ours_reports_agrees_with_what_came_out(result: BenchResult) -> None:
    for run in result.runs:
        assert (run.speculation is not None) == (run.method == "ours")
        assert all(0 < first <= run.wall_seconds for first in run.time_to_first_token)
        if run.speculation is not None:
            assert run.speculation.committed == sum(run.new_tokens)
            assert 0 <= run.speculation.acceptance_rate <= 1
            assert 0 < run.speculation.seconds_outside_forwards < run.wall_seconds


def test_schema_of_the_file(result: BenchResult, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result.save(file)
    fields = json.loads(file.read_text())
    described = {"settings", "environment", "prompts", "sampling", "command_line"}
    assert set(fields) == {"schema_version", "complete", "summary", "runs"} | described
    assert {"torch", "transformers", "hf_specverify", "cpu", "threads", "device"} <= set(fields["environment"])
    assert fields["prompts"]["indices"] == [0, 2]
    assert fields["settings"]["temperatures"] == [0.0, 1.0]
    assert {"seed", "position", "new_tokens", "wall_seconds", "speculation"} <= set(fields["runs"][0])
    assert {"ratio_to_plain", "ratio_to_stock", "identical_share"} <= set(fields["summary"][0]["cells"][0])
    assert BenchResult.load(file) == result


def test_tables_show_every_cell(result: BenchResult) -> None:
    for group in result.summary():
        table = table_of(group)
        assert table.row_count == len(group.cells)
        titles = [column.header for column in table.columns]
        assert ("× stock\nmin–max" in titles) == (group.batch_size == 1)
        assert ("same" in titles) == (group.temperature == 0)


def test_a_full_table_fits_80_columns() -> None:
    spread = Spread(2.34, 1.0, 4.0, 1.04, 9.55, 9)
    cell = CellSummary(
        "stock L=15", "stock", 15, spread, spread, spread, spread, spread, 9.5, 1.0, 12.25, 1.0, 0.12, {}, 2**30, spread
    )
    console = Console(width=80, file=io.StringIO())
    console.print(table_of(GroupSummary(16, 1.0, 12, (cell,))))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert all(figure in shown for figure in ("1.04–9.55", "2340", "9500", "12.25", "100%", "12%", "1024"))
    assert shown.count("2.34") == 4  # tok/s, × plain, by cost, × stock


def test_rows_end_at_the_end_of_text_unless_it_is_ignored() -> None:
    talkative = tiny_model(2)
    talkative.generation_config.eos_token_id = list(range(2, 30))
    settings = replace(TINY, draft=LOOKUP, max_new_tokens=12, draft_lengths=(3,), temperatures=(0.0,))
    runs = run_bench(settings, talkative, LOOKUP, WordTokenizer(), PROMPTS).runs
    assert min(count for run in runs for count in run.new_tokens) < settings.max_new_tokens
    assert all(run.speculation.committed == sum(run.new_tokens) for run in runs if run.speculation is not None)
    assert all(all(run.identical_to_plain) for run in runs if run.identical_to_plain is not None)
    runs = run_bench(replace(settings, ignore_eos=True), talkative, LOOKUP, WordTokenizer(), PROMPTS).runs
    assert {run.method for run in runs} == {"plain", "stock", "ours"}
    assert {count for run in runs for count in run.new_tokens} == {settings.max_new_tokens}


def test_memory_is_recorded_when_asked(target: Any, result: BenchResult) -> None:
    settings = replace(
        TINY, draft=LOOKUP, profile_memory=True, temperatures=(1.0,), batch_sizes=(2,), draft_lengths=(2,)
    )
    profiled = run_bench(settings, target, LOOKUP, WordTokenizer(), PROMPTS)
    assert all(run.peak_memory_bytes is not None and run.peak_memory_bytes >= 0 for run in profiled.runs)
    assert all(run.peak_memory_bytes is None for run in result.runs)


def test_each_run_is_seeded_and_compared_row_by_row(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted runs: ours gets the second row wrong, and every run notes the seed that it saw."""
    seeds: list[int] = []

    def scripted(cell: Cell, target: Any, draft: Any, inputs: Any, *options: Any) -> Outcome:
        seeds.append(torch.initial_seed())
        torch.manual_seed(123)
        ids = torch.tensor([[5, 6, 2], [7, 8, 9 if cell.method == "plain" else 10]])
        return Outcome(ids, 1.0, [Commit(0.5, {0: 3, 1: 3})])

    monkeypatch.setattr(bench_module, "run_cell", scripted)
    runner = BlockRunner(replace(TINY, seed=40), target, LOOKUP, WordTokenizer(), PROMPTS, 0, {})
    records = runner.run(Block(2, 0.0, 0, 1, (0, 1)), 0)
    assert seeds == [41, 41, 41]
    assert [record.seed for record in records] == seeds
    assert [record.identical_to_plain for record in records] == [None, (True, False), (True, False)]
    assert records[0].tokens_per_second == 6.0


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_an_interrupted_run_continues_without_repeating(target: Any, tmp_path: Path) -> None:
    settings = replace(TINY, draft=LOOKUP, batch_sizes=(1,), draft_lengths=(2,))
    file = tmp_path / "out.json"

    def interrupt(result: BenchResult) -> None:
        result.save(file)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench(settings, target, LOOKUP, WordTokenizer(), PROMPTS, on_block=interrupt)
    previous = BenchResult.load(file)
    assert not previous.complete
    assert len(previous.runs) == 3
    fresh: list[RunRecord] = []
    result = run_bench(settings, target, LOOKUP, WordTokenizer(), PROMPTS, previous=previous, on_run=fresh.append)
    assert result.complete
    assert result.runs[:3] == previous.runs
    assert len(result.runs) == count_runs(settings)
    assert len(fresh) == len(result.runs) - 3
    assert [block.key for block in blocks_of(settings)] == list(dict.fromkeys(run.block_key for run in result.runs))


def test_resuming_something_else_is_refused(target: Any, draft: Any, result: BenchResult) -> None:
    def resume(previous: BenchResult, settings: BenchSettings = TINY, prompts: list[str] = PROMPTS) -> None:
        run_bench(settings, target, draft, WordTokenizer(), prompts, previous=previous)

    with pytest.raises(ResumeError, match=r"settings\.max_new_tokens was 6 and is 7 now; allowed"):
        resume(result, replace(TINY, max_new_tokens=7))
    with pytest.raises(ResumeError, match=r"environment\.torch was '0\.1'"):
        resume(replace(result, environment={**result.environment, "torch": "0.1"}))
    with pytest.raises(ResumeError, match=r"prompts\.sha256"):
        resume(result, prompts=["other", *PROMPTS[1:]])


def test_other_files_are_not_taken_for_results(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text('{"schema_version": 99}')
    with pytest.raises(ValueError, match="schema_version=99; allowed: 2"):
        BenchResult.load(file)
    file.write_text("no json")
    with pytest.raises(ValueError, match="is not JSON"):
        BenchResult.load(file)


# --- command line -----------------------------------------------------------------------------------------------------


def save_tiny(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", *sorted({word for prompt in PROMPTS for word in prompt.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>").save_pretrained(folder)
    tiny_model(0).save_pretrained(folder)


def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(bench)
    return app


def test_the_command_writes_a_file_and_resumes_it(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.json"
    prompts.write_text("\n".join(PROMPTS))
    arguments = f"--target {tmp_path / 'model'} --prompts {prompts} --out {out} --num-prompts 2 --max-new-tokens 4 "
    arguments += "--batch-size 2 --num-draft-tokens 2 --temperature 0 --repeats 2 --dtype float32"
    shown = CliRunner().invoke(command(), arguments.split())
    assert shown.exit_code == 0, shown.output
    assert "ours L=2" in shown.output
    fields = json.loads(out.read_text())
    assert fields["complete"]
    assert fields["prompts"]["file"] == "prompts.txt"
    assert len(fields["prompts"]["file_sha256"]) == 64

    first_block = replace(BenchResult.load(out), complete=False)
    first_block.runs = first_block.runs[:2]
    first_block.save(out)
    quiet = CliRunner().invoke(command(), [*arguments.split(), "--resume", "--quiet"])
    assert (quiet.exit_code, quiet.output) == (0, "")
    resumed = BenchResult.load(out)
    assert resumed.complete
    assert resumed.runs[:2] == first_block.runs
    assert len(resumed.runs) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch-size 1,x", "batch_size='1,x'"),
        ("--num-prompts 9 --batch-size 1", "num_prompts=9, but only 4"),
        ("--num-prompts 4 --batch-size 1 --resume", "--resume without --out"),
    ],
)
def test_the_command_refuses_bad_options(tmp_path: Path, arguments: str, message: str) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    refused = CliRunner().invoke(command(), ["--target", "none", "--prompts", str(prompts), *arguments.split()])
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.replace("│", " ").split())


def test_quantized_drafts_are_loaded(tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    tiny_model(0, hidden=64).save_pretrained(tmp_path)
    layers = {"nf4": bitsandbytes.nn.Linear4bit, "int8": bitsandbytes.nn.Linear8bitLt, "none": torch.nn.Linear}
    for quantization, kind in layers.items():
        model = load_model(str(tmp_path), "bfloat16", quantization)
        assert type(model.model.layers[0].mlp.up_proj) is kind
        assert model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_schedules_run_with_what_they_need(tmp_path: Path) -> None:
    """A benchmark of every schedule, with a calibration and costs from files."""
    target, draft = tiny_model(0), tiny_model(1)
    signal = torch.rand(500)
    CalibrationTable.fit({"q": signal}, signal).save_pretrained(tmp_path / "table")
    points = [
        Point(role, 8, batch, n, 0.5 + n / 50) for role in ("target", "draft") for batch in (1, 2) for n in (1, 99)
    ]
    CostModel(points, Fingerprint.of({"target": target, "draft": draft})).save(tmp_path / "costs.json")
    settings = replace(
        TINY,
        batch_sizes=(2,),
        draft_lengths=(3,),
        schedules=("fixed", "auto", "stop", "cut", "stop+cut"),
        calibration=str(tmp_path / "table"),
        costs=str(tmp_path / "costs.json"),
    )
    result = run_bench(settings, target, draft, WordTokenizer(), PROMPTS)
    greedy = [run for run in result.runs if run.temperature == 0]
    assert {run.schedule for run in greedy} == set(settings.schedules)
    assert all(all(run.identical_to_plain) for run in greedy if run.identical_to_plain is not None)
    # What a run should take by the costs, .5 and .02 a token for each pass, is written down too.
    for run in greedy:
        done = run.speculation
        if done is None:
            assert run.expected_seconds == pytest.approx(max(run.new_tokens) * (0.5 + 2 / 50))
        else:  # of two rows, each draft pass makes two tokens at most
            least = 0.5 * (done.target_passes + done.drafted / 2) + done.verified / 50
            assert run.expected_seconds is not None and least < run.expected_seconds < 1.5 * least
    [group] = [group for group in result.summary() if group.temperature == 0]
    assert all((cell.expected_ratio_to_plain is None) == (cell.method != "ours") for cell in group.cells)
    assert "cost" in {line for column in table_of(group).columns for line in str(column.header).splitlines()}
