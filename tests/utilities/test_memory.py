"""Freed memory goes back to the system."""

import sys
from pathlib import Path

import pytest

from cifnet_pl.utilities.memory import give_back_freed_memory


def resident() -> int:
    """KB that this process holds."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other allocators are left alone"
)
def test_many_small_blocks() -> None:
    kept = [bytearray(2000) for _ in range(50_000)]
    last = bytearray(2000)  # above them: the end of the heap is in use
    held = resident()
    del kept
    assert give_back_freed_memory()
    assert resident() < held - 50_000
    assert last is not None


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not give_back_freed_memory()
