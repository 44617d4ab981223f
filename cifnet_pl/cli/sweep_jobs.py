"""Run the points of a sweep as processes, each once; stopped ones are continued.

``python -m cifnet_pl.cli.sweep_jobs FILE`` is the process of one point.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from cifnet_pl.cli.sweep_points import Point
from cifnet_pl.utilities.files import dump_yaml, write_text
from cifnet_pl.utilities.run_folders import FAILURE, POINT, versions
from cifnet_pl.utilities.text import print_text, printable

OUTPUT_LOG = "output.log"
"""Output of the processes of a point, in its experiment's folder."""

ERROR_LINE = re.compile(
    r"^(?:cifnet: error: (.*)|([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*))"
)
"""A sentence about an error of this package, or the last line of a traceback."""


def experiment_of_point(logs: Path, point: Point) -> Path:
    """Return the folder of a point's experiment.

    Args:
        logs: folder that holds all runs.
        point: of a sweep.

    Returns:
        An experiment that holds the same configuration under any name, or the path of a new one,
        which is not made yet.
    """
    present = sorted(logs.glob(f"*-{point.identity}")) if logs.is_dir() else []
    if present:
        return present[0]
    return logs / point.name


def complete_run(folder: Path) -> Path | None:
    """Return the newest complete run of an experiment; None if there is none."""
    from cifnet_pl.report.runs import is_complete

    return next(
        (path for path in reversed(versions(folder)) if is_complete(path)), None
    )


class SweepJob(NamedTuple):
    """A point and its experiment's folder."""

    point: Point
    folder: Path

    def complete_run(self) -> Path | None:
        """Return the newest complete run of the experiment; None if there is none."""
        return complete_run(self.folder)

    def result(self) -> str:
        """Return the final accuracy of its complete run, for the screen."""
        from cifnet_pl.report.runs import read_run

        run = self.complete_run()
        assert run is not None
        final = read_run(run).summary["A_K"]
        if final is None:
            return "A_K not measured"
        return f"A_K {final:.1f} %"

    def state(self) -> str:
        """Return whether it is complete, for the screen."""
        if self.complete_run() is None:
            return "not run yet"
        return f"complete already, {self.result()}"

    def write(self) -> None:
        """Write the configuration; a report names missing points by it."""
        names = {"experiment": self.folder.name, "logs": str(self.folder.parent)}
        config = {**self.point.config, **names}
        write_text(self.folder / POINT, dump_yaml(config))


def run_all(jobs: Sequence[SweepJob], trust: bool = False) -> list[Path]:
    """Run all points that are not complete; return the folders of those that failed.

    Args:
        jobs: the points.
        trust: whether the custom code that they name may be imported.
    """
    for job in jobs:
        if job.complete_run() is None:
            job.write()
    # From here on SIGTERM is an exception, which also stops the point that is running.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    failed = []
    for number, job in enumerate(jobs, 1):
        message = job.state()
        if job.complete_run() is None:
            message = complete(job, trust)
        if job.complete_run() is None:
            failed.append(job.folder)
        print_text(f"[{number}/{len(jobs)}] {job.folder.name}: {message}")
    return failed


def complete(job: SweepJob, trust: bool) -> str:
    """Run a point, and return its result for the screen.

    Where it fails, ``failure.txt`` in its folder says why.
    """
    (job.folder / FAILURE).unlink(missing_ok=True)
    start = time.monotonic()
    log = job.folder / OUTPUT_LOG
    before = log.stat().st_size if log.is_file() else 0
    code = run_process(job, trust)
    if job.complete_run() is not None:
        duration = timedelta(seconds=round(time.monotonic() - start))
        return f"done in {duration}, {job.result()}"
    why = reason(code, log.read_bytes()[before:].decode("utf-8", errors="replace"))
    write_text(job.folder / FAILURE, why + "\n")
    return f"failed ({why})"


def run_process(job: SweepJob, trust: bool) -> int:
    """Run ``fit`` as a process, from the last checkpoint if there is one; return the exit code."""
    command = [
        sys.executable,
        "-m",
        "cifnet_pl.cli.sweep_jobs",
        str(job.folder / POINT),
    ]
    if trust:
        command.append("--trust")
    with (job.folder / OUTPUT_LOG).open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


def run_point(config: Path, trust: bool = False) -> int:
    """Run ``fit`` from the last checkpoint if there is one; return the exit code.

    The lock of the point's folder is held meanwhile, even if the sweep is killed. The process of
    another sweep, or of the same one after a restart, waits for it, and leaves a point alone that
    has become complete.

    Args:
        config: of the point.
        trust: whether the custom code that it names may be imported.
    """
    from cifnet_pl.__main__ import main

    # Lightning starts this module again for each further process of a run, which the lock of the
    # first process covers.
    started_by_lightning = "LOCAL_RANK" in os.environ
    lock: AbstractContextManager[object] = nullcontext()
    if not started_by_lightning:
        lock = FileLock(config.parent / ".running")
    with lock:
        if complete_run(config.parent) is not None:
            return 0
        options = ["--config", str(config), "--ckpt_path", "last"]
        if trust:
            options.append("--trust")
        return main(["fit", *options])


def reason(code: int, log: str) -> str:
    """Return why a process ended.

    Args:
        code: its exit code as :mod:`subprocess` gives it, negative for a signal.
        log: what it wrote to its streams.
    """
    number = -code if code < 0 else code - 128
    if code < 0 or number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        return f"killed by {signal.Signals(number).name}"
    sentences = []
    for line in log.splitlines():
        found = ERROR_LINE.match(line.strip())
        if found is not None:
            sentences.append(found[1] or found[2])
    if sentences:
        return f"exit code {code}: {printable(sentences[-1])}"
    return f"exit code {code}, without a reason"


if __name__ == "__main__":
    sys.exit(run_point(Path(sys.argv[1]), trust="--trust" in sys.argv))
