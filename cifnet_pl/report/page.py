"""Write the report as one self-contained HTML page without scripts."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import jinja2
from markupsafe import Markup, escape

from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.report.outcomes import Stat
from cifnet_pl.report.significance import marked
from cifnet_pl.report.style import Picture
from cifnet_pl.utilities.text import printable

DASH = "–"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: plain text; ``A_K`` and ``A_bar`` are typeset where the format can.
        digits: decimals, or None for three significant digits.
        better: "max", "min", or None if no value is better than another.
        scale: numbers are multiplied by this before they are written.
        spread: whether the deviation is written; not for numbers that cannot depend on the seed.
        further: whether a page shows the column in a table of its own, which a reader opens: else it would not fit.
    """

    header: str
    digits: int | None = 2
    better: str | None = None
    scale: float = 1.0
    spread: bool = True
    further: bool = False


Cell = str | Stat | None
"""Text, a number with its deviation, or nothing."""

SEEDS = "seeds"
"""Header of the column that has a row's number of seeds."""

CONDITIONS = "conditions"
"""Header of the column that tells on which machine, and how, a row's time and energy were measured."""

POWER = re.compile(r"(?<=[\d)])e(?:\+|(-))0?(\d+)")
"""A power of ten as Python writes it."""

COST_HEADERS = ("training (min)", "energy (kWh)", "A_K per kWh", "CO₂ (kg)")
"""Columns whose values depend on the machine."""


