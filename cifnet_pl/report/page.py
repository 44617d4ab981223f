"""Write tables as CSV, Markdown, LaTeX and HTML; reports and audits as one self-contained HTML page
without scripts.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from PIL import Image

from cifnet_pl.images.image import UnreadableImage, read_square
from cifnet_pl.model.audit import LearningCurve
from cifnet_pl.model.drawing import png
from cifnet_pl.report.significance import SHARED, Stat, marked
from cifnet_pl.utilities.files import rendered, to_csv
from cifnet_pl.utilities.text import printable

Cell = str | Stat | None
"""Text, a number with its deviation, or nothing."""

SEEDS = "seeds"
"""Header of the column that has a row's number of seeds."""

CONDITIONS = "conditions"
"""Header of the column that tells on which machine, and how, a row's time and energy were
measured.
"""

ROW_HEADERS = ("method", "numbers", SEEDS)
"""Columns that say which row it is."""

COST_HEADERS = ("training (min)", "energy (kWh)", "A_K per kWh", "CO₂ (kg)")
"""Columns whose values depend on the machine."""

PLAIN = "-0123456789"
HIGH = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
"""Letters of an exponent, and as they are written."""


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files and its caption."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: plain text; ``A_K`` and ``A_bar`` are typeset where the format can.
        digits: decimals, or None for three significant digits.
        better: "max", "min", or None if no value is better than another.
        scale: numbers are multiplied by this before they are written.
        spread: whether the deviation is written; not for numbers that cannot depend on the seed.
        further: whether a page shows the column in a table of its own, which a reader opens: else
            it would not fit.
    """

    header: str
    digits: int | None = 2
    better: str | None = None
    scale: float = 1.0
    spread: bool = True
    further: bool = False


@dataclass
class Table:
    """Rows of cells under columns.

    Attributes:
        name: of its files.
        title: above the table.
        columns, rows: its content.
        notes: sentences below the table.
        blocks: name for each row; only rows with the same name are compared to find the best, in
            columns of time and energy only those with the same conditions, too, where no other
            processes counted. Published and external rows are never compared.
    """

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)

    @cached_property
    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the cells that are marked as best, see
        :func:`cifnet_pl.report.significance.marked`.
        """
        best_cells = set()
        conditions = self._under(CONDITIONS)
        shared = {i for i, letter in enumerate(conditions) if SHARED in str(letter)}
        for j, column in enumerate(self.columns):
            comparable: dict[tuple[str, Cell], list[int]] = {}
            for i in self.measured:
                if i in shared and column.header in COST_HEADERS:
                    continue
                block = self.blocks[i] if self.blocks else ""
                apart = conditions[i] if column.header in COST_HEADERS else None
                comparable.setdefault((block, apart), []).append(i)
            for rows in comparable.values() if column.better else ():
                stats = [cell if isinstance(cell := self.rows[i][j], Stat) else None for i in rows]
                best_cells |= {
                    (rows[i], j) for i in marked(stats, str(column.better), exact=not column.spread)
                }
        return best_cells

    @property
    def measured(self) -> list[int]:
        """Rows of what was measured here."""
        return [
            i
            for i in range(len(self.rows))
            if not self.blocks or self.blocks[i].startswith("measured")
        ]

    def _under(self, header: str) -> list[Cell]:
        """Return the cells of a column; nothing for each row if there is no such column."""
        headers = [column.header for column in self.columns]
        return [row[headers.index(header)] if header in headers else None for row in self.rows]

    def text(self, row: int, column: int) -> str:
        """Return a cell as plain text.

        The number of seeds is added if measured rows of the column have different ones, unless a
        column "seeds" says it.

        Args:
            row, column: position of the cell.
        """
        cell = self.rows[row][column]
        plain = cell_text(self.rows[row][column], self.columns[column])
        costs = self.columns[column].header.startswith(COST_HEADERS)
        if cell and costs and SHARED in str(self._under(CONDITIONS)[row]):
            plain += f" {SHARED}"
        if (
            not isinstance(cell, Stat)
            or not self.columns[column].spread
            or row not in self.measured
        ):
            return plain
        counts = {other.n for i in self.measured if isinstance(other := self.rows[i][column], Stat)}
        said = len(counts) == 1 or self._under(SEEDS)[row] == str(cell.n)
        if said:
            return plain
        return f"{plain} (n = {cell.n})"

    def kind(self, column: int) -> str:
        """Return "text" for a column of text, or of nothing, and "num" for one of numbers."""
        cells = [row[column] for row in self.rows]
        texts = any(isinstance(cell, str) and cell for cell in cells)
        if any(isinstance(cell, Stat) for cell in cells) and not texts:
            return "num"
        return "text"

    def without_empty(self) -> Table:
        """Return the table without columns in which nothing was measured."""
        keep = [
            j
            for j in range(len(self.columns))
            if any(row[j] not in (None, "") for row in self.rows)
        ]
        rows = [[row[j] for j in keep] for row in self.rows]
        return replace(self, columns=[self.columns[j] for j in keep], rows=rows)


