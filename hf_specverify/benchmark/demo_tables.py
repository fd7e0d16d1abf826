"""The demo's results, for people (rich tables) and for machines (JSON values)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from hf_specverify.benchmark.demo_prompts import PromptGroup
from hf_specverify.benchmark.demo_runs import WayResult
from hf_specverify.benchmark.environment import PACKED
from hf_specverify.benchmark.settings import OURS, PLAIN, STOCK

NAMES = {PLAIN: "plain", STOCK: "stock", OURS: "hf_specverify"}

LEGEND = (
    "plain: generate without a draft; stock: Transformers' own assisted decoding, which takes one prompt at a time. "
    "tokens/s: median over repeats, taken in turn; × plain: median of the ratios within a repeat; tokens/pass: per row "
    "and forward of the target; accepted: share of the scored draft tokens that stand in the answer; same: answers "
    "token for token those of plain."
)
SAMPLED = "Sampled answers follow the same law but differ from run to run, so there is nothing to compare them with."
TIES = (
    "Half-precision block and single-token forwards round differently, so near-ties between two tokens can fall either "
    "way; --dtype float32 is the check."
)

ORDERED = "+packed: every way runs with weights ordered for this processor, see sv.pack_weights."


def group_table(group: PromptGroup, ways: Sequence[WayResult], greedy: bool) -> Table:
    """Return the table of a group: one row per way."""
    table = Table(title=group.title, title_justify="left", title_style="bold")
    table.add_column("way")
    for heading in ("batch", "tokens/s", "× plain", "tokens/pass", "accepted", "same"):
        table.add_column(heading, justify="right")
    for way in ways:
        table.add_row(
            NAMES[way.way],
            str(way.batch_size),
            f"{way.tokens_per_second:.1f}",
            f"{way.ratio_to_plain:.2f}",
            f"{way.tokens_per_target_pass:.2f}",
            "–" if way.acceptance is None else f"{way.acceptance:.0%}",
            _identity(way, len(group.prompts)) if greedy and way.way != PLAIN else "–",
            style="bold" if way.way == OURS else None,
        )
    return table


def group_values(group: PromptGroup, ways: Sequence[WayResult], greedy: bool, tokenizer: Any) -> dict[str, Any]:
    """Return a group's figures and answers (ours, of the first repeat) as JSON values."""
    return {
        "name": group.name,
        "title": group.title,
        "ways": [_way_values(way, greedy) for way in ways],
        "prompts": list(group.prompts),
        "answers": [
            tokenizer.decode(answer, skip_special_tokens=True)
            for way in ways
            if way.way == OURS
            for answer in way.runs[0].answers
        ],
    }


def notes(groups: Sequence[PromptGroup], results: Sequence[Sequence[WayResult]], greedy: bool, dtype: str) -> list[str]:
    """Return what a reader must know to read the tables right."""
    differ = any(
        way.identical < len(group.prompts) for group, ways in zip(groups, results, strict=True) for way in ways
    )
    ties = greedy and differ and not dtype.startswith("float32")
    return [LEGEND, *[ORDERED] * dtype.endswith(PACKED), *[SAMPLED] * (not greedy), *[TIES] * ties]


def _identity(way: WayResult, count: int) -> str:
    return f"{way.identical} of {count}"


def _way_values(way: WayResult, greedy: bool) -> dict[str, Any]:
    return {
        "way": way.way,
        "batch_size": way.batch_size,
        "tokens_per_second": way.tokens_per_second,
        "tokens_per_second_by_repeat": [run.tokens_per_second for run in way.runs],
        "ratio_to_plain": way.ratio_to_plain,
        "tokens_per_target_pass": way.tokens_per_target_pass,
        "acceptance": way.acceptance,
        "answers_identical_to_plain": way.identical if greedy else None,
    }
