import csv
import io
import re

from cifnet_pl.report.groups import Stat
from cifnet_pl.report.markup import Column, Table, cell_text, latex, to_csv_table, to_html, to_latex, to_markdown

TABLE = Table(
    "demo",
    "A & B < C",
    [Column("method"), Column("A_K (%)", 2, "max"), Column("kWh", None, "min"), Column("nothing")],
    [
        ["one | 1", Stat(59.256, 0.504, 3), Stat(0.0603, 0.00112, 3), None],
        ["two_2", Stat(61.0, None, 1), None, None],
    ],
    ["100 % λ"],
).without_empty()


def test_numbers_and_deviations() -> None:
    assert cell_text(Stat(59.256, 0.504, 3), Column("a")) == "59.26 ± 0.50"
    assert cell_text(Stat(0.0603, 0.00112, 3), Column("a", None)) == "0.0603 ± 0.0011"
    assert cell_text(Stat(1611.2, 85.4, 3), Column("a", None)) == "1,611 ± 85"
    assert cell_text(Stat(11.17e6, 0.0, 3), Column("a", 2, None, 1e-6, False)) == "11.17"
    assert cell_text(Stat(1.234e-5, 2e-6, 3), Column("a", None)) == "1.23e-05 ± 2e-06"
    assert cell_text(Stat(0.0, None, 1), Column("a", None)) == "0"
    assert cell_text(None, Column("a")) == "–"


def test_markdown() -> None:
    text = to_markdown(TABLE)
    assert "| one \\| 1 | 59.26 ± 0.50 | 0.0603 ± 0.0011 |" in text
    assert "| two_2 | **61.00** | – |" in text  # alone in its column, 0.0603 is not the best of anything
    assert "nothing" not in text


def test_csv_is_exact_and_empty_where_nothing_was_measured() -> None:
    rows = list(csv.reader(io.StringIO(to_csv_table(TABLE))))
    assert rows[0] == ["method", "A_K (%)", "A_K (%) sd", "A_K (%) n", "kWh", "kWh sd", "kWh n"]
    assert rows[1] == ["one | 1", "59.256", "0.504", "3", "0.0603", "0.00112", "3"]
    assert rows[2] == ["two_2", "61.0", "", "1", "", "", ""]


def test_latex_is_escaped() -> None:
    text = to_latex(TABLE)
    assert r"A \& B $<$ C. 100 \% $\lambda$" in text
    assert r"two\_2 & \textbf{61.00} & -- \\" in text
    assert r"$A_K$ (\%)" in text
    assert latex("a_b{c}^~\\") == r"a\_b\{c\}\textasciicircum{}\textasciitilde{}\textbackslash{}"
    body = text.replace(r"\_", "").replace(r"\&", "").replace(r"\%", "")
    assert not re.search(r"(?<!A)_(?!cls)", body.replace("tab:demo", ""))


def test_html_is_escaped() -> None:
    text = to_html(TABLE)
    assert "<caption>A &amp; B &lt; C</caption>" in text
    assert "<i>A</i><sub>K</sub> (%)" in text
    assert '<td class="num"><b>61.00</b></td>' in text
