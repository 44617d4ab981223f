"""One table as Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.report.groups import Stat

DASH = "–"


@dataclass(frozen=True)
class Column:
    """A column: its header, how its numbers are written, and which of them is best.

    Attributes:
        header: plain text; ``A_K`` and ``A_bar`` are typeset where the format can.
        digits: decimals, or None for three significant digits.
        better: "max", "min", or None where no value is better than another.
        scale: numbers are multiplied by this before they are written.
        spread: whether the deviation is written; not where a number cannot depend on the seed.
    """

    header: str
    digits: int | None = 2
    better: str | None = None
    scale: float = 1.0
    spread: bool = True


Cell = str | Stat | None
"""Text, a number with its deviation, or nothing."""


@dataclass
class Table:
    """Rows of cells under columns. ``name`` is the file's name, ``notes`` stand below."""

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)

    def is_best(self, row: int, column: int) -> bool:
        """Whether a cell holds the best mean of its column, where there is more than one to compare."""
        better = self.columns[column].better
        means = [r[column].mean for r in self.rows if isinstance(r[column], Stat)]  # type: ignore[union-attr]
        cell = self.rows[row][column]
        if better is None or len(set(means)) < 2 or not isinstance(cell, Stat):
            return False
        return cell.mean == (max(means) if better == "max" else min(means))

    def without_empty(self) -> Table:
        """The table without columns in which nothing was measured."""
        keep = [j for j in range(len(self.columns)) if any(row[j] not in (None, "") for row in self.rows)]
        rows = [[row[j] for j in keep] for row in self.rows]
        return Table(self.name, self.title, [self.columns[j] for j in keep], rows, self.notes)


def number(value: float, digits: int | None) -> str:
    """A number with ``digits`` decimals, or with three significant digits at least; thousands separated."""
    if digits is not None:
        return f"{value:,.{digits}f}"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def cell_text(cell: Cell, column: Column, plus_minus: str = " ± ") -> str:
    """A cell as plain text, mean and deviation with the same decimals; a dash where nothing was measured."""
    if cell is None or cell == "":
        return DASH
    if isinstance(cell, str):
        return cell
    mean, digits = cell.mean * column.scale, column.digits
    if digits is None and 1e-3 <= abs(mean) < 1e15:
        digits = max(1 if abs(mean) < 1000 else 0, 2 - math.floor(math.log10(abs(mean))))
    text = number(mean, digits)
    if cell.sd is None or not column.spread:
        return text
    return text + plus_minus + number(cell.sd * column.scale, digits)


# ---------------------------------------------------------------------- formats


def to_markdown(table: Table) -> str:
    """A pipe table with the title above and the notes below; the best of a column in bold."""

    def text(i: int, j: int) -> str:
        plain = cell_text(table.rows[i][j], table.columns[j]).replace("|", "\\|").replace("\n", " ")
        return f"**{plain}**" if table.is_best(i, j) else plain

    header = [column.header.replace("|", "\\|") for column in table.columns]
    aligned = ["---" if j == 0 or _is_text(table, j) else "---:" for j in range(len(header))]
    body = [[text(i, j) for j in range(len(header))] for i in range(len(table.rows))]
    lines = ["| " + " | ".join(row) + " |" for row in [header, aligned, *body]]
    notes = ["", *(f"{note}  " for note in table.notes)] if table.notes else []
    return "\n".join([f"**{table.title}**", "", *lines, *notes, ""])


def to_csv_table(table: Table) -> str:
    """Means in full precision, each followed by its deviation and number of seeds where it is a number."""
    header: list[str] = []
    for j, column in enumerate(table.columns):
        header += (
            [column.header] if _is_text(table, j) else [column.header, f"{column.header} sd", f"{column.header} n"]
        )
    rows = []
    for row in table.rows:
        cells: list[Any] = []
        for j, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            if _is_text(table, j):
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
    ">": r"$>$", "|": r"$|$", "→": r"$\to$", "₂": r"$_2$",
}  # fmt: skip
"""Characters that LaTeX would not print as they are."""


def latex(text: str) -> str:
    """``text`` with everything escaped that LaTeX reads as a command, and ``A_K`` typeset."""
    parts = text.split("A_K")
    return r"$A_K$".join("".join(LATEX.get(c, c) for c in part) for part in parts)


def to_latex(table: Table) -> str:
    """A ``table`` environment of the booktabs package; the best of a column in bold."""

    def text(i: int, j: int) -> str:
        plain = latex(cell_text(table.rows[i][j], table.columns[j]))
        return rf"\textbf{{{plain}}}" if table.is_best(i, j) else plain

    align = "".join("l" if _is_text(table, j) else "r" for j in range(len(table.columns)))
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


def to_html(table: Table) -> str:
    """A ``<table>`` with caption; the best of a column in bold."""

    def text(i: int, j: int) -> str:
        plain = typeset(cell_text(table.rows[i][j], table.columns[j]))
        kind = "text" if _is_text(table, j) else "num"
        return f'<td class="{kind}">{f"<b>{plain}</b>" if table.is_best(i, j) else plain}</td>'

    header = "".join(
        f'<th scope="col" class="{"text" if _is_text(table, j) else "num"}">{typeset(column.header)}</th>'
        for j, column in enumerate(table.columns)
    )
    body = "\n".join(
        "<tr>" + "".join(text(i, j) for j in range(len(table.columns))) + "</tr>" for i in range(len(table.rows))
    )
    notes = "".join(f"<p class='note'>{typeset(note)}</p>" for note in table.notes)
    return (
        f'<div class="table"><table><caption>{typeset(table.title)}</caption>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n{notes}\n"
    )


def typeset(text: str) -> str:
    """``text`` for HTML, with ``A_K`` as a symbol with an index."""
    return html.escape(text).replace("A_K", "<i>A</i><sub>K</sub>").replace("A_k", "<i>A</i><sub>k</sub>")


def _is_text(table: Table, column: int) -> bool:
    cells: Sequence[Cell] = [row[column] for row in table.rows]
    return any(isinstance(cell, str) and cell for cell in cells) or not any(isinstance(c, Stat) for c in cells)
