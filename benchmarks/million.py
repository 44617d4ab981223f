"""A million embeddings from disk through ``fit``: memory beyond the mapped file, and samples/s against products.

    python -m benchmarks.million --folder /tmp/million

makes files of 10⁴, 10⁵ and 10⁶ × 512 float32 embeddings in 1000 classes (2 GB; they are kept) and learns each with
``RidgeHead`` in one task, a process each.
"""

from __future__ import annotations

import argparse
import csv
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
class Measured:
    """One run of ``fit``.

    Attributes:
        samples: training samples; another fifth is held back and scored.
        seconds: of the task: reading, sums, solve.
        solve: of these, the solve.
        private: largest memory of the process in MiB that belongs to no file.
        rate: operations/s of large float64 products in this process, before and after; the better one.
    """

    samples: int
    seconds: float
    solve: float
    private: float
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
    largest = 0
    while process.poll() is None:
        largest = max(largest, _private_kib(process.pid))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"fit failed: {' '.join(command)}")
    run = max((logs / path.stem).glob("version_*"), key=lambda folder: folder.stat().st_mtime)
    with (run / "tasks.csv").open() as file:
        (row,) = csv.DictReader(file)
    samples = round(0.8 * int(path.stem))
    rate = max(rate, product_rate())
    return Measured(samples, float(row["train_seconds"]), float(row["solve_seconds"]), largest / 1024, rate)


def _private_kib(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def main() -> None:
    """Print one line a size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where files and runs are")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print("samples learned | task s | of it solve s | samples/s | share of product rate | private memory MiB")
    for size in given.sizes:
        path = given.folder / f"{size}.npz"
        if not path.exists():
            write_embeddings(path, size)
        found = learn(path, given.folder / "logs")
        speed = found.samples / (found.seconds - found.solve)
        print(
            f"{found.samples:,} | {found.seconds:.1f} | {found.solve:.1f} | {speed:,.0f} | {found.share:.2f} | "
            f"{found.private:,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
