"""Tables as CSV, Markdown, LaTeX and HTML, and the page of an audit."""

import re

import pytest
from matplotlib.figure import Figure

from cifnet_pl.report.page import ImageRow, PageImage, Section, audit_page, to_html
from cifnet_pl.report.significance import Stat, stat_of
from cifnet_pl.report.table_formats import (
    Column,
    ReportTable,
    cell_text,
    latex,
    to_latex,
    to_markdown,
)


def stat(*values: float) -> Stat:
    """One value per seed."""
    return stat_of({f"seed {i}": value for i, value in enumerate(values)})


TABLE = ReportTable(
    "demo",
    "A & B < C",
    [Column("method"), Column("A_K (%)"), Column("kWh", None), Column("nothing")],
    [
        ["one | 1", stat(59.0, 60.0, 58.9), stat(0.0603, 0.0592, 0.0614), None],
        ["two_2", stat(61.0, 62.1, 60.9), None, None],
    ],
    ["100 % λ"],
).without_empty()


def test_numbers_and_deviations() -> None:
    assert cell_text(Stat(59.256, 0.504, 3), Column("a")) == "59.26 ± 0.50"
    assert cell_text(Stat(0.0603, 0.00112, 3), Column("a", None)) == "0.0603 ± 0.0011"
    assert cell_text(Stat(1611.2, 85.4, 3), Column("a", None)) == "1,611 ± 85"
    assert (
        cell_text(Stat(11.17e6, 0.0, 3), Column("a", 2, 1e-6, with_deviation=False))
        == "11.17"
    )
    assert cell_text(Stat(1.234e-5, 2e-6, 3), Column("a", None)) == "(1.23 ± 0.20)·10⁻⁵"
    assert cell_text(Stat(117_898, None, 1), Column("a", None)) == "1.2·10⁵"
    assert cell_text(Stat(0.0, None, 1), Column("a", None)) == "0"
    assert cell_text(None, Column("a")) == "–"


def test_markdown() -> None:
    text = to_markdown(TABLE)
    assert "| one \\| 1 | 59.30 ± 0.61 | 0.0603 ± 0.0011 |" in text
    assert "| two_2 | 61.33 ± 0.67 | – |" in text
    assert "nothing" not in text


def test_the_number_of_seeds_is_said_where_it_differs() -> None:
    """A killed seed: the mean of two seeds is above that of three."""
    two = stat(70.0, 72.0)
    three = stat(70.0, 72.0, 60.0)
    table = ReportTable(
        "t", "t", [Column("method"), Column("A_K", 1)], [["a", two], ["b", three]]
    )
    assert [table.text(i, 1) for i in (0, 1)] == [
        "71.0 ± 1.4 (n = 2)",
        "67.3 ± 6.4 (n = 3)",
    ]
    assert "(n" not in TABLE.text(0, 1)


def test_latex_is_escaped() -> None:
    text = to_latex(TABLE)
    assert r"A \& B $<$ C. 100 \% $\lambda$" in text
    assert r"two\_2 & 61.33 $\pm$ 0.67 & -- \\" in text
    assert r"$A_K$ (\%)" in text
    assert (
        latex("a_b{c}^~\\")
        == r"a\_b\{c\}\textasciicircum{}\textasciitilde{}\textbackslash{}"
    )
    body = text.replace(r"\_", "").replace(r"\&", "").replace(r"\%", "")
    assert not re.search(r"(?<!A)_(?!cls)", body.replace("tab:demo", ""))


def test_html_is_escaped() -> None:
    text = to_html(TABLE)
    assert "<caption>A &amp; B &lt; C</caption>" in text
    assert "<i>A</i><sub>K</sub> (%)" in text
    assert '<td class="num">61.33 ± 0.67</td>' in text


HOSTILE = "<script>alert('1')</script> & \"x\""


@pytest.mark.parametrize(("inches", "kind"), [(6.4, "small"), (21.0, "wide")])
def test_a_picture_is_as_large_as_it_was_drawn_for(inches: float, kind: str) -> None:
    page = audit_page(
        "Audit", [], [Section("Confused", [], Figure(figsize=(inches, 2), dpi=130))]
    )
    found = re.findall(r'<div class="scroll"><img class="(\w+)" width="(\d+)"', page)
    assert found == [(kind, str(round(96 * inches)))]


def test_whatever_images_and_classes_are_called_is_text() -> None:
    image = PageImage("", HOSTILE, HOSTILE)
    side = ImageRow(HOSTILE, [image])
    table = {"header": (HOSTILE,), "rows": [(HOSTILE,)]}
    page = audit_page(
        HOSTILE,
        [HOSTILE],
        [Section(HOSTILE, [HOSTILE], pairs=[(side, side)], images=[image], **table)],
    )
    assert "<script" not in page
    assert (
        page.count("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &#34;x&#34;")
        == 18
    )