def number(value: float, digits: int | None) -> str:
    """Return a number as text, thousands separated.

    Args:
        value: the number.
        digits: decimals; None for at least three significant digits.

    Example:
        >>> number(1234.5, None), number(0.01234, None), number(97.456, 1), number(1.234e-5, None)
        ('1,234', '0.0123', '97.5', '1.23·10⁻⁵')
    """
    if digits is not None:
        return f"{value:,.{digits}f}"
    if abs(value) >= 100:
        if abs(value) < 1000:
            return f"{value:,.1f}"
        return f"{value:,.0f}"
    if not value or abs(value) >= 1e-3:
        return f"{value:.3g}"
    figures, power = f"{value:.2e}".split("e")
    return figures + raised(int(power))


def raised(power: int) -> str:
    """Return a power of ten as a factor."""
    return f"·10{str(power).translate(str.maketrans(PLAIN, HIGH))}"


def cell_text(cell: Cell, column: Column) -> str:
    """Return a cell as plain text, mean and deviation with the same decimals; a dash if nothing was
    measured.

    A small or large number and its deviation have one power of ten: (7.72 ± 0.47)·10⁻⁵.

    Args:
        cell: of the table.
        column: that it is in.
    """
    if not isinstance(cell, Stat):
        if cell:
            return printable(cell)
        return "–"
    mean = cell.mean * column.scale
    digits = column.digits
    sd = cell.sd * column.scale if cell.sd is not None and column.spread else None
    if digits is None and mean:
        power = math.floor(math.log10(abs(mean)))
        if sd is not None and not -3 <= power < 6:
            return f"({mean / 10**power:.2f} ± {sd / 10**power:.2f}){raised(power)}"
        digits = max(1 if power < 3 else 0, 2 - power) if power >= -3 else None
    return number(mean, digits) + (f" ± {number(sd, digits)}" if sd is not None else "")


# ---------------------------------------------------------------------- files


def to_csv_table(table: Table) -> str:
    """Return CSV: means in full precision, and for numbers the deviation and the number of seeds in
    further columns.
    """
    header: list[str] = []
    columns: list[list[Any]] = []
    for j, column in enumerate(table.columns):
        cells = [row[j] for row in table.rows]
        header.append(column.header)
        if table.kind(j) == "text":
            columns.append(cells)
            continue
        header += [f"{column.header} sd", f"{column.header} n"]
        stats = [cell if isinstance(cell, Stat) else None for cell in cells]
        deviations = [None if stat is None else stat.sd for stat in stats]
        columns.append([None if stat is None else stat.mean * column.scale for stat in stats])
        columns.append([None if sd is None else sd * column.scale for sd in deviations])
        columns.append([None if stat is None else stat.n for stat in stats])
    return to_csv(header, list(zip(*columns, strict=True)))


