"""Describe where a run's numbers come from: the machine, the version of this package, and the data."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cifnet_pl.data.content_hashes import ContentHashes

SAMPLED = 256
"""Samples of each set whose contents are in its fingerprint."""


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine of a run.

    Args:
        device: of the run.

    Returns:
        One line for people, the processor, the GPU or None, the cores that this process may use, and torch's threads.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    name, count = processor(), cores()
    description = gpu or f"{name}, {count} core{'s' if count > 1 else ''}"
    return {"machine": description, "processor": name, "gpu": gpu, "cores": count, "threads": torch.get_num_threads()}


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor, as the system calls it.

    Args:
        info: Linux's description of the processors.
    """
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
    """Return the git commit of the package, with "+changes" if its files differ from it; None outside a repository.

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


def fingerprint(train: ContentHashes, test: ContentHashes, class_names: Sequence[str]) -> str:
    """Hash a data set as it is split.

    The hash covers the class, the name and, for files, the size of every sample, and the contents of 256 samples of
    each set, evenly spread: to read all would take as long as to learn them.

    Args:
        train, test: the two sets; contents whose hashes are known are not read again.
        class_names: name of each label.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for hashes in (train, test):
        digest.update(b"\0\0")
        count, names, labels = len(hashes.samples), hashes.samples.names, hashes.samples.labels
        for row, size in enumerate(hashes.sizes(np.arange(count)).tolist()):
            digest.update(f"{class_names[labels[row]]}\0{names[row]}\0{size}\0".encode("utf-8", "surrogateescape"))
        sampled = np.linspace(0, count - 1, min(count, SAMPLED)).round().astype(np.int64)
        digest.update(hashes.of(sampled).tobytes())
    return digest.hexdigest()[:16]
