"""``report``: make tables and figures of finished runs."""

from collections.abc import Sequence

from cifnet_pl.cli.outputs import writing
from cifnet_pl.report import report as report_runs


def report(
    runs: Sequence[str],
    output: str = "report",
    external: str | None = None,
    compare: Sequence[str] = [],
    overwrite: bool = False,
) -> None:
    """Make tables and figures of finished runs.

    Args:
        runs: run folders, or folders that hold them at any depth.
        output: folder for report.html, report.md, tables/ and figures/.
        external: CSV file of methods run elsewhere (method, seed, task, A_k, seconds, kWh; cells
            may be empty); where one fits several settings, the columns dataset, classes_per_task
            and backbone say which.
        compare: two methods, named as in the tables, such as CIFNet "Exact ridge": their
            differences over the same seeds and test images, with 95 % intervals.
        overwrite: whether files in output may be replaced.

    Raises:
        UsageError: output holds files already, a path does not exist, or external results belong to
            no setting.
        DataError: there is no complete run.
    """
    with writing(output, overwrite, "folder"):
        report_runs(runs, output, external, compare)
