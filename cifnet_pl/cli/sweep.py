"""``sweep``: run the points of sweep files one after another, each once; stopped sweeps can be continued.

As a program (``python -m cifnet_pl.cli.sweep FILE``) it is the process of one point.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from filelock import FileLock, Timeout

from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.sweep_plan import Point, choose, left_out_overrides, read_points
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.files import write_text
from cifnet_pl.utilities.run_folders import versions
from cifnet_pl.utilities.text import number_of, printable

LOG = "output.log"
"""What the processes of a point wrote, in its experiment's folder."""

POINT, FAILURE = "point.yaml", "failure.txt"
"""A point's configuration, and why it failed, likewise (:mod:`cifnet_pl.report.runs` reads them)."""

ERROR = re.compile(r"^(?:cifnet: error: (.*)|([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*))")
"""A sentence about an error of ours, or the last line of a traceback."""


class Job(NamedTuple):
    """A point and its experiment's folder."""

    point: Point
    folder: Path

    def run(self) -> Path | None:
        """Return the newest whole run of the experiment."""
        return complete_run(self.folder)

    def result(self) -> str:
        """Return the final accuracy of its whole run, in words."""
        from cifnet_pl.report.runs import read_run

        run = self.run()
        assert run is not None
        final = read_run(run).summary["A_K"]
        return "A_K not measured" if final is None else f"A_K {final:.1f} %"

    def write(self) -> None:
        """Write the configuration; a report names what is missing by it, whatever becomes of the sweep."""
        config = {**self.point.config, "experiment": self.folder.name, "logs": str(self.folder.parent)}
        write_text(self.folder / POINT, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


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
) -> None:
    """Run every point of sweep files that is not complete yet, each as a process of its own; report on all of them.

    Options with a dot in their name (--data.root DIR) hold for all points whose classes have them, but for the settings
    that the file keeps (``keep``): the trained methods of configs/paper keep their own networks. A point that was
    stopped goes on where it was; one that fails does not keep the others from running. Points that several files share
    are run once.

    Args:
        files: sweep files, see configs/paper.
        overrides: (name, value) of the options with a dot.
        logs: folder that holds all runs.
        output: folder for a report on the points of these files, or null for none.
        external: CSV file of methods run elsewhere, for the report.
        seeds: such as 1,2 in place of the files' own, or null.
        only: labels of the points to run, such as ridge s1; of each axis that is named, one of its labels.
        without: labels of points to leave out.
        dry_run: only list the points.

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, or a bad list of seeds.
        CifnetError: some points failed; the others are complete.
    """
    numbers = _seeds(seeds)
    every = [point for file in files for point in read_points(find_config(file), overrides, numbers)]
    points = {point.identity: point for point in choose(every, only or (), without or ())}
    if not points:
        raise UsageError("no point has these labels: leave out some of --only and --without, or use --dry_run")
    seeded = any("seed" in point.labels for point in points.values())
    kinds = "each seed sets both seed_everything and the class order" if seeded else "no seeds"
    print(f"{number_of(len(points), 'point')}; {kinds}")
    print("".join(f"{printable(line)}\n" for line in left_out_overrides(overrides, list(points.values()))), end="")
    jobs = [Job(point, _folder(Path(logs), point)) for point in points.values()]
    if dry_run:
        for job in jobs:
            print(f"{job.folder.name}: {'not run yet' if job.run() is None else f'complete already, {job.result()}'}")
        return
    from cifnet_pl.report.runs import read_run
    from cifnet_pl.report.settings import about_small_ridge

    failed = _run_all(jobs)
    complete_runs = [run for job in jobs if (run := job.run()) is not None]
    for note in about_small_ridge(map(read_run, complete_runs)):
        print(f"note: {note}")
    if output is not None and complete_runs:
        from cifnet_pl.report import report

        report([str(job.folder) for job in jobs if job.folder.is_dir()], output, external)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(jobs)} points failed, the first is {failed[0]} (see its {LOG}); "
            "run the same command again to try them once more"
        )