def _texts(table: Table, typeset: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the typeset cells of a table, the best of a column in ``bold``."""
    columns = range(len(table.columns))
    cells = [[typeset(table.text(i, j)) for j in columns] for i in range(len(table.rows))]
    for i, j in table.best:
        cells[i][j] = bold.replace("…", cells[i][j])
    return cells


def to_markdown(table: Table) -> str:
    """Return a pipe table with the title above and the notes below; the best of a column in
    bold.
    """
    header = [column.header.replace("|", "\\|") for column in table.columns]
    aligned = ["---" if j == 0 or table.kind(j) == "text" else "---:" for j in range(len(header))]
    body = _texts(table, lambda text: text.replace("|", "\\|"), "**…**")
    lines = ["| " + " | ".join(row) + " |" for row in [header, aligned, *body]]
    if table.notes:
        notes = ["", *(f"{note}  " for note in table.notes)]
    else:
        notes = []
    return "\n".join([f"**{table.title}**", "", *lines, *notes, ""])


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$", "ε": r"$\epsilon$", "±": r"$\pm$",
    "×": r"$\times$", "–": "--", "…": r"\dots{}", "Ā": r"$\bar{A}$", "≤": r"$\le$", "<": r"$<$",
    ">": r"$>$", "|": r"$|$", "→": r"$\to$", "₂": r"$_2$", "·": r"$\cdot$", "−": r"$-$",
    **{high: rf"\textsuperscript{{{plain}}}" for plain, high in zip(PLAIN, HIGH, strict=True)},
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
    align = "".join("l" if table.kind(j) == "text" else "r" for j in range(len(table.columns)))
    header = [latex(column.header) for column in table.columns]
    cells = pd.DataFrame(_texts(table, latex, r"\textbf{…}"), columns=header)
    return (
        "% needs \\usepackage{booktabs,graphicx}\n"
        "\\begin{table}[ht]\n"
        f"\\caption{{{latex(' '.join([table.title + '.', *table.notes]))}}}\n"
        f"\\label{{tab:{table.name}}}\n"
        "\\centering\\small\n"
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
        f"{cells.to_latex(index=False, escape=False, column_format=align).rstrip()}}}\n"
        "\\end{table}\n"
    )


# ---------------------------------------------------------------------- the page

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("cifnet_pl.report"), autoescape=True, undefined=jinja2.StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


def typeset(text: str) -> Markup:
    """Return ``text`` for HTML, escaped, with ``A_K`` as a symbol with an index."""
    return Markup(re.sub("A_([Kk])", r"<i>A</i><sub>\1</sub>", str(escape(printable(text)))))


def to_html(table: Table) -> Markup:
    """Return a ``<table>`` with caption; the best of a column in bold.

    Further columns follow in a ``<details>``, beside the columns of text that say whose they are.
    """
    texts = [[Markup(text) for text in row] for row in _texts(table, typeset, "<b>…</b>")]
    first, further, of_row = (
        [j for j, column in enumerate(table.columns) if chosen(column)]
        for chosen in (
            lambda c: not c.further,
            lambda c: c.further,
            lambda c: c.header in ROW_HEADERS,
        )
    )
    parts = {"first": first, "further": [*of_row, *further] if further else []}
    names = ", ".join(table.columns[j].header for j in further)
    return Markup(
        TEMPLATES.get_template("table.html").render(
            table=table, texts=texts, further_names=names, **parts
        )
    )


def base64_of(data: bytes) -> str:
    """Return data as text, for an address that holds it."""
    return base64.b64encode(data).decode("ascii")


TEMPLATES.filters.update(typeset=typeset, table=to_html, base64=base64_of, png=png)


def report_page(content: Mapping[str, Any]) -> str:
    """Return the page of a report; figures are images and not elements of it: identifiers of two
    cannot clash.

    Args:
        content: what the template uses, see :func:`cifnet_pl.report.write_report`.
    """
    return TEMPLATES.get_template("page.html").render(content)


def report_markdown(content: Mapping[str, Any]) -> str:
    """Return the same in Markdown, with the figures as files beside it."""
    return rendered(
        Path(__file__).parent / "templates" / "report.md", markdown=to_markdown, **content
    )


# ---------------------------------------------------------------------- the page of an audit

PIXELS = 136
"""Side of the images on the page."""

PIXELS_PER_INCH = 96
"""Of a page, as CSS has it."""


Shown = tuple[str, str, str]
"""An image on the page: the small JPEG file, base64, the name of the file, and a text below it."""


@dataclass
class Section:
    """A part of the page: sentences, then as far as given a figure, a table, pairs of rows of
    images, and images.

    Attributes:
        name: heading.
        texts: sentences.
        figure: shown with its text as large as it was drawn for; a large one is scrolled, not
            shrunk.
        header, rows: of the table.
        pairs: rows of images of two classes, each with a title.
        images: further images.
    """

    name: str
    texts: list[str] = field(default_factory=list)
    figure: Figure | None = None
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    pairs: Sequence[Sequence[tuple[str, Sequence[Shown]]]] = ()
    images: Sequence[Shown] = ()

    @property
    def width(self) -> int:
        """Of the figure, in pixels of the page."""
        if self.figure:
            return round(self.figure.get_figwidth() * PIXELS_PER_INCH)
        return 0


def show(file: Path, text: str = "") -> Shown:
    """Return a small copy of an image for the page, with the name of its file.

    Args:
        file: the image.
        text: below the name.
    """
    try:
        square = read_square(file, PIXELS)
    except UnreadableImage:  # it could be read a minute ago
        square = np.zeros((PIXELS, PIXELS, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(square).save(content, "JPEG", quality=80)
    # A number and its percent sign stay on one line.
    return (
        base64_of(content.getvalue()),
        printable(file.name),
        printable(text).replace(" %", "\u00a0%"),
    )


def audit_page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the HTML page; all texts are escaped.

    Args:
        title: of the page.
        lead: sentences at the top.
        sections: parts of the page.
    """
    return TEMPLATES.get_template("audit.html").render(title=title, lead=lead, sections=sections)


def draw_learning_curve(curve: LearningCurve) -> Figure:
    """Draw the accuracy over images per class."""
    figure = Figure(figsize=(6.4, 3.8), dpi=120, layout="constrained")
    axes = figure.subplots()
    sizes, values = zip(*curve.points, strict=True)
    axes.plot(sizes, values, "o-", color="black")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    lowest = min(50.0, min(values) - 2)
    axes.set(xlabel="images per class", ylabel="named right, each left out (%)", ylim=(lowest, 101))
    axes.grid(alpha=0.3)
    return figure
