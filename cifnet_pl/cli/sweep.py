"""``python -m cifnet_pl sweep FILES…``: run many configurations one after another; stopped sweeps can be continued."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cifnet_pl.cli.configs import find_config
from cifnet_pl.cli.sweep_plan import (
    LOG,
    Cost,
    Point,
    add_elapsed,
    choose,
    complete_run,
    cost_of,
    costs_of,
    duration,
    early_estimate,
    estimate,
    left_out_overrides,
    print_plan,
    read_points,
    result_of,
    running,
    total,
    waiting_lock,
)
from cifnet_pl.report import report
from cifnet_pl.report.runs import FAILURE, POINT
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.files import write_text
from cifnet_pl.utilities.text import is_or_are, number_of, printable

NO_MEMORY = re.compile(r"\bMemoryError\b|OutOfMemoryError|out of memory|not enough memory", re.IGNORECASE)
OWN_ERROR = re.compile(r"^cifnet: error: (.*)")
LAST_OF_TRACEBACK = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)")
COUNTERS = ("memory.events", "memory.oom_control", "memory/memory.oom_control")
"""Files of the processes' control group, below its root, that count what the system killed for memory."""


def reason(code: int, log: str, killed_for_memory: bool = False) -> str:
    """Return why a process ended, in a few words.

    Args:
        code: its exit code as :mod:`subprocess` gives it, negative for a signal.
        log: what it wrote to its streams.
        killed_for_memory: whether the system has killed a process for memory meanwhile.
    """
    number = -code if code < 0 else code - 128
    lines = [line.strip() for line in log.splitlines()]
    if code < 0 or (128 < code < 160 and number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)):
        name = signal.Signals(number).name if number in {int(s) for s in signal.Signals} else f"signal {number}"
        if number == signal.SIGKILL and killed_for_memory:
            return f"out of memory: the system killed it ({name})"
        return f"killed by {name}"
    sentences = [match[1] for line in lines if (match := OWN_ERROR.match(line) or LAST_OF_TRACEBACK.match(line))]
    sentence = sentences[-1] if sentences else None
    memory = next((line for line in reversed(lines) if NO_MEMORY.search(line)), None)
    if memory is not None:
        return f"out of memory (exit code {code}): {printable(sentence or memory)}"
    return f"exit code {code}: {printable(sentence)}" if sentence else f"exit code {code}, without saying why"


