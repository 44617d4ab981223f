"""``sweep``: run the points of sweep files one after another, and report on them.

The points are read by :mod:`cifnet_pl.cli.sweep_points` and run by :mod:`cifnet_pl.cli.sweep_jobs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cifnet_pl.cli.commands import require_kind
from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.custom_code import names_in, names_on_command_line, refuse
from cifnet_pl.cli.sweep_jobs import OUTPUT_LOG, SweepJob, experiment_of_point, run_all
from cifnet_pl.cli.sweep_points import Point, choose, ignored_overrides, read_points
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import number_of, print_text, printable


def sweep(
    files: list[str],
    overrides: Sequence[tuple[str, str]] = (),
    logs: str = "lightning_logs",
    output: str | None = None,
    external: str | None = None,
    seeds: str | None = None,
    only: list[str] | None = None,
    without: list[str] | None = None,
    dry_run: bool = False,
    trust: bool = False,
) -> None:
    """Run every point of sweep files that is not complete yet, each as a process of its own.

    Options with a dot in their name (--data.root DIR) hold for all points whose classes have them.
    The trained methods of configs/paper keep their own backbones. A point that was stopped goes on
    where it was. A point that fails does not stop the others. Points that several files share are
    run once.

    Args:
        files: sweep files, see configs/paper.
        overrides: (name, value) of the options with a dot.
        logs: folder that holds all runs.
        output: folder for a report on the points of these files, or null for none.
        external: CSV file of methods run elsewhere, for the report.
        seeds: such as 1,2 in place of the files' own, or null.
        only: labels of the points to run, such as ridge s1; of each axis that is named, one of its
            labels.
        without: labels of points to leave out.
        dry_run: only list the points.
        trust: whether custom code that the files name may be imported, which runs it.

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, a bad list
            of seeds, a file at ``output``, or none at ``external``.
        DataError: ``external`` is not as it should be.
        CifnetError: some points failed; the others are complete.
    """
    points = _read_all(files, overrides, _parse_seeds(seeds), only or (), without or ())
    seeded = any("seed" in point.labels for point in points)
    kinds = (
        "each seed sets both seed_everything and the class order"
        if seeded
        else "no seeds"
    )
    print_text(f"{number_of(len(points), 'point')}; {kinds}")
    for sentence in ignored_overrides(overrides, points):
        print_text(printable(sentence))
    trusted = _custom_code(points, overrides, trust)
    place = expanded(logs)
    _check_report(output, external)
    jobs = [SweepJob(point, experiment_of_point(place, point)) for point in points]
    if dry_run:
        for job in jobs:
            print_text(f"{job.folder.name}: {job.state()}")
        return
    failed = run_all(jobs, trusted)
    _report(jobs, output, external)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(jobs)} points failed, the first is {failed[0]} (see its"
            f" {OUTPUT_LOG}); run the same command again to retry them"
        )


def _read_all(
    files: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    seeds: Sequence[int] | None,
    only: Sequence[str],
    without: Sequence[str],
) -> list[Point]:
    every: list[Point] = []
    for file in files:
        every += read_points(find_config(file), overrides, seeds)
    points = {point.identity: point for point in choose(every, only, without)}
    if not points:
        raise UsageError(
            "no point has these labels: leave out some of --only and --without, or use --dry_run"
        )
    return list(points.values())


def _custom_code(
    points: Sequence[Point], overrides: Sequence[tuple[str, str]], trust: bool
) -> bool:
    """Return whether points need custom code; UsageError if it is neither named nor trusted."""
    named: set[str] = set()
    for name, value in overrides:
        named |= names_on_command_line([f"--{name}={value}"])
    needed: set[str] = set()
    for point in points:
        needed |= names_in(point.config)
    if not trust:
        refuse("the sweep", needed - named)
    return bool(needed)


def _parse_seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UsageError(
            f"seeds is '{text}', expected integers and commas, such as 1,2,3"
        ) from None


def _check_report(output: str | None, external: str | None) -> None:
    """Refuse before hours of work what the report would refuse after them."""
    if output is not None:
        require_kind(expanded(output), "folder")
    if external is not None:
        from cifnet_pl.report.external_results import read_rows

        read_rows(expanded(external))


def _report(jobs: Sequence[SweepJob], output: str | None, external: str | None) -> None:
    """Print notes about the complete runs, and write the report that is asked for."""
    from cifnet_pl.report import report
    from cifnet_pl.report.runs import read_run
    from cifnet_pl.report.results import small_ridge_messages, table_of_runs

    runs = [run for run in map(SweepJob.complete_run, jobs) if run is not None]
    for message in small_ridge_messages(table_of_runs(map(read_run, runs))):
        print_text(f"note: {message}")
    if output is not None and runs:
        folders = [str(job.folder) for job in jobs if job.folder.is_dir()]
        report(folders, output, external)
