"""Freed memory is used again; threads do not wait for long."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cifnet_pl.cli.terminal import SPINS, keep_freed_memory
from tests.killing import in_a_process

SIZE = 2**26


def comes_back() -> bool:
    """Whether a large block that was freed is handed out again as it was; the system would have cleared it."""
    used_before = False
    for _ in range(8):  # the first few may lie side by side
        block = torch.empty(SIZE, dtype=torch.uint8)
        used_before |= bool((block[SIZE // 4 : -SIZE // 4 : 4096] == 7).all())
        block.fill_(7)
        del block
    return used_before


def without() -> int:
    return int(comes_back())


def with_it() -> int:
    assert keep_freed_memory()
    return int(comes_back())


@pytest.mark.system
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an allocator of Linux")
def test_large_blocks_stay_with_the_process(tmp_path: Path):
    assert in_a_process(without, tmp_path / "output") == 0
    assert in_a_process(with_it, tmp_path / "output") == 1, (tmp_path / "output").read_text()


def spins(**more: str) -> str | None:
    """How many turns OpenMP says that a thread waits for, in a process that imports torch as the command line does."""
    code = "from cifnet_pl.__main__ import main; main(['info']); import torch"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
    environment = {**kept, "OMP_DISPLAY_ENV": "verbose", **more}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    result = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    return result[1] if result else None


@pytest.mark.system
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's OpenMP is Linux's")
def test_threads_wait_briefly_unless_told_otherwise():
    if "libgomp" not in Path("/proc/self/maps").read_text():
        pytest.skip("torch's threads are not GNU OpenMP's here")
    assert spins() == str(SPINS)
    assert spins(GOMP_SPINCOUNT="70000") == "70000"
    assert spins(OMP_WAIT_POLICY="passive") == "0"
