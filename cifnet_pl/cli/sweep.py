"""``sweep``: run the points of sweep files one after another, and report on them.

Each point (:mod:`cifnet_pl.cli.sweep_points`) is a configuration on disk, which ``fit`` runs as a
process of its own. A point is complete once a run of it has a summary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from signal import Signals

from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.outputs import writing
from cifnet_pl.cli.sweep_points import Point, choose, ignored_overrides, read_points
from cifnet_pl.utilities.errors import CifnetError, UsageError, explained
from cifnet_pl.utilities.files import dump_yaml, exclusive, expanded, write_text
from cifnet_pl.utilities.run_folders import FAILURE, POINT, versions
from cifnet_pl.utilities.text import number, number_of, print_text, printable

OUTPUT_LOG = "output.log"
"""Output of the processes of a point, in its experiment's folder."""


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
    overwrite: bool = False,
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
        overwrite: whether files in output may be replaced.

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, a bad list
            of seeds, something at ``output``, or no file at ``external``.
        DataError: ``external`` is not as it should be.
        CifnetError: some points failed; the others are complete.
    """
    points = _read_all(files, overrides, seeds, only or (), without or ())
    jobs = {folder_of(expanded(logs), point): point for point in points}
    kinds = "no seeds"
    if any("seed" in point.labels for point in points):
        kinds = "each seed sets both seed_everything and the class order"
    print_text(f"{number_of(len(jobs), 'point')}; {kinds}")
    for sentence in ignored_overrides(overrides, points):
        print_text(printable(sentence))
    if dry_run:
        for folder in jobs:
            print_text(f"{folder.name}: {state(folder) or 'not run yet'}")
        return
    if external is not None:
        from cifnet_pl.report.external_results import read_rows

        read_rows(expanded(external))  # refused before hours of work
    again = "again"
    target = None
    if output is not None:
        again = "with --overwrite true again"
        target = expanded(output)
    with writing(target, overwrite, "folder"):
        failed = run_all(jobs)
        if target is not None and len(failed) < len(jobs):
            from cifnet_pl.report import report

            report([str(folder) for folder in jobs], str(target), external)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(jobs)} points failed, the first is {failed[0]} (see its"
            f" {OUTPUT_LOG}); run the same command {again} to retry them"
        )


def _read_all(
    files: Sequence[str],
    overrides: Sequence[tuple[str, str]],
    seeds: str | None,
    only: Sequence[str],
    without: Sequence[str],
) -> list[Point]:
    with explained(
        UsageError, f"seeds is '{seeds}', expected such as 1,2,3", ValueError
    ):
        own_seeds = [int(seed) for seed in (seeds or "").split(",") if seed]
    points: dict[str, Point] = {}
    for file in files:
        for point in read_points(find_config(file), overrides, own_seeds):
            points[point.identity] = point
    chosen = choose([*points.values()], only, without)
    if not chosen:
        raise UsageError("no point has these labels: see --dry_run without them")
    return chosen


def folder_of(logs: Path, point: Point) -> Path:
    """Return the folder of a point's experiment, which may have another name in an earlier sweep.

    Args:
        logs: folder that holds all runs.
        point: of a sweep.
    """
    present = sorted(logs.glob(f"*-{point.identity}"))
    return next(iter(present), logs / point.name)


def state(folder: Path) -> str:
    """Return the final accuracy of the newest run of a point that has a summary; "" for none."""
    for run in reversed(versions(folder)):
        summary = run / "summary.json"
        if summary.is_file():
            return f"A_K {number(json.loads(summary.read_text())['A_K'], unit=' %')}"
    return ""


def run_all(jobs: Mapping[Path, Point]) -> list[Path]:
    """Run all points that are not complete; return the folders of those that failed.

    Args:
        jobs: folder of each point's experiment → the point.
    """
    left = [folder for folder in jobs if not state(folder)]
    for folder in left:
        names = {"experiment": folder.name, "logs": str(folder.parent)}
        write_text(folder / POINT, dump_yaml({**jobs[folder].config, **names}))
    failed = []
    for count, folder in enumerate(jobs, 1):
        how = "complete already"
        if folder in left:
            how = run_point(folder)
        message = f"{how}, {state(folder)}"
        if not state(folder):
            message = f"failed ({how})"
            write_text(folder / FAILURE, f"{how}\n")
            failed.append(folder)
        print_text(f"[{count}/{len(jobs)}] {folder.name}: {message}")
    return failed


def run_point(folder: Path) -> str:
    """Run ``fit`` as a process, from the last checkpoint if there is one; return how it ended.

    Args:
        folder: of the point.
    """
    words = ("fit", "--config", str(folder / POINT), "--ckpt_path", "last")
    start = time.monotonic()
    try:
        with (
            exclusive(folder / POINT),
            (folder / OUTPUT_LOG).open("a+b") as log,
        ):
            before = log.seek(0, os.SEEK_END)
            command = [sys.executable, "-m", "cifnet_pl", *words]
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
            log.seek(before)
            said = log.read().decode("utf-8", errors="replace").strip()
    except UsageError as error:  # another sweep runs this point
        return str(error)
    if done.returncode == 0:
        (folder / FAILURE).unlink(missing_ok=True)
        return f"done in {timedelta(seconds=round(time.monotonic() - start))}"
    if done.returncode < 0:
        return f"killed by {Signals(-done.returncode).name}"
    last_line = said.rpartition("\n")[2].removeprefix("cifnet: error: ")
    return f"exit code {done.returncode}: {printable(last_line) or 'no message'}"
