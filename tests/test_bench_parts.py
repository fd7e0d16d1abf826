"""The parts of the benchmark: settings, prompts, order of the runs, statistics, latencies and memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_specverify.benchmark import runs
from hf_specverify.benchmark.bench import blocks_of, count_runs
from hf_specverify.benchmark.environment import parse_form
from hf_specverify.benchmark.measuring import Commit, peak_growth, row_latencies
from hf_specverify.benchmark.prompts import chunk_indices, encode_chunk, read_prompts, select_evenly
from hf_specverify.benchmark.records import RunRecord, SpeculationFigures
from hf_specverify.benchmark.settings import (
    LOOKUP,
    BenchSettings,
    cells_for,
    parse_calibrations,
    parse_numbers,
    rotated,
)
from hf_specverify.benchmark.summary import Spread, paired_ratios, summarise

SMALL = BenchSettings(num_prompts=2, batch_sizes=(1, 2), draft_lengths=(2, 3), repeats=1)


def record(cell: str, speed: float, chunk: int = 0, **fields: Any) -> RunRecord:
    method, _, length = cell.partition(" L=")
    defaults: dict[str, Any] = {
        "batch_size": 1,
        "temperature": 0.0,
        "repeat": 0,
        "prompts": (chunk,),
        "position": 0,
        "seed": 0,
        "verification": "token",
        "schedule": "fixed",
        "new_tokens": (10,),
        "wall_seconds": 10 / speed,
        "time_to_first_token": (0.5,),
        "time_per_output_token": (0.1,),
    }
    cell_fields = {"cell": cell, "method": method, "draft_length": int(length) if length else None}
    return RunRecord(chunk=chunk, tokens_per_second=speed, **cell_fields, **defaults | fields)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"num_prompts": 0}, ("num_prompts", "0", ">= 1")),
        ({"max_new_tokens": -3}, ("max_new_tokens", "-3", ">= 1")),
        ({"repeats": 0}, ("repeats", "0", ">= 1")),
        ({"seed": -1}, ("seed", "-1", ">= 0")),
        ({"batch_sizes": (0,)}, ("batch_sizes", "0", ">= 1")),
        ({"batch_sizes": ()}, ("batch_sizes", "()", "at least one")),
        ({"batch_sizes": (16,)}, ("batch_sizes", "16", "num_prompts=12")),
        ({"draft_lengths": (3, 3)}, ("draft_lengths", "(3, 3)", "once")),
        ({"temperatures": (-0.5,)}, ("temperatures", "-0.5", "positive")),
        ({"temperatures": (float("nan"),)}, ("temperatures", "nan", "positive")),
        ({"dtype": "int4"}, ("dtype", "int4", "'bfloat16'")),
        ({"draft_quantization": "nf5"}, ("draft_quantization", "nf5", "'nf4'")),
        ({"draft_quantization": "nf4+heads:3"}, ("draft_quantization", "heads:3", "'+trim:N'")),
        ({"companion_quantization": "none+trim:x"}, ("companion_quantization", "trim:x", "'+layers:N'")),
        ({"stock_confidences": (1.0,)}, ("stock_confidences", "1.0", "below 1")),
        ({"lookup_ngram": 0}, ("lookup_ngram", "0", ">= 1")),
        ({"schedules": ("cut",)}, ("'cut'", "calibration=None", "q=one")),
        ({"schedules": ("cut:c",), "calibration": "q=one"}, ("'cut:c'", "q=one", "a folder")),
        ({"calibration": "q=one,two"}, ("calibration", "q=one,two", "names and folders")),
        ({"draft_quantization": "nf4", "draft": LOOKUP}, ("draft_quantization", "nf4", "'none'")),
    ],
)
def test_bad_settings_name_option_value_and_what_is_allowed(fields: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="allowed") as error:
        BenchSettings(**{"draft": "some-draft"} | fields)
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize("fields", [{"repeats": 1.5}, {"draft_lengths": (True,)}])
def test_settings_of_the_wrong_type_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(fields))}=.*allowed: an integer"):
        BenchSettings(**fields)


def test_numbers_of_the_command_line() -> None:
    assert parse_numbers("batch_size", "1,4,8", int) == (1, 4, 8)
    assert parse_numbers("temperature", "0,0.7", float) == (0.0, 0.7)
    with pytest.raises(ValueError, match=r"batch_size='1,x'; allowed: numbers separated by commas"):
        parse_numbers("batch_size", "1,x", int)


def test_forms_of_models() -> None:
    assert parse_form("none") == ("none", {})
    assert parse_form("nf4+layers:8+trim:16384") == ("nf4", {"layers": 8, "trim": 16384})


def test_several_calibrations_and_stock_with_a_threshold() -> None:
    assert parse_calibrations("folder") == {"": "folder"}
    assert parse_calibrations("q=one,c=two") == {"q": "one", "c": "two"}
    settings = replace(
        SMALL, draft="some-draft", draft_lengths=(2, 4), schedules=("fixed", "cut:q"), calibration="q=one", stock=True,
        stock_confidences=(0.0, 0.4),
    )  # fmt: skip
    names = ["plain", "stock L=2", "stock L=4", "stock confidence 0.4 L<=20"]
    assert [cell.name for cell in cells_for(settings, 1)] == [*names, "ours L=2", "ours L=4", "ours cut:q L<=4"]


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_prompt_files(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("first\n\n  second \n")
    assert read_prompts(text) == ["first", "second"]
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"prompt": "p", "question": "q"}\n{"turns": ["t", "u"]}\n\n{"question": "q\u2028r"}\n')
    assert read_prompts(lines) == ["p", "t", "q\u2028r"]


@pytest.mark.parametrize("line", ["{", "[1]", '{"text": "x"}', '{"turns": []}', '{"prompt": " "}', '{"question": 3}'])
def test_a_line_without_a_prompt_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: .*allowed.*prompt \| turns\[0\] \| question"):
        read_prompts(file)


def test_prompt_files_of_another_kind_or_empty(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'\.csv'; allowed: \.txt .* \.jsonl"):
        read_prompts(tmp_path / "a.csv")
    empty = tmp_path / "a.txt"
    empty.write_text("\n \n")
    with pytest.raises(ValueError, match="holds no prompt"):
        read_prompts(empty)


def test_selection_and_chunks() -> None:
    assert select_evenly(4, 384) == [0, 96, 192, 288]
    assert select_evenly(3, 3) == [0, 1, 2]
    with pytest.raises(ValueError, match="num_prompts=5, but only 3"):
        select_evenly(5, 3)
    assert chunk_indices(5, 2) == [(0, 1), (2, 3), (4, 0)]


def words_as_letters(text: str) -> dict[str, list[int]]:
    return {"input_ids": [ord(word[0]) for word in text.split()]}


def test_a_chunk_is_padded_on_the_left() -> None:
    inputs = encode_chunk(words_as_letters, ["one two three", "one"], 0, torch.device("cpu"))
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert inputs["input_ids"].tolist() == [[ord("o"), ord("t"), ord("t")], [0, 0, ord("o")]]


# --- order ------------------------------------------------------------------------------------------------------------


def test_cells_rotate_so_that_each_runs_in_each_position() -> None:
    cells = cells_for(SMALL, 1)
    assert [cell.name for cell in cells] == ["plain", "stock L=2", "stock L=3", "ours L=2", "ours L=3"]
    orders = [rotated(cells, turn) for turn in range(len(cells))]
    assert orders[0] == list(cells)
    assert orders[1] == [*cells[1:], cells[0]]
    for position in range(len(cells)):
        assert {order[position] for order in orders} == set(cells)


def test_stock_runs_at_batch_1_only() -> None:
    assert [cell.name for cell in cells_for(SMALL, 2)] == ["plain", "ours L=2", "ours L=3"]
    several = replace(
        SMALL, draft="a model", draft_lengths=(2,), verifications=("token", "block", "traversal:3"), stock=False
    )
    names = ["plain", "ours L=2", "ours block L=2", "ours traversal:3 L=2"]
    assert [cell.name for cell in cells_for(several, 1)] == names


def test_schedules_choose_lengths_up_to_the_largest() -> None:
    settings = replace(SMALL, draft_lengths=(2, 4), schedules=("fixed", "auto", "stop+cut"), calibration="folder")
    names = ["plain", "ours L=2", "ours L=4", "ours auto L<=4", "ours stop+cut L<=4"]
    assert [cell.name for cell in cells_for(settings, 2)] == names
    with pytest.raises(ValueError, match="schedules='goodput'; allowed: 'fixed', 'auto'"):
        replace(SMALL, schedules=("goodput",))


@pytest.mark.parametrize("text", ["tokens", "token:2", "traversal:x", "traversal:0", ""])
def test_verifications_that_do_not_exist(text):
    with pytest.raises(ValueError, match=f"verification='{text}'; allowed: a verifier, or verifier:paths"):
        replace(SMALL, verifications=(text,))


def test_lookup_drafts_single_paths() -> None:
    with pytest.raises(ValueError, match="'traversal:3' with draft='lookup'; allowed: single paths"):
        replace(SMALL, verifications=("traversal:3",))


def test_blocks_have_seeds_of_their_own() -> None:
    settings = replace(SMALL, repeats=2)
    blocks = [block for block in blocks_of(settings) if (block.batch_size, block.temperature) == (1, 1.0)]
    assert [(block.repeat, block.chunk) for block in blocks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({block.seed(0) for block in blocks}) == 4
    assert count_runs(settings) == 2 * (2 * 2 * 5 + 2 * 1 * 3)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_spread() -> None:
    assert Spread.of([4.0, 1.0, 2.0, 3.0]) == Spread(2.5, 1.75, 3.25, 1.0, 4.0, 4)
    with pytest.raises(ValueError, match="at least one value"):
        Spread.of([])


def test_ratios_pair_runs_of_the_same_block() -> None:
    """The machine halves its speed in the second block: unpaired medians would say 1.5, the pairs say 2."""
    runs = [record("plain", 10), record("ours L=2", 20), record("plain", 5, chunk=1), record("ours L=2", 10, chunk=1)]
    assert paired_ratios(runs, "ours L=2", "plain") == [2.0, 2.0]
    assert paired_ratios([*runs, record("ours L=2", 99, chunk=2)], "ours L=2", "plain") == [2.0, 2.0]


def test_summary() -> None:
    figures = SpeculationFigures(8, 8, 6, 10, 4, 2.5, 0.75, {"target": 0.3, "other": 0.1}, 0.1)
    runs = [
        record("ours L=2", 20, identical_to_plain=(True,), speculation=figures, peak_memory_bytes=5),
        record("ours L=2", 30, 1, identical_to_plain=(False,), speculation=figures, peak_memory_bytes=7),
        record("stock L=2", 16),
        record("stock L=2", 15, 1),
        record("plain", 10, time_per_output_token=(0.1, 0.2, None)),
        record("plain", 10, 1, time_per_output_token=(0.3,)),
        record("plain", 1, temperature=1.0),
    ]
    greedy, sampled = summarise(runs)
    plain, stock, ours = greedy.cells
    assert (greedy.batch_size, greedy.temperature, greedy.blocks) == (1, 0.0, 2)
    assert [cell.cell for cell in greedy.cells] == ["plain", "stock L=2", "ours L=2"]
    assert plain.ratio_to_plain is None
    assert plain.time_per_output_token is not None
    assert plain.time_per_output_token.median == pytest.approx(0.2)
    assert plain.time_per_output_token_p95 == pytest.approx(0.29)
    assert stock.ratio_to_stock is None
    assert stock.ratio_to_plain is not None
    assert stock.ratio_to_plain.median == pytest.approx(1.55)
    assert ours.ratio_to_plain == Spread(2.5, 2.25, 2.75, 2.0, 3.0, 2)
    assert ours.ratio_to_stock is not None
    assert (ours.ratio_to_stock.minimum, ours.ratio_to_stock.maximum) == (1.25, 2.0)
    assert ours.expected_ratio_to_plain is None
    assert (ours.identical_share, ours.tokens_per_target_pass, ours.acceptance_rate) == (0.5, 2.5, 0.75)
    assert ours.outside_forwards_share == pytest.approx((0.1 / 0.5 + 0.1 / (1 / 3)) / 2)
    assert ours.peak_memory_bytes == 7
    assert [cell.tokens_per_second.median for cell in sampled.cells] == [1.0]


def test_what_is_expected_by_the_costs_is_paired_too() -> None:
    """The clock says that ours is slower, the costs that it takes a half and a third of the time; stock has none."""
    runs = [
        *(record("plain", 10, chunk, new_tokens=(8,), expected_seconds=6.0) for chunk in (0, 1)),
        record("ours L=2", 5, new_tokens=(8,), expected_seconds=3.0),
        record("ours L=2", 5, 1, new_tokens=(4,), expected_seconds=1.0),
        record("stock L=2", 5, new_tokens=(8,)),
    ]
    [group] = summarise(runs)
    ratios = {cell.cell: cell.expected_ratio_to_plain for cell in group.cells}
    assert ratios["plain"] is None and ratios["stock L=2"] is None
    assert ratios["ours L=2"] == Spread(2.5, 2.25, 2.75, 2.0, 3.0, 2)
    assert [RunRecord.from_dict(json.loads(json.dumps(run.to_dict()))) for run in runs] == runs


def test_latencies_of_rows() -> None:
    commits = [Commit(1.0, {0: 3, 1: 1}), Commit(2.0, {0: 1, 1: 1}), Commit(4.0, {1: 2})]
    first, second = row_latencies(commits, [4, 4])
    assert (first.first_token, first.per_output_token) == (1.0, pytest.approx(1 / 3))
    assert (second.first_token, second.per_output_token) == (1.0, 1.0)
    assert row_latencies(commits, [1, 1])[1].per_output_token is None
    padded = [Commit(float(step), {0: 1}) for step in range(1, 6)]
    assert row_latencies(padded, [3])[0].per_output_token == 1.0
    with pytest.raises(ValueError, match="row 0 hold 4 tokens; the row has 9"):
        row_latencies(commits, [9, 1])


def test_new_tokens_end_with_the_first_end_of_text() -> None:
    assert runs.count_new_tokens([5, 2, 0, 0], frozenset({2, 9})) == 2
    assert runs.count_new_tokens([5, 6, 7], frozenset({2})) == 3


def test_memory_growth_sees_what_was_freed_again() -> None:
    with peak_growth(torch.device("cpu")) as large:
        torch.ones(2**24)  # 64 MB
    with peak_growth(torch.device("cpu")) as small:
        torch.ones(2**10)
    assert 60e6 < large.bytes < 200e6
    assert small.bytes < 20e6
