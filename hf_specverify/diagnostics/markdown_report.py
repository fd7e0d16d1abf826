"""The report in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .report_tables import Table, tables, title

if TYPE_CHECKING:
    from .diagnosis import Diagnosis


def markdown_report(diagnosis: Diagnosis, plots: Mapping[str, str]) -> str:
    """The tables, and pictures by title and path, as one text."""
    parts = [f"# {title(diagnosis)}", *(_section(table) for table in tables(diagnosis))]
    parts += [f"## {name.capitalize()}\n\n![{name}]({path})" for name, path in plots.items()]
    return "\n\n".join(parts) + "\n"


def _section(table: Table) -> str:
    lines = [_line(table.head), _line(["---"] * len(table.head)), *(_line(row) for row in table.rows)]
    return "\n\n".join(part for part in (f"## {table.title}", table.note, "\n".join(lines)) if part)


def _line(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.replace("|", "\\|").split()) for cell in cells)
    return f"| {' | '.join(escaped)} |"
