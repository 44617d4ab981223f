"""Batches through memory that worker processes share: nothing is written over before it is taken."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from cifnet_pl.data.loading import AHEAD, Decoded, WorkerPool
from cifnet_pl.photos.reading import cores
from cifnet_pl.utilities.errors import CifnetError


def show_row(rows: Sequence[int], squares: np.ndarray) -> Decoded:
    """Every byte of an image is its row; odd hundreds take a while."""
    for place, row in enumerate(rows):
        squares[place] = row % 251
    time.sleep(0.02 * (rows[0] // 100 % 2) if rows else 0)
    return Decoded(np.array([(0, 0, row) for row in rows], dtype=np.int64).reshape(-1, 3), ())


@pytest.fixture(params=[(1, False), (3, False), (1, True), (3, True)], ids=str)
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    workers, alternate = request.param
    pool = WorkerPool(show_row, workers, (7, 2, 2, 3), alternate)
    yield pool
    pool.close()


def check(pool: WorkerPool, batches: list[list[int]], pause: float = 0.0) -> None:
    taken = pool.decode(batches)
    for rows in batches:
        squares, decoded = next(taken)
        time.sleep(pause)  # the workers are as far ahead as they may be
        assert decoded.numbers[:, 2].tolist() == rows
        assert (squares[: len(rows)].flatten(1) == torch.tensor(rows, dtype=torch.int64)[:, None] % 251).all()
    assert next(taken, None) is None


def split(count: int, size: int) -> list[list[int]]:
    return [list(range(start, min(count, start + size))) for start in range(0, count, size)]


def test_a_slow_reader_gets_every_batch_whole(pool: WorkerPool) -> None:
    check(pool, split(120, 7), pause=0.01)


def test_a_fast_reader_gets_every_batch_whole_of_every_task(pool: WorkerPool) -> None:
    for size in (1, 7, 3):
        check(pool, split(400, size))


def test_empty_batches_keep_their_place(pool: WorkerPool) -> None:
    check(pool, [[1], [], [2, 3], []])


def test_after_a_task_that_was_left_midway_nothing_is_mixed_up(pool: WorkerPool) -> None:
    for taken in range(1, 9):
        left = pool.decode(split(400, 7))
        for _ in range(taken):
            next(left)
        check(pool, split(60, 4))


def note_and_show(folder: Path, rows: Sequence[int], squares: np.ndarray) -> Decoded:
    """Leaves a file of the name of a batch's first row."""
    (folder / str(rows[0])).touch()
    return show_row(rows, squares)


def settled(folder: Path) -> int:
    """Number of files once no more have come for a while, however slow the machine."""
    count, since = -1, time.monotonic()
    while time.monotonic() - since < 0.3:
        if (now := len(list(folder.iterdir()))) != count:
            count, since = now, time.monotonic()
        time.sleep(0.01)
    return count


@pytest.mark.parametrize("alternate", [False, True])
def test_alternating_workers_rest_while_a_part_is_read(tmp_path: Path, alternate: bool) -> None:
    pool, batches = WorkerPool(partial(note_and_show, tmp_path), 2, (1, 2, 2, 3), alternate), split(12, 1)
    taken = pool.decode(batches)
    begun = []
    for _ in batches:
        next(taken)
        begun.append(settled(tmp_path))
    part, ahead = 2 * AHEAD, 2 * AHEAD + 1
    expected = [min(12, i // part * part + part if alternate else i + ahead) for i in range(12)]
    assert begun == expected
    pool.close()


def test_closed_it_leaves_no_process() -> None:
    before = set(multiprocessing.active_children())
    pool = WorkerPool(show_row, 2, (1, 2, 2, 3))
    assert len(set(multiprocessing.active_children()) - before) == 2
    pool.close()
    pool.close()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("processes", "each"), [(1, 12), (3, 4), (5, 2), (12, 1), (64, 1)])
def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, processes: int, each: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    assert cores(processes) == each


@pytest.mark.parametrize(("count", "used"), [(4, 4), (100, 16), (None, 1)])
def test_where_a_system_does_not_say_which_cores_may_be_used(
    monkeypatch: pytest.MonkeyPatch, count: int | None, used: int
) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert cores() == used


def test_shared_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> None:  # as torch does; it would leave a file of that size behind
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(CifnetError, match=r"cannot share 38 MB of decoded photos .*--shm-size"):
        WorkerPool(show_row, 2, (2**6, 181, 181, 3))


def test_a_signal_to_all_processes_is_left_to_the_reader() -> None:
    pool = WorkerPool(show_row, 2, (7, 2, 2, 3))
    taken = pool.decode(split(60, 7))
    next(taken), next(taken)  # one of each process, which have begun by then
    for child in multiprocessing.active_children():
        child.terminate()
    assert sum(len(decoded.numbers) for _, decoded in taken) == 60 - 14
    pool.close()


def alive(workers: list[psutil.Process]) -> list[psutil.Process]:
    return [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]


def test_workers_of_a_forgotten_pool_end() -> None:
    before = psutil.Process().children()
    pool = WorkerPool(show_row, 2, (7, 2, 2, 3))
    workers = [child for child in psutil.Process().children() if child not in before]
    assert len(alive(workers)) == 2
    next(pool.decode([[1], [2], [3]]))
    pool.itself = pool  # type: ignore[attr-defined]  # as an exception's traceback does, which only the collector frees
    del pool
    gc.collect()
    assert not alive(workers)


UNCLOSED = """
import numpy as np
from tests.data.test_workers import show_row
from cifnet_pl.data.loading import WorkerPool
pool = WorkerPool(show_row, 2, (7, 2, 2, 3))
next(pool.decode([[1], [2], [3]]))
"""


def test_a_program_that_forgets_its_pool_ends() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=100, cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
