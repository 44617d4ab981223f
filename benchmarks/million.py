"""A million embeddings from disk through ``fit``: memory beyond the mapped file, and samples/s against products.

    python -m benchmarks.million --folder /tmp/million

makes files of 10⁴, 10⁵ and 10⁶ × 512 float32 embeddings in 1000 classes (2 GB; they are kept) and learns each with
``RidgeHead`` in one task, a process each. Memory is read from /proc, so that this runs on Linux only. Columns: the
largest memory of the process that belongs to no file (private); and the largest resident memory of all kinds without
the pages of the mapped file (beyond the file), libraries included. The first row is a process that only imports what
``fit`` imports.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

D, CLASSES, PIECE = 512, 1000, 50_000
SIZES = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Memory:
    """Memory of a process in MiB.

    Attributes:
        private: that belongs to no file.
        beyond: resident pages of all kinds, without those of the mapped file.
    """

    private: float = 0.0
    beyond: float = 0.0

    def __str__(self) -> str:
        return f"{self.private:,.0f} | {self.beyond:,.0f}"


@dataclass(frozen=True)
class Measured:
    """One run of ``fit``.

    Attributes:
        samples: training samples; another fifth is held back and scored.
        seconds: of the task: reading, sums, solve.
        solve: of these, the solve.
        memory: largest memory of the process.
        rate: operations/s of large float64 products in this process, before and after; the better one.
    """

    samples: int
    seconds: float
    solve: float
    memory: Memory
    rate: float

    @property
    def share(self) -> float:
        """Samples/s of reading and adding, as a share of what 2(d+1)² operations a sample take at the product rate."""
        return self.samples * 2 * (D + 1) ** 2 / (self.seconds - self.solve) / self.rate


def write_embeddings(path: Path, samples: int) -> None:
    """Write noise around 1000 centres as an .npz file, piece by piece."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(CLASSES, D)).astype(np.float32)
    labels = np.arange(samples) % CLASSES
    raw = path.with_suffix(".npy")
    z = np.lib.format.open_memmap(raw, "w+", np.float32, (samples, D))
    for start in range(0, samples, PIECE):
        part = labels[start : start + PIECE]
        z[start : start + PIECE] = centres[part] + 2 * draw.standard_normal((len(part), D), dtype=np.float32)
    z.flush()
    np.savez(path, embeddings=z, labels=labels)
    raw.unlink()


def product_rate(side: int = 1536) -> float:
    """Operations/s of float64 products of square matrices."""
    a, best = torch.randn(side, side, dtype=torch.float64), 0.0
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, a)
        best = max(best, 2 * side**3 / (time.perf_counter() - start))
    return best


def learn(path: Path, logs: Path) -> Measured:
    """Learn a file in a process of its own, and watch its memory."""
    options = ["--data.source", "embeddings", "--data.root", str(path), "--data.classes_per_task", str(CLASSES)]
    options += ["--model.head", "RidgeHead", "--model.hashes", "false", "--energy.enabled", "false"]
    command = [sys.executable, "-m", "cifnet_pl", "fit", *options, "--logs", str(logs), "--experiment", path.stem]
    rate = product_rate()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    memory = watch(process, path)
    if process.returncode:
        raise SystemExit(f"fit failed: {' '.join(command)}")
    run = max((logs / path.stem).glob("version_*"), key=lambda folder: folder.stat().st_mtime)
    with (run / "tasks.csv").open() as file:
        (row,) = csv.DictReader(file)
    samples = round(0.8 * int(path.stem))
    rate = max(rate, product_rate())
    return Measured(samples, float(row["train_seconds"]), float(row["solve_seconds"]), memory, rate)


def watch(process: subprocess.Popen[Any], path: Path) -> Memory:
    """Return the largest memory of a process until it ends; ``path`` is the file that it maps."""
    private = beyond = 0
    while process.poll() is None:
        for turn in range(25):
            private = max(private, _private_kib(process.pid))
            if turn == 0:  # this takes a while, in which the process waits
                beyond = max(beyond, _kib_without(process.pid, path))
            time.sleep(0.02)
    return Memory(private / 1024, beyond / 1024)


def _private_kib(process: int) -> int:
    """Return the memory of a process that belongs to no file."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", _read(f"/proc/{process}/status"), re.MULTILINE)
    return int(found[1]) if found else 0


def _kib_without(process: int, path: Path) -> int:
    """Return the resident memory of a process without the pages of ``path``."""
    resident, name = 0, ""
    for line in _read(f"/proc/{process}/smaps").splitlines():
        words = line.split(maxsplit=5)
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = words[5] if len(words) > 5 else ""
        elif words[0] == "Rss:" and name != str(path.resolve()):
            resident += int(words[1])
    return resident


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has ended
        return ""


def only_imports(path: Path) -> Memory:
    """Measure a process that imports the command line and does nothing."""
    command = [sys.executable, "-c", "import cifnet_pl.cli.lightning_cli, time; time.sleep(0.5)"]
    return watch(subprocess.Popen(command), path)


def main() -> None:
    """Print one line a size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where files and runs are")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(
        "samples learned | task s | of it solve s | samples/s | share of product rate | private MiB | beyond the file"
    )
    print(f"(imports only) | | | | | {only_imports(given.folder / 'none')}")
    for size in given.sizes:
        path = given.folder / f"{size}.npz"
        if not path.exists():
            write_embeddings(path, size)
        found = learn(path, given.folder / "logs")
        speed = found.samples / (found.seconds - found.solve)
        print(
            f"{found.samples:,} | {found.seconds:.1f} | {found.solve:.1f} | {speed:,.0f} | {found.share:.2f} | "
            f"{found.memory}",
            flush=True,
        )


if __name__ == "__main__":
    main()
