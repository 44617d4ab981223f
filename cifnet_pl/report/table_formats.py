"""The tables of a report, and their formats: CSV, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from cifnet_pl.report.significance import Stat
from cifnet_pl.utilities.files import to_csv
from cifnet_pl.utilities.text import printable

Cell = str | Stat | None
"""Text, a number with its deviation, or nothing."""

ORIGIN = "origin"
"""Header of the column that says where a row's numbers come from: see ``study.KINDS``."""

SEEDS = "seeds"
"""Header of the column that has a row's number of seeds."""

CONDITIONS = "conditions"
"""Header of the column with the letter of the conditions of a row's time and energy."""

ROW_HEADERS = ("method", ORIGIN, SEEDS)
"""Columns that say which row it is."""

COST_HEADERS = ("training (min)", "energy (kWh)", "A_K per kWh", "CO₂ (kg)")
"""Columns whose values depend on the machine."""

SHARED_MARK = "†"
"""Mark of times and energies that were measured while other processes counted."""

PLAIN_DIGITS = "-0123456789"
SUPERSCRIPT_DIGITS = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
"""Characters of an exponent, and as they are written."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: plain text; ``A_K`` and ``A_bar`` are typeset where the format can.
        digits: decimals, or None for three significant digits, two from 100,000 on.
        scale: numbers are multiplied by this before they are written.
        with_deviation: False for numbers that cannot depend on the seed.
        collapsed: whether the page shows the column in a table of its own, which a reader opens.
    """

    header: str
    digits: int | None = 2
    scale: float = 1.0
    with_deviation: bool = True
    collapsed: bool = False


@dataclass
class ReportTable:
    """Rows of cells under columns.

    Attributes:
        name: of its files.
        title: above the table.
        columns, rows: its content.
        notes: sentences below the table.
    """

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)

    @property
    def headers(self) -> list[str]:
        """The header of each column."""
        return [column.header for column in self.columns]

    def cells_under(self, header: str) -> list[Cell]:
        """Return the cells of a column; None for each row if there is no such column."""
        if header not in self.headers:
            return [None] * len(self.rows)
        position = self.headers.index(header)
        return [row[position] for row in self.rows]

    def text(self, row: int, column: int) -> str:
        """Return a cell as plain text.

        The number of seeds is added if measured rows of the column have different ones, unless a
        column "seeds" says it.

        Args:
            row, column: position of the cell.
        """
        cell = self.rows[row][column]
        definition = self.columns[column]
        text = cell_text(cell, definition)
        conditions = self.cells_under(CONDITIONS)
        condition = str(conditions[row])
        is_shared = SHARED_MARK in condition
        if cell and is_shared and definition.header in COST_HEADERS:
            text = f"{text} {SHARED_MARK}"
        if isinstance(cell, Stat) and self._needs_seed_count(row, column, cell.n):
            text = f"{text} (n = {cell.n})"
        return text

    def _needs_seed_count(self, row: int, column: int, seeds: int) -> bool:
        """Return whether the seeds of a cell are to be told apart from those of other rows."""
        measured = []
        for origin in self.cells_under(ORIGIN):
            measured.append(origin in ("measured", None))
        if not measured[row] or not self.columns[column].with_deviation:
            return False
        counts = set()
        for is_measured, cells in zip(measured, self.rows, strict=True):
            cell = cells[column]
            if is_measured and isinstance(cell, Stat):
                counts.add(cell.n)
        seeds_of_rows = self.cells_under(SEEDS)
        return len(counts) > 1 and seeds_of_rows[row] != str(seeds)

    def kind(self, column: int) -> str:
        """Return "num" for a column of numbers, and "text" for one of text or of nothing."""
        cells = [row[column] for row in self.rows]
        has_text = any(isinstance(cell, str) and cell for cell in cells)
        has_numbers = any(isinstance(cell, Stat) for cell in cells)
        if has_numbers and not has_text:
            return "num"
        return "text"

    def without_empty(self) -> ReportTable:
        """Return the table without columns in which nothing was measured."""
        used = []
        for j in range(len(self.columns)):
            filled = [row[j] not in (None, "") for row in self.rows]
            if any(filled):
                used.append(j)
        rows = [[row[j] for j in used] for row in self.rows]
        columns = [self.columns[j] for j in used]
        return replace(self, columns=columns, rows=rows)

    def texts(self, typeset: Callable[[str], str]) -> list[list[str]]:
        """Return the text of all cells, each passed through ``typeset``."""
        rows = []
        for i in range(len(self.rows)):
            texts = [typeset(self.text(i, j)) for j in range(len(self.columns))]
            rows.append(texts)
        return rows


# ---------------------------------------------------------------------- numbers


def format_number(value: float, digits: int | None) -> str:
    """Return a number as text, thousands separated.

    Args:
        value: the number.
        digits: decimals; None for at least three significant digits, but two from 100,000 on.

    Example:
        >>> format_number(1234.5, None), format_number(0.01234, None), format_number(97.456, 1)
        ('1,234', '0.0123', '97.5')
        >>> format_number(1.234e-5, None), format_number(117_898, None)
        ('1.23·10⁻⁵', '1.2·10⁵')
    """
    if digits is not None:
        return f"{value:,.{digits}f}"
    size = abs(value)
    if size >= 1e5:
        figures, power = f"{value:.1e}".split("e")
        return figures + power_of_ten(int(power))
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:,.1f}"
    if not value or size >= 1e-3:
        return f"{value:.3g}"
    figures, power = f"{value:.2e}".split("e")
    return figures + power_of_ten(int(power))


