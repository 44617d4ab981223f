"""64 shards by each driver on this machine: overhead of Ray against plain processes, also with a worker that is killed.

    python -m benchmarks.studies.sums --folder FOLDER [--rounds 3]

learns 64,000 embeddings of 256 numbers in 50 classes, which takes next to no time, so that nearly all that is measured
is what the drivers cost. The commands take turns. Every file of sums must have the same bits as that of one process
that makes all shards one after the other. Needs the extra `ray`; processes are found in /proc, so on Linux only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.measure import ratio, spread

SHARDS, WORKERS = 64, 2


def write_vectors(path: Path, samples: int = 64_000, d: int = 256, classes: int = 50) -> list[str]:
    """Write noise around centres as embeddings; returns the options of ``fit`` that read them."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, samples)
    z = (draw.normal(size=(classes, d))[labels] + draw.normal(size=(samples, d))).astype(np.float32)
    np.savez(path, embeddings=z, labels=labels)
    return ["--data.source", "embeddings", "--data.root", str(path)]


def with_ray(folder: Path, given: list[str]) -> list[str]:
    """Arguments of the command that makes all shards with Ray."""
    return ["sums", "--output", str(folder), "--shards", str(SHARDS), "--workers", str(WORKERS), *given]


def one_by_one(folder: Path, given: list[str], numbers: Iterable[int]) -> list[str]:
    """Arguments of the command that makes some shards in one process."""
    return ["sums", "--output", str(folder), "--shard", *(f"{i}/{SHARDS}" for i in numbers), *given]


def kill_a_worker(folder: Path, killed: list[int], finished: int = 10) -> None:
    """Kill the first of Ray's workers that makes a shard, once some are finished.

    Args:
        folder: of the sums.
        killed: gets the worker's number.
        finished: number of shards to wait for.
    """
    while len(list(folder.glob("*.sums"))) < finished:
        time.sleep(0.05)
    while not killed:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and b"ray::_make" in _title(entry) and _descends(int(entry.name), os.getpid()):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
                return
        time.sleep(0.01)


def _title(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def _descends(process: int, ancestor: int) -> bool:
    """Whether a process was started by ours, so that no other's is killed."""
    while process > 1:
        if process == ancestor:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def timed(*commands: list[str]) -> float:
    """Seconds of commands that run side by side."""
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [[sys.executable, "-m", "cifnet_pl", *command] for command in commands]
    running = [subprocess.Popen(each, stdout=subprocess.DEVNULL, env=environment) for each in words]
    assert {process.wait() for process in running} == {0}
    return time.perf_counter() - start


def check_equal(folder: Path, expected: Path) -> None:
    """Compare the bytes of all files of sums."""
    names = [sorted(path.name for path in each.glob("*.sums")) for each in (folder, expected)]
    assert names[0] == names[1]
    assert len(names[0]) == SHARDS
    for name in names[0]:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


def main() -> None:
    """Print one line a driver."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where embeddings and sums are written")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    given, expected = write_vectors(options.folder / "vectors.npz"), options.folder / "alone"
    shutil.rmtree(expected, ignore_errors=True)
    print(f"one process: {timed(one_by_one(expected, given, range(1, SHARDS + 1))):.1f} s", flush=True)
    times: dict[str, list[float]] = {"processes": [], "ray": [], "ray, a worker killed": []}
    for _ in range(options.rounds):
        for name, found in times.items():
            folder, killed = options.folder / name.split(",")[0], list[int]()
            shutil.rmtree(folder, ignore_errors=True)
            if "killed" in name:
                threading.Thread(target=kill_a_worker, args=(folder, killed), daemon=True).start()
            if name == "processes":
                shares = [range(1 + i, SHARDS + 1, WORKERS) for i in range(WORKERS)]
                found.append(timed(*(one_by_one(folder, given, share) for share in shares)))
            else:
                found.append(timed(with_ray(folder, given)))
            assert bool(killed) == ("killed" in name)
            check_equal(folder, expected)
    for name, found in times.items():
        print(f"{name}: {spread(found)}; / processes: {ratio(found, times['processes'])}")
    extra = statistics.median(times["ray"]) - statistics.median(times["processes"])
    print(f"Ray took {extra:+.1f} s more; {SHARDS} files of the same bits in every run")


if __name__ == "__main__":
    main()
