"""Reports on finished runs: ``python -m cifnet_pl report RUNS… --output DIR``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

from cifnet_pl.report.comparison import Pair, comparison_picture, comparison_table, folders_of, in_words
from cifnet_pl.report.comparison import compare as compared
from cifnet_pl.report.external_results import published_groups, read_external
from cifnet_pl.report.figures import SETTINGS, all_pictures, render
from cifnet_pl.report.page import Picture, Table, to_csv_table, to_latex, to_markdown, to_page
from cifnet_pl.report.runs import find_missing, read_runs
from cifnet_pl.report.settings import notes_of
from cifnet_pl.report.study import REFERENCE, Study, group_order, group_runs
from cifnet_pl.report.tables import all_tables
from cifnet_pl.utilities.errors import DataError, UsageError, unknown_name
from cifnet_pl.utilities.files import write_bytes, write_text
from cifnet_pl.utilities.text import number_of

__all__ = ["Study", "read_study", "report"]

COMPARISON = "Comparison"
TITLE = "Class-incremental learning: results"


def report(
    runs: Sequence[str] = (),
    output: str = "report",
    external: str | None = None,
    reference: str = "CIFNet",
    compare: list[str] | None = None,
) -> None:
    """Make tables and figures of finished runs, mean and deviation over seeds, with the paper's numbers beside them.

    Args:
        runs: run folders, or folders that hold them at any depth; those of --compare if none are given.
        output: folder for report.html, report.md, tables/ and figures/.
        external: CSV file of methods run elsewhere (method, seed, task, A_k, seconds, kWh; cells may be empty).
        reference: method whose energy the others are divided by.
        compare: two methods, named as in the tables, such as CIFNet "Exact ridge", or the folders of their runs, such
            as "logs/cifnet-s*" "logs/ridge-s*": their differences over the same seeds and test images, with 95 %
            intervals.

    Raises:
        UsageError: no run is named.
    """
    folders: list[str | Path] = [*runs] or [folder for name in compare or () for folder in folders_of(name)]
    if not folders:
        raise UsageError("no runs are given: name them before the options, cifnet report RUNS …")
    study = read_study(folders, external, reference)
    pairs = compared(study, compare) if compare is not None else []
    for kind, sentences in (("left out", study.left_out), ("missing", study.missing)):
        for sentence in sentences:
            print(f"{kind}: {sentence}")
    write_report(study, Path(output), pairs)
    for pair in pairs:
        for line in pair.lines:
            print(in_words(pair, line))
    configurations = sum(group.kind == "measured" for group in study.groups)
    print(f"{_runs(study)} runs of {configurations} configurations: {Path(output) / 'report.html'}")


def _runs(study: Study) -> int:
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
    tables = all_tables(study)
    pictures = all_pictures(study)
    if pairs:
        tables = {COMPARISON: [comparison_table(pair).without_empty() for pair in pairs], **tables}
        with matplotlib.rc_context(SETTINGS):
            pictures = {COMPARISON: [p for pair in pairs if (p := comparison_picture(pair))], **pictures}
    drawn: dict[str, list[tuple[Picture, bytes]]] = {}
    for section, own in pictures.items():
        for picture in own:
            png, svg = render(picture)
            write_bytes(folder / "figures" / f"{picture.name}.png", png)
            write_bytes(folder / "figures" / f"{picture.name}.svg", svg)
            drawn.setdefault(section, []).append((picture, svg))
    for table in (table for section in tables.values() for table in section):
        for suffix, written in (("csv", to_csv_table), ("tex", to_latex), ("md", to_markdown)):
            write_text(folder / "tables" / f"{table.name}.{suffix}", written(table))
    missing = f"{number_of(len(study.missing), 'point')} of the sweep without a whole run: {'; '.join(study.missing)}"
    warnings = [
        *([f"Missing: {missing}"] if study.missing else []),
        *study.data_notes,
        *notes_of(study.settings),
        *study.cache_note(study.groups),
        *(f"Left out: {sentence}" for sentence in study.left_out),
    ]
    lead = f"{_runs(study)} runs. {'; '.join(setting.title for setting in study.settings)}."
    write_text(folder / "report.md", _markdown(lead, warnings, tables, drawn))
    write_text(folder / "report.html", to_page(TITLE, lead, warnings, tables, drawn))


def _markdown(
    lead: str,
    warnings: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    pictures: Mapping[str, Sequence[tuple[Picture, bytes]]],
) -> str:
    """Return the report as Markdown, with the arguments of :func:`cifnet_pl.report.page.to_page`."""
    lines = [f"# {TITLE}", "", lead, "", *(f"> {text}\n" for text in warnings)]
    for section in dict.fromkeys([*tables, *pictures]):
        lines += [f"## {section}", "", *map(to_markdown, tables.get(section, ()))]
        lines += [f"![{p.caption}](figures/{p.name}.png)\n\n{p.caption}\n" for p, _ in pictures.get(section, ())]
    return "\n".join(lines)
