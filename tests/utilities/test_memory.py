"""Freed memory goes back to the system, and one limit of BLAS's threads holds for all threads of
Python.
"""

import sys
import threading
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from cifnet_pl.buffer import select_kmeans
from cifnet_pl.utilities.memory import give_back_freed_memory, one_thread


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


def blas_threads() -> set[int]:
    return {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }


def test_the_limit_holds_until_the_last_one_has_left() -> None:
    with threadpool_limits(2, "blas"):
        with one_thread:
            with one_thread:
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        with pytest.raises(ZeroDivisionError), one_thread:
            raise ZeroDivisionError
        assert blas_threads() == {2}


def test_k_means_in_several_threads_leaves_the_limit_as_it_was() -> None:
    """scikit-learn sets a limit of its own and puts back the one that it found."""
    z = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))

    def select() -> None:
        for seed in range(20):
            select_kmeans(z, torch.arange(300), seed, 7)

    with threadpool_limits(2, "blas"):
        threads = [threading.Thread(target=select) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert blas_threads() == {2}
