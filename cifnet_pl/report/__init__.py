"""Reports on finished runs: ``cifnet report RUNS… --output DIR``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import expanded, write_bytes, write_text
from cifnet_pl.utilities.text import number_of, print_text

if TYPE_CHECKING:
    from cifnet_pl.report.figures import Picture
    from cifnet_pl.report.study import Study
    from cifnet_pl.report.table_formats import ReportTable

TITLE = "Class-incremental learning: results"


def report(
    runs: list[str],
    output: str = "report",
    external: str | None = None,
    compare: list[str] | None = None,
) -> None:
    """Make tables and figures of finished runs, and replace an earlier report at ``output``.

    Means and standard deviations are over seeds. The paper's numbers stand beside them.

    Args:
        runs: run folders, or folders that hold them at any depth.
        output: folder for report.html, report.md, tables/ and figures/.
        external: CSV file of methods run elsewhere, or None.
        compare: two methods, named as in the tables, or None.
    """
    from cifnet_pl.report.comparison import compare_methods, comparison_lines

    study = read_study(runs, external)
    comparisons = []
    if compare is not None:
        comparisons = compare_methods(study, compare)
    for reason in study.left_out:
        print_text(f"left out: {reason}")
    for point in study.missing:
        print_text(f"missing: {point}")
    target = expanded(output)
    write_report(study, target, comparisons)
    for table in comparisons:
        for line in comparison_lines(table):
            print_text(line)
    configurations = sum(group.kind == "measured" for group in study.groups)
    page = target / "report.html"
    runs_text = number_of(run_count(study), "run")
    print_text(f"{runs_text} of {number_of(configurations, 'configuration')}: {page}")


def run_count(study: Study) -> int:
    """Return the number of runs that were measured by this package."""
    return sum(
        len(group.outcomes) for group in study.groups if group.kind == "measured"
    )


def read_study(runs: Sequence[str | Path], external: str | Path | None = None) -> Study:
    """Read runs and external results, and group them by configuration.

    Args:
        runs: run folders, or folders that hold them at any depth.
        external: CSV file of methods run elsewhere, or None.

    Raises:
        UsageError: a path that does not exist, or external results that belong to no setting.
        DataError: there is no complete run.
    """
    from cifnet_pl.report.external_results import published_groups, read_external
    from cifnet_pl.report.runs import find_missing, read_runs
    from cifnet_pl.report.study import Study, group_order, group_runs

    folders = [expanded(run) for run in runs]
    complete, left_out = read_runs(folders)
    if not complete:
        if left_out:
            reason = f" ({left_out[0]})"
        else:
            reason = ""
        raise DataError(f"no finished run in {', '.join(map(str, runs))}{reason}")
    groups, replaced = group_runs(complete)
    settings = Study(groups).settings
    if external is not None:
        external_groups = read_external(expanded(external), settings)
        groups = sorted(groups + external_groups, key=group_order)
    published = published_groups(settings)
    missing = find_missing(folders)
    unused = left_out + replaced
    return Study(groups, published, unused, missing)


def write_report(
    study: Study, folder: Path, comparisons: Sequence[ReportTable] = ()
) -> None:
    """Write the report; each file is written atomically, and the same study gives the same bytes.

    Args:
        study: all results.
        folder: where the files are written.
        comparisons: tables of :func:`cifnet_pl.report.comparison.compare_methods`.
    """
    from cifnet_pl.report.figures import all_pictures
    from cifnet_pl.report.page import report_markdown, report_page
    from cifnet_pl.report.table_formats import latex
    from cifnet_pl.report.tables import all_tables, report_notes

    tables = all_tables(study)
    if comparisons:
        tables = {"Comparison": list(comparisons), **tables}
    pictures = all_pictures(study)
    parts = []
    sections = dict.fromkeys([*tables, *pictures])
    for section in sections:
        section_tables = tables.get(section, [])
        for table in section_tables:
            _write_table(table, folder / "tables")
        drawn = []
        for p in pictures.get(section, ()):
            drawn.append(_write_picture(p, folder / "figures"))
        parts.append({"name": section, "tables": section_tables, "pictures": drawn})
    titles = [setting.title for setting in study.settings]
    settings = "; ".join(titles)
    notes = report_notes(study)
    content = {
        "title": TITLE,
        "lead": f"{number_of(run_count(study), 'run')}. {settings}.",
        "warnings": _warnings(study),
        "parts": parts,
        "notes": notes,
    }
    notes_in_latex = [f"{latex(note)}\n\n" for note in notes]
    write_text(folder / "tables" / "notes.tex", "".join(notes_in_latex))
    write_text(folder / "report.md", report_markdown(content))
    write_text(folder / "report.html", report_page(content))


def _write_table(table: ReportTable, folder: Path) -> None:
    """Write a table as CSV, LaTeX and Markdown."""
    from cifnet_pl.report.table_formats import to_csv_table, to_latex, to_markdown

    csv_text = to_csv_table(table)
    write_text(folder / f"{table.name}.csv", csv_text)
    latex_text = to_latex(table)
    write_text(folder / f"{table.name}.tex", latex_text)
    markdown = to_markdown(table)
    write_text(folder / f"{table.name}.md", markdown)


def _write_picture(picture: Picture, folder: Path) -> dict[str, Any]:
    """Write a figure as PNG and SVG, and return what the page needs of it."""
    from cifnet_pl.report.figures import render

    png, svg = render(picture)
    write_bytes(folder / f"{picture.name}.png", png)
    write_bytes(folder / f"{picture.name}.svg", svg)
    return {"name": picture.name, "caption": picture.caption, "svg": svg}


def _warnings(study: Study) -> list[str]:
    """Return the sentences at the top of the report: what is missing, and what to be careful of."""
    from cifnet_pl.report.settings import backbone_notes, small_ridge_messages

    warnings = []
    if study.missing:
        points = number_of(len(study.missing), "point")
        reasons = "; ".join(study.missing)
        warnings.append(
            f"Missing: {points} of the sweep without a complete run: {reasons}"
        )
    warnings += study.data_notes
    runs = []
    for group in study.groups:
        runs += group.runs
    warnings += [f"{message}." for message in small_ridge_messages(runs)]
    warnings += backbone_notes(study.settings)
    warnings += [f"Left out: {reason}" for reason in study.left_out]
    return warnings