@dataclass
class Table:
    """Rows of cells under columns.

    Attributes:
        name: of its files.
        title: above the table.
        columns, rows: its content.
        notes: sentences below the table.
        blocks: name for each row; only rows with the same name are compared to find the best, in columns of time and
            energy only those with the same conditions, too.
    """

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)

    @cached_property
    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the cells that are marked as best, see :func:`cifnet_pl.report.significance.marked`."""
        best_cells = set()
        for j, column in enumerate(self.columns):
            if column.better is None:
                continue
            for rows in self._comparable(column):
                cells = [row[j] if isinstance(row[j], Stat) else None for row in (self.rows[i] for i in rows)]
                stats = cast(list[Stat | None], cells)
                best_cells |= {(rows[i], j) for i in marked(stats, column.better, exact=not column.spread)}
        return best_cells

    def _comparable(self, column: Column) -> list[list[int]]:
        """Return the rows that may be compared with each other in a column; published and external ones never are."""
        blocks = self.blocks or ["measured"] * len(self.rows)
        if column.header in COST_HEADERS:
            blocks = [f"{block} {self._text_under(CONDITIONS, row)}" for row, block in enumerate(blocks)]
        names = [name for name in dict.fromkeys(blocks) if name.startswith("measured")]
        return [[i for i, block in enumerate(blocks) if block == name] for name in names]

    def text(self, row: int, column: int, plus_minus: str = " ± ") -> str:
        """Return a cell as plain text.

        The number of seeds is added if measured rows of the column have different ones, unless a column "seeds" says
        it.

        Args:
            row, column: position of the cell.
            plus_minus: what stands before the deviation.
        """
        cell, header = self.rows[row][column], self.columns[column]
        plain = cell_text(cell, header, plus_minus)
        blocks = self.blocks or ["measured"] * len(self.rows)
        ours = blocks[row].startswith("measured")
        counts = {
            other.n for line, block in zip(self.rows, blocks, strict=True)
            if block.startswith("measured") and isinstance(other := line[column], Stat)
        }  # fmt: skip
        with_seeds = (
            isinstance(cell, Stat)
            and header.spread
            and ours
            and len(counts) > 1
            and str(cell.n) != self._text_under(SEEDS, row)
        )
        return f"{plain} (n = {cast(Stat, cell).n})" if with_seeds else plain

    def _text_under(self, header: str, row: int) -> str | None:
        return next((str(self.rows[row][j]) for j, column in enumerate(self.columns) if column.header == header), None)

    def without_empty(self) -> Table:
        """Return the table without columns in which nothing was measured."""
        keep = [j for j in range(len(self.columns)) if any(row[j] not in (None, "") for row in self.rows)]
        rows = [[row[j] for j in keep] for row in self.rows]
        return replace(self, columns=[self.columns[j] for j in keep], rows=rows)


def number(value: float, digits: int | None) -> str:
    """Return a number as text, thousands separated.

    Args:
        value: the number.
        digits: decimals; None for at least three significant digits.

    Example:
        >>> number(1234.5, None), number(0.01234, None), number(97.456, 1)
        ('1,234', '0.0123', '97.5')
    """
    if digits is not None:
        return f"{value:,.{digits}f}"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.2e}"


def _with_power(mean: float, sd: float | None, plus_minus: str) -> str:
    """Return a small or large number and its deviation with one power of ten: (7.72 ± 0.47)e-05."""
    digits, power = f"{mean:.2e}".split("e")
    return f"{digits}e{power}" if sd is None else f"({digits}{plus_minus}{sd / 10 ** int(power):.2f})e{power}"


def cell_text(cell: Cell, column: Column, plus_minus: str = " ± ") -> str:
    """Return a cell as plain text, mean and deviation with the same decimals; a dash if nothing was measured.

    Args:
        cell: of the table.
        column: that it is in.
        plus_minus: what stands before the deviation.
    """
    if cell is None or cell == "":
        return DASH
    if isinstance(cell, str):
        return printable(cell)
    mean, digits = cell.mean * column.scale, column.digits
    sd = cell.sd * column.scale if cell.sd is not None and column.spread else None
    if digits is None and mean and not 1e-3 <= abs(mean) < 1e6:
        return _with_power(mean, sd, plus_minus)
    if digits is None and mean:
        digits = max(1 if abs(mean) < 1000 else 0, 2 - math.floor(math.log10(abs(mean))))
    return number(mean, digits) + (plus_minus + number(sd, digits) if sd is not None else "")


# ---------------------------------------------------------------------- formats


def to_markdown(table: Table) -> str:
    """Return a pipe table with the title above and the notes below; the best of a column in bold."""

    def text(i: int, j: int) -> str:
        plain = table.text(i, j).replace("|", "\\|").replace("\n", " ")
        return f"**{plain}**" if (i, j) in table.best else plain

    header = [column.header.replace("|", "\\|") for column in table.columns]
    aligned = ["---" if j == 0 or is_text(table, j) else "---:" for j in range(len(header))]
    body = [[text(i, j) for j in range(len(header))] for i in range(len(table.rows))]
    lines = ["| " + " | ".join(row) + " |" for row in [header, aligned, *body]]
    notes = ["", *(f"{note}  " for note in table.notes)] if table.notes else []
    return "\n".join([f"**{table.title}**", "", *lines, *notes, ""])


def to_csv_table(table: Table) -> str:
    """Return CSV: means in full precision, and for numbers the deviation and the number of seeds in further columns."""
    header: list[str] = []
    for j, column in enumerate(table.columns):
        header += [column.header] if is_text(table, j) else [column.header, f"{column.header} sd", f"{column.header} n"]
    rows = []
    for row in table.rows:
        cells: list[Any] = []
        for j, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            if is_text(table, j):
                cells.append(cell)
            elif isinstance(cell, Stat):
                sd = None if cell.sd is None else cell.sd * column.scale
                cells += [cell.mean * column.scale, sd, cell.n]
            else:
                cells += [None, None, None]
        rows.append(cells)
    return to_csv(header, rows)


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$", "ε": r"$\epsilon$", "±": r"$\pm$",
    "×": r"$\times$", "–": "--", "…": r"\dots{}", "²": r"$^2$", "Ā": r"$\bar{A}$", "≤": r"$\le$", "<": r"$<$",
    ">": r"$>$", "|": r"$|$", "→": r"$\to$", "₂": r"$_2$", "÷": r"$\div$", "·": r"$\cdot$", "−": r"$-$",
}  # fmt: skip
"""Characters that LaTeX would not print as they are."""


def latex(text: str) -> str:
    r"""Return ``text`` with all special characters of LaTeX escaped, and ``A_K`` typeset.

    Example:
        >>> print(latex("A_K in %"))
        $A_K$ in \%
    """
    parts = printable(text).split("A_K")
    return r"$A_K$".join("".join(LATEX.get(c, c) for c in piece) for piece in parts)


def to_latex(table: Table) -> str:
    """Return a ``table`` environment of the booktabs package; the best of a column in bold."""

    def text(i: int, j: int) -> str:
        plain = latex(table.text(i, j))
        if isinstance(table.rows[i][j], Stat):
            plain = POWER.sub(r"$\\cdot10^{\1\2}$", plain)
        return rf"\textbf{{{plain}}}" if (i, j) in table.best else plain

    align = "".join("l" if is_text(table, j) else "r" for j in range(len(table.columns)))
    body = [" & ".join(text(i, j) for j in range(len(table.columns))) + r" \\" for i in range(len(table.rows))]
    lines = [
        r"% needs \usepackage{booktabs,graphicx}",
        r"\begin{table}[ht]",
        rf"\caption{{{latex(' '.join([table.title + '.', *table.notes]))}}}",
        rf"\label{{tab:{table.name}}}",
        r"\centering\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        " & ".join(latex(column.header) for column in table.columns) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def is_text(table: Table, column: int) -> bool:
    """Return whether a column holds text, or nothing, rather than numbers."""
    cells: Sequence[Cell] = [row[column] for row in table.rows]
    return any(isinstance(cell, str) and cell for cell in cells) or not any(isinstance(c, Stat) for c in cells)


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


def to_page(
    title: str,
    lead: str,
    warnings: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    pictures: Mapping[str, Sequence[tuple[Picture, bytes]]],
) -> str:
    """Return the HTML page; sections follow in the order of ``tables``, then of ``pictures``.

    Args:
        title: of the page.
        lead: sentence at the top.
        warnings: sentences below it.
        tables: section → tables.
        pictures: section → pictures with their SVG.
    """
    sections = [
        {
            "name": name,
            "anchor": name.lower().replace(" ", "-"),
            "tables": [to_html(table) for table in tables.get(name, ())],
            "figures": [_figure(picture, svg) for picture, svg in pictures.get(name, ())],
        }
        for name in dict.fromkeys([*tables, *pictures])
    ]
    notes = [typeset(text) for text in warnings]
    return template("page.html").render(title=title, lead=typeset(lead), warnings=notes, sections=sections)


def _figure(picture: Picture, svg: bytes) -> dict[str, str]:
    # As an image and not as elements of the page: identifiers of two drawings cannot clash.
    data = base64.b64encode(svg).decode("ascii")
    return {"name": picture.name, "alt": picture.caption, "data": data, "caption": typeset(picture.caption)}
