"""Freed memory is used again."""

import sys
from pathlib import Path

import pytest
import torch

from cifnet_pl.allocator import keep_freed_memory
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an allocator of Linux")
def test_large_blocks_stay_with_the_process(tmp_path: Path):
    assert in_a_process(without, tmp_path / "output") == 0
    assert in_a_process(with_it, tmp_path / "output") == 1, (tmp_path / "output").read_text()