def _seeds(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UsageError(f"seeds is '{text}', expected integers and commas, such as 1,2,3") from None


def _folder(logs: Path, point: Point) -> Path:
    """Return the point's experiment: one that holds the same configuration under any name, or a new one."""
    present = sorted(logs.glob(f"*-{point.identity}")) if logs.is_dir() else []
    return present[0] if present else logs / point.name


def complete_run(folder: Path) -> Path | None:
    """Return the newest whole run of an experiment."""
    from cifnet_pl.report.runs import is_complete

    return next((path for path in reversed(versions(folder)) if is_complete(path)), None)


# ---------------------------------------------------------------------- running


def _run_all(jobs: Sequence[Job]) -> list[Path]:
    """Run all points that are not complete; return the folders of those that failed."""
    for job in jobs:
        if not (job.folder / POINT).is_file():
            job.write()
    failed = []
    with _stopped_by_sigterm():
        for number, job in enumerate(jobs, 1):
            said = complete(job) if job.run() is None else f"complete already, {job.result()}"
            if job.run() is None:
                failed.append(job.folder)
            print(f"[{number}/{len(jobs)}] {job.folder.name}: {said}", flush=True)
    return failed


def complete(job: Job) -> str:
    """Run a point, unless another process makes it complete first, and say what came of it.

    A file ``failure.txt`` in its folder says why it failed. A sweep that waits for another one, and a run that a killed
    sweep started, hold locks of that folder.
    """
    with waiting_lock(job.folder / ".lock"):
        with waiting_lock(job.folder / ".running"):
            pass
        if job.run() is not None:
            return f"complete already, {job.result()}"
        (job.folder / FAILURE).unlink(missing_ok=True)
        start, log = time.monotonic(), job.folder / LOG
        before = log.stat().st_size if log.is_file() else 0
        code = run_process(job)
        if job.run() is not None:
            return f"done in {timedelta(seconds=round(time.monotonic() - start))}, {job.result()}"
        why = reason(code, log.read_bytes()[before:].decode("utf-8", errors="replace"))
        write_text(job.folder / FAILURE, why + "\n")
        return f"failed ({why})"


def run_process(job: Job) -> int:
    """Run ``fit`` as a process, starting from the last checkpoint if there is one; return the exit code."""
    job.write()
    command = [sys.executable, "-m", "cifnet_pl.cli.sweep", str(job.folder / POINT)]
    with (job.folder / LOG).open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


def run_point(config: Path) -> int:
    """Learn from a configuration, starting from the last checkpoint if there is one; return the exit code.

    The lock of its folder is held meanwhile, even if the sweep is killed.
    """
    from cifnet_pl.__main__ import main

    # Lightning starts this module again for each further process of the run: they belong to the one with the lock.
    with nullcontext() if "LOCAL_RANK" in os.environ else waiting_lock(config.parent / ".running"):
        return main(["fit", "--config", str(config), "--ckpt_path", "last"])


def reason(code: int, log: str) -> str:
    """Return why a process ended, in a few words.

    Args:
        code: its exit code as :mod:`subprocess` gives it, negative for a signal.
        log: what it wrote to its streams.
    """
    number = -code if code < 0 else code - 128
    if code < 0 or number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        return f"killed by {signal.Signals(number).name}"
    sentences = [found[1] or found[2] for line in log.splitlines() if (found := ERROR.match(line.strip()))]
    return f"exit code {code}: {printable(sentences[-1])}" if sentences else f"exit code {code}, without saying why"


@contextmanager
def waiting_lock(file: Path) -> Iterator[None]:
    """Hold a lock in an experiment's folder; if another process holds it, say so and wait.

    Args:
        file: of the lock.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"waiting for {file.parent}, which another process is running", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Within the block, let SIGTERM stop the point that is running as well."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(run_point(Path(sys.argv[1])))
