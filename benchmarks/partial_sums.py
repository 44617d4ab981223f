"""Measure partial sums: parts of a million embeddings, and the merge of many parts.

    python -m benchmarks.partial_sums parts FOLDER          CPU time and memory of parts
    python -m benchmarks.partial_sums merge FOLDER 1000     merge so many parts of 100,000 samples
    python -m benchmarks.partial_sums tree FOLDER 2         merge the same by two workers of Ray
    python -m benchmarks.partial_sums images FOLDER         100,000 JPEGs in 8 parts and by one fit

Memory is the resident set of a process; a mapped file counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from cifnet_pl.cli.sums import file_of, make
from cifnet_pl.model.partial_sums import add_up, content_of, read_sums
from cifnet_pl.model.partition import Shard, ShardRecord

WIDTH = 512
CLASSES = 1000
PART = 100_000
GROUP = 32
"""Parts that one of Ray's tasks adds up."""


def embeddings(path: Path, rows: int, width: int, classes: int) -> list[str]:
    """Write random embeddings, and return the options that name them."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, rows)
    z = draw.standard_normal((rows, width), dtype=np.float32)
    np.savez(path, embeddings=z, labels=labels)
    return ["--data.source=embeddings", f"--data.root={path}"]


def cost(words: Sequence[str]) -> tuple[float, float, float]:
    """Run a command; return wall-clock and CPU seconds, and the peak of its memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "cifnet_pl", *words], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"exit status {status}: {' '.join(words)}")
    seconds = time.perf_counter() - start
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def parts(folder: Path) -> None:
    """Measure one part that is everything, and a 64th of it, against 10,000 samples."""
    print("samples   part   CPU s   peak MiB")
    for rows, of in ((10_000, 1), (1_000_000, 1), (1_000_000, 64), (1_000_000, 64)):
        path = folder / f"{rows}.npz"
        if not path.is_file():
            # In a process of its own: the peak of this one would count for its children.
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(embeddings, path, rows, WIDTH, CLASSES).result()
        output = folder / f"sums-{rows}-{of}"
        number = 1 + len(list(output.glob("*.sums")))
        data = f"--config heads/ridge --data.source embeddings --data.root {path}"
        words = f"sums --shard {number}/{of} --output {output} {data}"
        _, seconds, peak = cost(words.split())
        print(f"{rows:>9,} {number:>3}/{of:<3} {seconds:6.1f} {peak:9.0f}")


def merge(folder: Path, count: int) -> None:
    """Merge parts that differ from one real part in their hashes alone."""
    data = embeddings(folder / "part.npz", PART, 64, 100)
    make(folder / "one", (*data, "--model.head=RidgeHead"), 1, Shard(1, 1))
    sums = folder / "sums"
    sums.mkdir()
    draw = np.random.default_rng(1)
    template = read_sums(file_of(folder / "one", Shard(1, 1)))
    of_class = template.model.images.counts
    for number in range(count):
        hashes = draw.integers(0, 2**63 - 1, PART)
        by_class = [np.sort(part) for part in np.split(hashes, of_class.cumsum(0)[:-1])]
        template.model.images.content = torch.from_numpy(np.concatenate(by_class))
        first = number * PART
        template.shards = [
            ShardRecord(
                set_hash="synthetic",
                start=first,
                stop=first + PART,
                total=count * PART,
                learned=PART,
            )
        ]
        path = file_of(sums, Shard(number + 1, count))
        path.write_bytes(content_of(template))
    start = time.perf_counter()
    model = add_up(sorted(sums.glob("*.sums"))).solved()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    samples = sum(model.counts.values())
    print(f"{count} parts, {samples:,} samples: {seconds:.0f} s, peak {peak:.0f} MiB")


def add_group(files: Sequence[Path], output: Path) -> Path:
    """Add up a group of parts, and write its sums."""
    torch.set_num_threads(1)
    output.write_bytes(content_of(add_up(files).end()))
    return output


def tree(folder: Path, workers: int) -> None:
    """Merge what ``merge`` left in the folder, in groups by Ray, and then the groups."""
    import ray

    files = sorted((folder / "sums").glob("*.sums"))
    groups = folder / "groups"
    groups.mkdir(exist_ok=True)
    start = time.perf_counter()
    with ray.init(address="local", num_cpus=workers, include_dashboard=False):
        joined = time.perf_counter()
        task = ray.remote(add_group)
        added = []
        for first in range(0, len(files), GROUP):
            group = files[first : first + GROUP]
            added.append(task.remote(group, groups / f"{first:05}.sums"))
        outputs = ray.get(added)
        done = time.perf_counter()
    add_up(outputs).solved()
    seconds = time.perf_counter() - start
    print(
        f"{len(files)} parts by {workers} workers: {seconds:.0f} s, of which Ray's start"
    )
    print(f"{joined - start:.0f} s, and {len(outputs)} groups {done - joined:.0f} s")


def images(folder: Path, count: int = 100_000) -> None:
    """Compare the CPU time of 8 parts of links to few JPEGs with one fit."""
    from PIL import Image

    draw = np.random.default_rng(0)
    first = folder / "files"
    first.mkdir()
    for number in range(200):
        pixels = draw.integers(0, 255, (96, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(first / f"{number}.jpg")
    for number in range(count):
        home = folder / "images" / f"{number % 10}"
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{number}.jpg").hardlink_to(first / f"{number % 200}.jpg")
    test = folder / "test.csv"
    rows = [f"images/{n % 10}/{n}.jpg,{n % 10},train" for n in range(count)]
    rows += [f"files/{n}.jpg,{n},test" for n in range(10)]
    test.write_text("\n".join(["path,label,split", *rows]) + "\n")
    data = f"--data.source manifest --data.root {test} --data.duplicates keep"
    model = "--model.backbone pixels:16 --model.head RidgeHead --data.num_workers 0"
    shards = " ".join(f"{number}/8" for number in range(1, 9))
    words = f"sums --shard {shards} --output {folder / 'sums'} {data} {model}"
    by_parts = cost(words.split())
    fit = f"fit --logs {folder / 'logs'} --energy.enabled false {data} {model}"
    by_fit = cost(fit.split())
    print(f"CPU seconds: 8 parts {by_parts[1]:.1f}, one fit {by_fit[1]:.1f}")


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    home = Path(place)
    home.mkdir(parents=True, exist_ok=True)
    if what == "parts":
        parts(home)
    elif what == "merge":
        merge(home, int(rest[0]))
    elif what == "tree":
        tree(home, int(rest[0]))
    else:
        images(home, *map(int, rest))
