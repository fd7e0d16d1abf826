"""Tasks from the lines of a prompt file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .gsm8k import MathAnswer
from .humaneval import CodeTests
from .summaries import Summary
from .task import Task

TASK_KINDS: dict[str, tuple[str, ...]] = {
    "gsm8k": ("answer",),
    "summary": ("reference", "summary", "highlights"),
    "humaneval": ("prompt",),
}
"""By kind: the fields of a line of which the first that is there holds the right answer."""


def read_tasks(path: str | Path, kind: str, indices: Sequence[int], allow_execution: bool = False) -> list[Task]:
    """Read the tasks beside some of the prompts of a .jsonl file.

    Args:
        path: the prompt file.
        kind: "gsm8k" (`answer`, "… #### 18"), "summary" (`reference`, `summary` or `highlights`), or "humaneval"
            (`prompt`, `entry_point`, `test`; runs generated code).
        indices: which of its prompts, lines that are blank not counted.
        allow_execution: for "humaneval", see `CodeTests`.

    Raises:
        ValueError: another kind of file or task, or a line without an answer; the message says which.
    """
    path = Path(path)
    if kind not in TASK_KINDS:
        raise ValueError(f"kind={kind!r}: allowed are {', '.join(TASK_KINDS)}")
    if path.suffix != ".jsonl":
        raise ValueError(f"prompts={str(path)!r} holds no answers for the task {kind!r}; allowed: a .jsonl file")
    texts = path.read_text(encoding="utf-8").split("\n")
    lines = [(number, line) for number, line in enumerate(texts, 1) if line.strip()]
    return [_task(f"{path}, line {lines[index][0]}", kind, lines[index][1], allow_execution) for index in indices]


def _task(where: str, kind: str, line: str, allow_execution: bool) -> Task:
    fields = json.loads(line)
    answer = next((fields[name] for name in TASK_KINDS[kind] if _is_text(fields.get(name))), None)
    if answer is None:
        raise ValueError(f"{where}: no text in {' | '.join(TASK_KINDS[kind])}, which the task {kind!r} needs")
    if kind == "gsm8k":
        return MathAnswer(answer)
    if kind == "summary":
        return Summary(answer)
    return _code_tests(where, fields, allow_execution)


def _code_tests(where: str, fields: Mapping[str, Any], allow_execution: bool) -> CodeTests:
    for name in ("entry_point", "test"):
        if not _is_text(fields.get(name)):
            raise ValueError(f"{where}: no text in {name}, which the task 'humaneval' needs")
    return CodeTests(fields["prompt"], fields["entry_point"], fields["test"], allow_execution)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
