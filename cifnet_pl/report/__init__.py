"""Reports on finished runs: ``cifnet report RUNS… --output DIR``."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cifnet_pl.utilities.files import expanded, rendered, write_bytes, write_text
from cifnet_pl.utilities.text import number_of, print_text

if TYPE_CHECKING:
    from cifnet_pl.report.figures import Picture
    from cifnet_pl.report.results import Results
    from cifnet_pl.report.tables import ReportTable

MARKDOWN = Path(__file__).parent / "templates" / "report.md"


def report(
    runs: Sequence[str | Path],
    output: str | Path = "report",
    external: str | None = None,
    compare: Sequence[str] = (),
) -> None:
    """Make tables and figures of finished runs, and replace an earlier report at ``output``.

    Means and standard deviations are over seeds. The paper's numbers stand beside them.

    Args:
        runs: run folders, or folders that hold them at any depth.
        output: folder for report.html, report.md, tables/ and figures/.
        external: CSV file of methods run elsewhere, or None.
        compare: two methods, named as in the tables, or none.
    """
    from cifnet_pl.report.comparison import compare_methods, comparison_lines
    from cifnet_pl.report.results import read_results, warnings

    results = read_results(runs, external)
    comparisons = []
    if compare:
        comparisons = compare_methods(results, compare)
    for warning in warnings(results):
        print_text(warning)
    target = expanded(output)
    write_report(results, target, comparisons)
    for comparison in comparisons:
        for line in comparison_lines(comparison):
            print_text(line)
    runs_text = number_of(len(results.measured), "run")
    print_text(f"{runs_text}: {target / 'report.html'}")


def write_report(
    results: Results,
    folder: Path,
    comparisons: Sequence[ReportTable],
) -> None:
    """Write the report; each file is written atomically, and the same runs give the same bytes.

    Args:
        results: of the runs.
        folder: where the files are written.
        comparisons: tables of :func:`cifnet_pl.report.comparison.compare_methods`.
    """
    from cifnet_pl.report.figures import all_pictures, render
    from cifnet_pl.report.page import TEMPLATES
    from cifnet_pl.report.results import warnings
    from cifnet_pl.report.tables import all_tables, report_notes

    tables = all_tables(results)
    if comparisons:
        tables = {"Comparison": list(comparisons), **tables}
    pictures = all_pictures(results)
    _number_equal_names(itertools.chain(*tables.values()))
    _number_equal_names(itertools.chain(*pictures.values()))
    _remove_earlier(folder)
    parts = []
    for section, own in tables.items():
        for table in own:
            path = folder / "tables" / table.name
            write_text(path.with_suffix(".csv"), table.values.to_csv(index=False))
            write_text(path.with_suffix(".tex"), table.to_latex())
            write_text(path.with_suffix(".md"), table.to_markdown())
        drawn = []
        for picture in pictures.get(section, []):
            path = folder / "figures" / picture.name
            svg = render(picture.figure, "svg")
            write_bytes(path.with_suffix(".svg"), svg)
            write_bytes(path.with_suffix(".png"), render(picture.figure, "png"))
            drawn.append({"picture": picture, "svg": svg})
        if own or drawn:
            parts.append({"name": section, "tables": own, "pictures": drawn})
    runs = number_of(len(results.measured), "run")
    content = {
        "title": "Class-incremental learning: results",
        "lead": f"{runs}. {'; '.join(results.settings)}.",
        "warnings": warnings(results),
        "parts": parts,
        "notes": report_notes(results),
    }
    write_text(folder / "report.md", rendered(MARKDOWN, **content))
    page = TEMPLATES.get_template("page.html")
    write_text(folder / "report.html", page.render(content))


def _number_equal_names(parts: Iterable[ReportTable | Picture]) -> None:
    """Number the parts that would have one file name, such as those of ``my-data`` and ``my_data``.

    The first one keeps its name.
    """
    counts: Counter[str] = Counter()
    for part in parts:
        name = part.name
        counts[name] += 1
        if counts[name] > 1:
            part.name = f"{name}_{counts[name]}"


def _remove_earlier(folder: Path) -> None:
    """Remove the tables and figures that an earlier report in a folder names."""
    report = folder / "report.md"
    if not report.is_file():
        return
    text = report.read_text(encoding="utf-8", errors="replace")
    for name in re.findall(r"\]\(((?:tables|figures)/\w+)\.\w+\)", text):
        for ending in ("csv", "tex", "md", "svg", "png"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)
