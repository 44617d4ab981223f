"""Describe where a run's numbers come from: the machine, the version of this package, and the data."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cifnet_pl.data.image_sets import SampleSet, Source

SAMPLED = 256
"""Samples of each set whose contents are in its fingerprint."""


def machine(device: torch.device) -> dict[str, Any]:
    """Return the machine in words, its processor, how many of its cores this process may use, and its GPU.

    Args:
        device: of the run.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    name, count = processor(), cores()
    description = gpu or f"{name}, {count} core{'s' if count > 1 else ''}"
    return {"machine": description, "processor": name, "gpu": gpu, "cores": count, "threads": torch.get_num_threads()}


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor, as the system calls it."""
    try:
        match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return " ".join(match[1].split()) if match else platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def package_commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """Return the git commit that the package is of, with "+changes" if its files differ from it.

    The result is None outside a repository.

    Args:
        folder: of the package.
    """
    # A package that is installed below someone's repository does not belong to it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit}+changes" if commit and changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def fingerprint(source: Source) -> str:
    """Return a hash of a data set as it is split: 16 hexadecimal digits.

    It covers the class, the name and, for files, the size of every training and test sample, and the contents of 256 of
    each set, evenly spread: to read all would take as long as to learn them.

    Args:
        source: the two sets.
    """
    digest = hashlib.sha256()
    for images in (source.train, source.val):
        digest.update(b"\0\0")
        for row in range(len(images)):
            line = f"{source.class_names[images.labels[row]]}\0{images.names[row]}\0{_size(images, row)}\0"
            digest.update(line.encode("utf-8", "surrogateescape"))
        for row in sorted(
            {round(i * (len(images) - 1) / (SAMPLED - 1)) for i in range(SAMPLED)} if len(images) else ()
        ):
            digest.update(hashlib.sha256(_content(images, row)).digest())
    return digest.hexdigest()[:16]


def _size(images: SampleSet, row: int) -> int:
    try:
        return images.size(row)
    except OSError:
        return -1


def _content(images: SampleSet, row: int) -> bytes:
    try:
        return images.content(row)
    except Exception:  # an unreadable image: the run says what is wrong with it
        return b""
