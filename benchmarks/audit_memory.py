"""Memory of an audit of many photos: ``python -m benchmarks.audit_memory --folder /tmp/audit --photos 10000 100000``.

Makes files of float32 embeddings, 1280 numbers each, of 100 classes (they are kept), and judges each in a process of
its own: leave-one-out answers, distances, near-copies and the learning curve. Memory is read from /proc, so that this
runs on Linux only: what belongs to no file, after everything was imported and at most.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.million import watch

D, CLASSES, PIECE = 1280, 100, 5000


def write_embeddings(path: Path, photos: int) -> None:
    """Write noise around 100 centres, piece by piece."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(CLASSES, D)).astype(np.float32)
    labels = np.arange(photos) % CLASSES
    z = np.lib.format.open_memmap(path, "w+", np.float32, (photos, D))
    for start in range(0, photos, PIECE):
        part = labels[start : start + PIECE]
        z[start : start + PIECE] = centres[part] + 6 * draw.standard_normal((len(part), D), dtype=np.float32)
    z.flush()


def judge(path: Path) -> None:
    """Audit a file of embeddings, and say how much memory there was before."""
    from cifnet_pl.model.audit import audit, learning_curve
    from cifnet_pl.utilities.memory import keep_freed_memory

    keep_freed_memory()  # as the command line does
    status = Path("/proc/self/status").read_text()
    print(int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) // 1024, flush=True)
    z = np.load(path, mmap_mode="r")
    labels = np.arange(len(z)) % CLASSES
    audit(z, labels, [str(label) for label in range(CLASSES)])
    learning_curve(z, labels, CLASSES)


def main() -> None:
    """Print one line a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where files are")
    parser.add_argument("--photos", type=int, nargs="+", default=(10_000, 100_000))
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.judge is not None:
        judge(given.judge)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    print("photos | embeddings MiB | private MiB before | at most")
    for photos in given.photos:
        path = given.folder / f"{photos}.npy"
        if not path.exists():
            write_embeddings(path, photos)
        command = [sys.executable, "-m", "benchmarks.audit_memory", "--folder", str(given.folder), "--judge", str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        memory = watch(process, path)
        before = process.communicate()[0].strip()
        print(f"{photos:,} | {path.stat().st_size / 2**20:,.0f} | {before} | {memory.private:,.0f}", flush=True)


if __name__ == "__main__":
    main()