def memory_kills(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how often the system has killed a process of this control group for memory.

    Args:
        root: of the control groups' files.

    Returns:
        None if the system does not say.
    """
    for name in COUNTERS:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except OSError:
            continue
        match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        if match:
            return int(match[1])
    return None


def sweep(
    files: list[str],
    overrides: Sequence[tuple[str, str]] = (),
    logs: str = "lightning_logs",
    output: str | None = None,
    external: str | None = None,
    seeds: str | None = None,
    only: list[str] | None = None,
    without: list[str] | None = None,
    budget: float | None = None,
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
        budget: hours; a point whose other seeds took longer than what is left of them is not begun, and one that still
            runs when they are over is stopped, to go on another time. Null for no bound.
        dry_run: only list the points and the time that they are expected to take.

    Raises:
        UsageError: a file that is not a sweep, a label or an option that no point has, a bad list of seeds or budget.
        CifnetError: some points failed; the others are complete.
    """
    if budget is not None and not budget > 0:
        raise UsageError(f"budget is {budget:g}, expected a positive number of hours")
    every = [point for file in files for point in read_points(find_config(file), overrides, _seeds(seeds))]
    points = {point.identity: point for point in choose(every, only or (), without or ())}
    if not points:
        raise UsageError("no point has these labels: leave out some of --only and --without, or use --dry_run")
    console = Console(soft_wrap=True, highlight=False)
    kinds = "each seed sets both seed_everything and the class order" if _over_seeds(points.values()) else "no seeds"
    console.print(f"{len(points)} point{'s' if len(points) > 1 else ''}; {kinds}")
    for sentence in left_out_overrides(overrides, list(points.values())):
        console.print(sentence, markup=False)
    placed = [(point, _folder(Path(logs), point)) for point in points.values()]
    left = [pair for pair in placed if complete_run(pair[1]) is None]
    print_plan(console, placed, left, dry_run)
    if dry_run:
        return
    done, failed, skipped = _run_all(console, placed, left, budget)
    if output is not None and done:
        report([str(folder) for _, folder in placed if folder.is_dir()], output, external)
    if skipped:
        remaining = f"{skipped} of {number_of(len(points), 'point')} {is_or_are(skipped)}"
        console.print(f"the budget is spent: {remaining} left; the same command goes on")
    if failed:
        raise CifnetError(
            f"{len(failed)} of {len(points)} points failed, the first is {failed[0]} (see its output.log); "
            "run the same command again to try them once more"
        )


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UsageError(f"seeds is '{text}', expected integers and commas, such as 1,2,3") from None


def _over_seeds(points: Iterable[Point]) -> bool:
    return any("seed" in point.labels for point in points)


def _run_all(
    console: Console, placed: Sequence[tuple[Point, Path]], waiting: Sequence[tuple[Point, Path]], budget: float | None
) -> tuple[list[Path], list[Path], int]:
    """Run all points within the budget.

    Returns:
        Complete runs, folders of points that failed, and the number of points that were left out for lack of time.
    """
    done: list[Path] = []
    failed: list[Path] = []
    skipped, start, ran = 0, time.monotonic(), costs_of(placed)
    end = None if budget is None else start + 3600 * budget
    for point, folder in placed:
        if not (folder / POINT).is_file():
            _write_point(folder, point)  # a report names what is missing, whatever becomes of this sweep
    with _progress(console) as progress, _stopped_by_sigterm():
        bar = progress.add_task("points", total=len(placed))
        for number, (point, folder) in enumerate(placed, 1):
            progress.update(bar, description=folder.name)
            heading = f"[{number}/{len(placed)}] {folder.name}"
            left = [pair for pair in placed[number - 1 :] if pair in waiting]
            expected = estimate(point, folder, ran)
            ready = time.monotonic() + (expected.seconds if expected else 0.0)
            if end is not None and ready >= end and complete_run(folder) is None:
                skipped += 1
                why = f"expected to take {duration(expected.seconds)}, " if expected else ""
                console.print(f"{heading}: {why}more than is left of the budget", markup=False)
                continue
            try:
                said_early = nullcontext() if expected else _said_early(console, point, folder, left, ran)
                run, sentence = _ensure(folder, point, end, said_early)
                (done if run is not None else failed).append(run or folder)
                if run is not None and (point, folder) in waiting:
                    ran.append((point, cost_of(folder, run)))
                    sentence += _said_of_rest(left[1:], ran)
            except TimeoutError:
                skipped += 1
                sentence = "stopped, as the budget is over; it goes on the next time"
            console.print(f"{heading}: {sentence}", markup=False)
            progress.advance(bar)
    return done, failed, skipped


def _said_early(
    console: Console,
    point: Point,
    folder: Path,
    left: Sequence[tuple[Point, Path]],
    ran: Sequence[tuple[Point, Cost]],
) -> AbstractContextManager[None]:
    """Return the context that estimates a point, and with it all that are left, from its first task."""
    others = [pair for pair in left if pair[0].method != point.method]
    return early_estimate(console, folder, len(left) - len(others), [estimate(*pair, ran) for pair in others])


def _said_of_rest(left: Sequence[tuple[Point, Path]], ran: Sequence[tuple[Point, Cost]]) -> str:
    return f"; {len(left)} left: {total([estimate(*pair, ran) for pair in left])}" if left else ""


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _folder(logs: Path, point: Point) -> Path:
    """Return the point's experiment: one that holds the same configuration under any name, or a new one."""
    present = sorted(logs.glob(f"*-{point.identity}")) if logs.is_dir() else []
    return present[0] if present else logs / point.name


def _ensure(
    folder: Path, point: Point, end: float | None, meanwhile: AbstractContextManager[None]
) -> tuple[Path | None, str]:
    """Run the point unless it is complete: its run's folder, or None if it failed, and what to say of it.

    The context ``meanwhile`` is open while the point runs.

    Raises:
        TimeoutError: it still ran at ``end``.
    """
    with _alone(folder):
        run = complete_run(folder)
        if run is not None:
            return run, f"complete already, {result_of(run)}"
        (folder / FAILURE).unlink(missing_ok=True)
        start, kills, log = time.monotonic(), memory_kills(), folder / LOG
        before = log.stat().st_size if log.is_file() else 0
        try:
            with meanwhile:
                code = _run(folder, point, end)
        finally:
            seconds = time.monotonic() - start
            add_elapsed(folder, seconds)
        run = complete_run(folder)
        if run is None:
            log_text = log.read_bytes()[before:].decode("utf-8", errors="replace")
            why = reason(code, log_text, kills is not None and memory_kills() != kills)
            write_text(folder / FAILURE, why + "\n")
            return None, f"failed ({why})"
        return run, f"done in {duration(seconds)}, {result_of(run)}"


def _run(folder: Path, point: Point, end: float | None = None) -> int:
    """Run ``fit`` as a process, starting from the last checkpoint if there is one; return the exit code."""
    _write_point(folder, point)
    command = [sys.executable, "-m", "cifnet_pl.cli.sweep_point", str(folder / POINT)]
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait(None if end is None else max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            process.terminate()
            process.wait()


def _write_point(folder: Path, point: Point) -> None:
    config = {**point.config, "experiment": folder.name, "logs": str(folder.parent)}
    write_text(folder / POINT, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of an experiment's folder; wait for another sweep, and for a run that a killed sweep started."""
    with waiting_lock(folder, ".lock"):
        with running(folder):
            pass
        yield


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Within the block, let SIGTERM stop the point that is running as well."""

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
