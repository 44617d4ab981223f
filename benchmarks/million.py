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
        piece = labels[start : start + PIECE]
        z[start : start + PIECE] = centres[piece] + 2 * draw.standard_normal((len(piece), D), dtype=np.float32)
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


def watch(process: subprocess.Popen[bytes], path: Path) -> Memory:
    """Return the largest memory of a process until it ends; ``path`` is the file that it maps."""
    private = beyond = 0
    while process.poll() is None:
        kilobytes = _kib(process.pid, path)
        private, beyond = max(private, kilobytes[0]), max(beyond, kilobytes[1])
        time.sleep(0.02)
    return Memory(private / 1024, beyond / 1024)


def _kib(process: int, path: Path) -> tuple[int, int]:
    """Return the private memory of a process, and all of it without the pages of ``path``."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        maps = Path(f"/proc/{process}/smaps").read_text()
    except OSError:
        return 0, 0
    sizes = {word: int(size) for word, size in re.findall(r"^(Rss\w+):\s+(\d+) kB", status, re.MULTILINE)}
    mapped = sum(map(int, re.findall(rf" {re.escape(str(path.resolve()))}\n(?:.*\n){{2,4}}?Rss:\s+(\d+) kB", maps)))
    return sizes.get("RssAnon", 0), sum(sizes.values()) - mapped


def only_imports(path: Path) -> Memory:
    """Measure a process that imports the command line and does nothing."""
    command = [sys.executable, "-c", "import cifnet_pl.cli.lightning_cli, time; time.sleep(0.5)"]
    return watch(subprocess.Popen(command), path)


def main() -> None:
    """Print one line a size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where files and runs are")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(
        "samples learned | task s | of it solve s | samples/s | share of product rate | private MiB | beyond the file"
    )
    print(f"(imports only) | | | | | {only_imports(arguments.folder / 'none')}")
    for size in arguments.sizes:
        path = arguments.folder / f"{size}.npz"
        if not path.exists():
            write_embeddings(path, size)
        measured = learn(path, arguments.folder / "logs")
        speed = measured.samples / (measured.seconds - measured.solve)
        print(
            f"{measured.samples:,} | {measured.seconds:.1f} | {measured.solve:.1f} | {speed:,.0f} | "
            f"{measured.share:.2f} | {measured.memory}",
            flush=True,
        )


if __name__ == "__main__":
    main()
