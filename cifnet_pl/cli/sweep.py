"""``python -m cifnet_pl sweep FILES…``: many runs, one after another, that can be stopped and gone on with."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.grid import Point, read_points
from cifnet_pl.report import report
from cifnet_pl.report.runs import is_complete, read_run
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import write_text
from cifnet_pl.utilities.text import printable


def sweep(
    files: list[str],
    overrides: Sequence[tuple[str, str]] = (),
    logs: str = "lightning_logs",
    output: str | None = None,
    external: str | None = None,
) -> None:
    """Run every point of sweep files that is not complete yet, each as a process of its own; report on all of them.

    Options with a dot in their name (--data.root DIR) hold for all points. A point that was stopped goes on where it
    was; one that fails does not keep the others from running. Points that several files share are run once.

    Args:
        files: sweep files, see configs/paper.
        overrides: (name, value) of the options with a dot.
        logs: folder that holds all runs.
        output: folder for a report on the points of these files, or null for none.
        external: CSV file of methods run elsewhere, for the report.

    Raises:
        UsageError: a file that is not a sweep.
        CifnetError: some points failed; the others are complete.
    """
    points = {point.identity: point for file in files for point in read_points(find_config(file), overrides)}
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{len(points)} points; each seed sets both seed_everything and the class order")
    done: list[Path] = []
    failed: list[Path] = []
    with _progress(console) as progress, _stopped_by_sigterm():
        bar = progress.add_task("points", total=len(points))
        for number, point in enumerate(points.values(), 1):
            folder = _folder(Path(logs), point)
            progress.update(bar, description=folder.name)
            run, sentence = _ensure(folder, point)
            (done if run is not None else failed).append(run or folder)
            console.print(f"[{number}/{len(points)}] {folder.name}: {sentence}", markup=False)
            progress.advance(bar)
    if output is not None and done:
        report([str(run) for run in done], output, external)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(points)} points failed, the first is {failed[0]} (see its output.log); "
            "run the same command again to try them once more"
        )


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _folder(logs: Path, point: Point) -> Path:
    """The point's experiment: one that holds the same configuration under whatever name, or a new one."""
    present = sorted(logs.glob(f"*-{point.identity}")) if logs.is_dir() else []
    return present[0] if present else logs / point.name


def complete_run(folder: Path) -> Path | None:
    """The newest whole run of an experiment."""
    versions = [path for path in folder.glob("version_*") if path.name.removeprefix("version_").isdigit()]
    versions.sort(key=lambda path: int(path.name.removeprefix("version_")), reverse=True)
    return next((path for path in versions if is_complete(path)), None)


def _ensure(folder: Path, point: Point) -> tuple[Path | None, str]:
    """Run the point unless it is complete: its run's folder, or None if it failed, and what to say of it."""
    with _alone(folder) as lock:
        run = complete_run(folder)
        if run is not None:
            return run, f"complete already, {_result(run)}"
        start = time.perf_counter()
        code = _run(folder, point, lock)
        run = complete_run(folder)
        if run is None:
            return None, f"failed (exit code {code}): {_last_line(folder / 'output.log')}"
        return run, f"done in {time.perf_counter() - start:.0f} s, {_result(run)}"


def _run(folder: Path, point: Point, lock: int) -> int:
    """Run ``fit`` as a process; it goes on from the last checkpoint if there is one. Returns the exit code."""
    config = {**point.config, "experiment": folder.name, "logs": str(folder.parent)}
    write_text(folder / "point.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    command = [sys.executable, "-m", "cifnet_pl", "fit", "--config", str(folder / "point.yaml"), "--ckpt_path", "last"]
    with (folder / "output.log").open("ab") as log:
        # The process holds the lock too: if this one is killed, the next sweep waits until the run has ended.
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock])
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Hold the lock of an experiment's folder, once no other process runs it; yields the lock's descriptor."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for {folder}, which another process is running", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the point that is running as well, instead of leaving it behind."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _result(run: Path) -> str:
    final = read_run(run).summary["A_K"]
    return "A_K not measured" if final is None else f"A_K {final:.1f} %"


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return printable(next((line for line in reversed(lines) if line), "it said nothing"))