def power_of_ten(power: int) -> str:
    """Return a power of ten as a factor, such as ``·10⁻⁵``."""
    superscript = str.maketrans(PLAIN_DIGITS, SUPERSCRIPT_DIGITS)
    return f"·10{str(power).translate(superscript)}"


def cell_text(cell: Cell, column: Column) -> str:
    """Return a cell as plain text, mean and deviation with the same decimals; a dash for None.

    A small or large number and its deviation have one power of ten: (7.72 ± 0.47)·10⁻⁵.

    Args:
        cell: of the table.
        column: its column.
    """
    if not isinstance(cell, Stat):
        if cell:
            return printable(cell)
        return "–"
    mean = cell.mean * column.scale
    digits = column.digits
    sd = None
    if cell.sd is not None and column.with_deviation:
        sd = cell.sd * column.scale
    if digits is None and mean:
        power = math.floor(math.log10(abs(mean)))
        if sd is not None and not -3 <= power < 5:
            unit = 10**power
            scaled_mean = mean / unit
            scaled_sd = sd / unit
            return f"({scaled_mean:.2f} ± {scaled_sd:.2f}){power_of_ten(power)}"
        if -3 <= power < 5:
            digits = 2 - power
            if power == 2:
                digits = 1
            digits = max(0, digits)
    text = format_number(mean, digits)
    if sd is not None:
        text = f"{text} ± {format_number(sd, digits)}"
    return text


# ---------------------------------------------------------------------- files


def to_csv_table(table: ReportTable) -> str:
    """Return CSV with means in full precision.

    A column of numbers is followed by one with the deviation (``… sd``) and one with the number of
    seeds (``… n``).
    """
    header: list[str] = []
    columns: list[list[Any]] = []
    for j, column in enumerate(table.columns):
        cells = [row[j] for row in table.rows]
        header.append(column.header)
        if table.kind(j) == "text":
            columns.append(cells)
            continue
        name = column.header
        header += [f"{name} sd", f"{name} n"]
        means: list[Any] = [None] * len(cells)
        deviations: list[Any] = [None] * len(cells)
        seeds: list[Any] = [None] * len(cells)
        for i, cell in enumerate(cells):
            if isinstance(cell, Stat):
                means[i] = cell.mean * column.scale
                seeds[i] = cell.n
                if cell.sd is not None:
                    deviations[i] = cell.sd * column.scale
        columns += [means, deviations, seeds]
    rows = list(zip(*columns, strict=True))
    return to_csv(header, rows)


def to_markdown(table: ReportTable) -> str:
    """Return a pipe table with the title above and the notes below."""
    header = [_escape_pipes(text) for text in table.headers]
    alignment = []
    for j in range(len(header)):
        is_text = j == 0 or table.kind(j) == "text"
        mark = "---:"
        if is_text:
            mark = "---"
        alignment.append(mark)
    lines = [f"**{table.title}**", ""]
    rows = [header, alignment, *table.texts(_escape_pipes)]
    for row in rows:
        cells = " | ".join(row)
        lines.append(f"| {cells} |")
    if table.notes:
        lines.append("")
        lines += [f"{note}  " for note in table.notes]
    return "\n".join([*lines, ""])


def _escape_pipes(text: str) -> str:
    return text.replace("|", "\\|")


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "λ": r"$\lambda$", "ε": r"$\epsilon$", "±": r"$\pm$", "×": r"$\times$", "–": "--",
    "…": r"\dots{}", "Ā": r"$\bar{A}$", "≤": r"$\le$", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "→": r"$\to$", "₂": r"$_2$", "·": r"$\cdot$", "−": r"$-$",
}  # fmt: skip
"""Characters that LaTeX would not print as they are."""

for _plain, _superscript in zip(PLAIN_DIGITS, SUPERSCRIPT_DIGITS, strict=True):
    LATEX[_superscript] = rf"\textsuperscript{{{_plain}}}"


def latex(text: str) -> str:
    r"""Return ``text`` with all special characters of LaTeX escaped, and ``A_K`` typeset.

    Example:
        >>> print(latex("A_K in %"))
        $A_K$ in \%
    """
    pieces = []
    for piece in printable(text).split("A_K"):
        characters = [LATEX.get(character, character) for character in piece]
        pieces.append("".join(characters))
    return "$A_K$".join(pieces)


def to_latex(table: ReportTable) -> str:
    """Return a ``table`` environment of the booktabs package."""
    kinds = [table.kind(j) for j in range(len(table.columns))]
    letters = {"text": "l", "num": "r"}
    alignment = "".join(letters[kind] for kind in kinds)
    header = [latex(text) for text in table.headers]
    texts = table.texts(latex)
    cells = pd.DataFrame(texts, columns=header)
    body = cells.to_latex(index=False, escape=False, column_format=alignment).rstrip()
    sentences = " ".join([f"{table.title}.", *table.notes])
    caption = latex(sentences)
    return (
        "% needs \\usepackage{booktabs,graphicx}\n"
        "\\begin{table}[ht]\n"
        f"\\caption{{{caption}}}\n"
        f"\\label{{tab:{table.name}}}\n"
        "\\centering\\small\n"
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        f"{body}}}\n"
        "\\end{table}\n"
    )
