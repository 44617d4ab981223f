"""Reports on finished runs: ``python -m cifnet_pl report RUNS… --output DIR``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import write_bytes, write_text
from cifnet_pl.utilities.text import number_of

if TYPE_CHECKING:
    from cifnet_pl.report.page import Table
    from cifnet_pl.report.study import Study


def report(
    runs: list[str],
    output: str = "report",
    external: str | None = None,
    compare: list[str] | None = None,
) -> None:
    """Make tables and figures of finished runs, mean and deviation over seeds, with the paper's
    numbers beside them.

    Args:
        runs: run folders, or folders that hold them at any depth.
        output: folder for report.html, report.md, tables/ and figures/.
        external: CSV file of methods run elsewhere (method, seed, task, A_k, seconds, kWh; cells
            may be empty); where one fits several settings, the columns dataset, classes_per_task
            and backbone say which.
        compare: two methods, named as in the tables, such as CIFNet "Exact ridge": their
            differences over the same seeds and test images, with 95 % intervals.
    """
    from cifnet_pl.report.comparison import compare as compared
    from cifnet_pl.report.comparison import in_words

    study = read_study(runs, external)
    if compare is not None:
        comparisons = compared(study, compare)
    else:
        comparisons = []
    for kind, sentences in (("left out", study.left_out), ("missing", study.missing)):
        for sentence in sentences:
            print(f"{kind}: {sentence}")
    write_report(study, Path(output), comparisons)
    for line in (line for table in comparisons for line in in_words(table)):
        print(line)
    configurations = sum(group.kind == "measured" for group in study.groups)
    print(
        f"{run_count(study)} runs of {configurations} configurations:"
        f" {Path(output) / 'report.html'}"
    )


def run_count(study: Study) -> int:
    """Return the number of runs that were measured."""
    return sum(len(group.outcomes) for group in study.groups if group.kind == "measured")


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

    whole, left_out = read_runs(runs)
    if not whole:
        reason = f" ({left_out[0]})" if left_out else ""
        raise DataError(f"no finished run in {', '.join(map(str, runs))}{reason}")
    groups, replaced = group_runs(whole)
    settings = Study(groups).settings
    if external is not None:
        groups = sorted(groups + read_external(Path(external), settings), key=group_order)
    return Study(groups, published_groups(settings), left_out + replaced, find_missing(runs))


def write_report(study: Study, folder: Path, comparisons: Sequence[Table] = ()) -> None:
    """Write the report; each file is written atomically, and the same study gives the same bytes.

    Args:
        study: all results.
        folder: where the files are written.
        comparisons: of two methods.
    """
    from cifnet_pl.report.figures import all_pictures, render
    from cifnet_pl.report.page import (
        latex,
        report_markdown,
        report_page,
        to_csv_table,
        to_latex,
        to_markdown,
    )
    from cifnet_pl.report.settings import about_small_ridge, notes_of
    from cifnet_pl.report.tables import all_tables, report_notes

    if comparisons:
        compared = {"Comparison": list(comparisons)}
    else:
        compared = {}
    tables = {**compared, **all_tables(study)}
    pictures = all_pictures(study)
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
        parts.append({"name": name, "tables": tables.get(name, []), "pictures": drawn})
    runs = [run for group in study.groups for run in group.runs]
    missing = (
        f"{number_of(len(study.missing), 'point')} of the sweep without a whole run:"
        f" {'; '.join(study.missing)}"
    )
    warnings = [
        *([f"Missing: {missing}"] if study.missing else []),
        *study.data_notes,
        *(f"{note}." for note in about_small_ridge(runs)),
        *notes_of(study.settings),
        *(f"Left out: {sentence}" for sentence in study.left_out),
    ]
    lead = f"{run_count(study)} runs. {'; '.join(setting.title for setting in study.settings)}."
    notes = report_notes(study)
    title = "Class-incremental learning: results"
    content = {"title": title, "lead": lead, "warnings": warnings, "parts": parts, "notes": notes}
    write_text(folder / "tables" / "notes.tex", "".join(f"{latex(note)}\n\n" for note in notes))
    write_text(folder / "report.md", report_markdown(content))
    write_text(folder / "report.html", report_page(content))
