"""Write one table as HTML, and fill the templates of pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape

from cifnet_pl.report.markup import POWER, SEEDS, Table, is_text
from cifnet_pl.report.outcomes import Stat
from cifnet_pl.utilities.text import printable

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("cifnet_pl.report"), autoescape=True, undefined=jinja2.StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip

ROW_HEADERS = ("method", "numbers", SEEDS)
"""Columns that say which row it is."""


def to_html(table: Table) -> Markup:
    """Return a ``<table>`` with caption; the best of a column in bold.

    Further columns follow in a ``<details>``, beside the columns of text that say whose they are.
    """
    first = [j for j, column in enumerate(table.columns) if not column.further]
    further = [j for j, column in enumerate(table.columns) if column.further]
    of_row = [j for j, column in enumerate(table.columns) if column.header in ROW_HEADERS]
    return Markup(
        template("table.html").render(
            title=typeset(table.title), notes=[typeset(note) for note in table.notes], first=_part(table, first),
            further=_part(table, [*of_row, *further]) if further else None,
            further_names=typeset(", ".join(table.columns[j].header for j in further)),
        )
    )  # fmt: skip


def _part(table: Table, columns: Sequence[int]) -> dict[str, Any]:
    """Return header and rows of some columns: cells of kind, text and whether they are the best."""
    kinds = {j: "text" if is_text(table, j) else "num" for j in columns}
    rows = [
        [
            (kinds[j], typeset(table.text(i, j), isinstance(table.rows[i][j], Stat)), (i, j) in table.best)
            for j in columns
        ]
        for i in range(len(table.rows))
    ]
    return {"header": [(kinds[j], typeset(table.columns[j].header)) for j in columns], "rows": rows}


def template(name: str) -> jinja2.Template:
    """Return a template of the page; what is put into it is escaped."""
    return TEMPLATES.get_template(name)


def typeset(text: str, is_number: bool = False) -> Markup:
    """Return ``text`` for HTML, escaped, with ``A_K`` as a symbol with an index, and the power of ten of a number."""
    escaped = re.sub("A_([Kk])", r"<i>A</i><sub>\1</sub>", str(escape(printable(text))))
    raised = POWER.sub(lambda e: f"·10<sup>{'−' if e[1] else ''}{e[2]}</sup>", escaped)
    return Markup(raised if is_number else escaped)
