"""Write a report: read and group the runs, and put their tables and figures into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cifnet_pl.report.comparison import Pair, comparison_table
from cifnet_pl.report.external_results import published_groups, read_external
from cifnet_pl.report.figures import all_pictures, render
from cifnet_pl.report.page import Part, Report, latex, to_csv_table, to_latex, to_markdown
from cifnet_pl.report.runs import find_missing, read_runs
from cifnet_pl.report.settings import about_small_ridge, notes_of
from cifnet_pl.report.study import REFERENCE, Study, group_order, group_runs
from cifnet_pl.report.tables import all_tables, report_notes, seldom_notes
from cifnet_pl.utilities.errors import DataError, unknown_name
from cifnet_pl.utilities.files import write_bytes, write_text
from cifnet_pl.utilities.text import number_of

COMPARISON = "Comparison"
TITLE = "Class-incremental learning: results"


def run_count(study: Study) -> int:
    """Return the number of runs that were measured."""
    return sum(len(group.outcomes) for group in study.groups if group.kind == "measured")


def read_study(runs: Sequence[str | Path], external: str | Path | None = None, reference: str = REFERENCE) -> Study:
    """Read runs and external results, and group them by configuration.

    Args:
        runs: run folders, or folders that hold them at any depth.
        external: CSV file of methods run elsewhere, or None.
        reference: label of the method whose energy the others are divided by.

    Raises:
        UsageError: a path that does not exist, external results that belong to no setting, or a reference that no
            method is called.
        DataError: there is no complete run.
    """
    whole, left_out = read_runs(runs)
    if not whole:
        reason = f" ({left_out[0]})" if left_out else ""
        raise DataError(f"no finished run in {', '.join(map(str, runs))}{reason}")
    groups, replaced = group_runs(whole)
    settings = Study(groups).settings
    if external is not None:
        groups = sorted(groups + read_external(Path(external), settings), key=group_order)
    names = [name for group in groups for name in (group.label, group.name)]
    if reference not in (REFERENCE, *names):
        raise unknown_name("method for --reference", reference, dict.fromkeys(names))
    return Study(groups, published_groups(settings), left_out + replaced, find_missing(runs), reference)


def write_report(study: Study, folder: Path, pairs: Sequence[Pair] = ()) -> None:
    """Write the report; each file is written atomically, and the same study gives the same bytes.

    Args:
        study: all results.
        folder: where the files are written.
        pairs: comparisons of two methods.
    """
    compared = {COMPARISON: [comparison_table(pair).without_empty() for pair in pairs]} if pairs else {}
    tables, pictures = {**compared, **all_tables(study)}, all_pictures(study)
    parts = []
    for name in dict.fromkeys([*tables, *pictures]):
        drawn = []
        for picture in pictures.get(name, ()):
            png, svg = render(picture)
            write_bytes(folder / "figures" / f"{picture.name}.png", png)
            write_bytes(folder / "figures" / f"{picture.name}.svg", svg)
            drawn.append((picture, svg))
        for table in tables.get(name, ()):
            for suffix, written in (("csv", to_csv_table), ("tex", to_latex), ("md", to_markdown)):
                write_text(folder / "tables" / f"{table.name}.{suffix}", written(table))
        parts.append(Part(name, tables.get(name, []), drawn))
    runs = [run for group in study.groups for run in group.runs]
    missing = f"{number_of(len(study.missing), 'point')} of the sweep without a whole run: {'; '.join(study.missing)}"
    warnings = [
        *([f"Missing: {missing}"] if study.missing else []),
        *study.data_notes,
        *(f"{note}." for note in about_small_ridge(runs)),
        *seldom_notes(study),
        *notes_of(study.settings),
        *(f"Left out: {sentence}" for sentence in study.left_out),
    ]
    lead = f"{run_count(study)} runs. {'; '.join(setting.title for setting in study.settings)}."
    report = Report(TITLE, lead, warnings, parts, report_notes(study))
    write_text(folder / "tables" / "notes.tex", "".join(f"{latex(note)}\n\n" for note in report.notes))
    write_text(folder / "report.md", report.to_markdown())
    write_text(folder / "report.html", report.to_html())
