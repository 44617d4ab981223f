"""Reports on finished runs: ``python -m cifnet_pl report RUNS… --output DIR``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cifnet_pl.utilities.errors import UsageError


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
        external: CSV file of methods run elsewhere (method, seed, task, A_k, seconds, kWh; cells may be empty); where
            one fits several settings, the columns dataset, classes_per_task and backbone say which.
        reference: method whose energy the others are divided by.
        compare: two methods, named as in the tables, such as CIFNet "Exact ridge", or the folders of their runs, such
            as "logs/cifnet-s*" "logs/ridge-s*": their differences over the same seeds and test images, with 95 %
            intervals.

    Raises:
        UsageError: no run is named.
    """
    from cifnet_pl.report.comparison import compare as compared
    from cifnet_pl.report.comparison import folders_of, in_words
    from cifnet_pl.report.write import read_study, run_count, write_report

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
    print(f"{run_count(study)} runs of {configurations} configurations: {Path(output) / 'report.html'}")
