"""The report as one HTML page that needs no other file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .plots import draw_plots
from .report_tables import Table, tables, title

if TYPE_CHECKING:
    from .diagnosis import Diagnosis

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { border: 1px solid #bbb; padding: .25rem .6rem; text-align: left; }
th { background: #f0f0f0; }
svg { max-width: 100%; height: auto; }
"""


def html_report(diagnosis: Diagnosis) -> str:
    """Tables and, where matplotlib is installed, plots."""
    name = escape(title(diagnosis))
    head = f'<meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
    parts = [f"<h1>{name}</h1>", *(_section(table) for table in tables(diagnosis))]
    parts += [f"<h2>{escape(name.capitalize())}</h2>{_svg(plot)}" for name, plot in draw_plots(diagnosis).items()]
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _section(table: Table) -> str:
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    rows = "\n".join(_row(row, "td") for row in table.rows)
    return (
        f'<h2>{escape(table.title)}</h2>{note}<div class="wide"><table>{_row(table.head, "th")}\n{rows}</table></div>'
    )


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _svg(figure: Any) -> str:
    """The figure's svg element, without the XML head in front of it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
