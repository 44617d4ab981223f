"""From positions to batches: exact shards, lasting workers whose shared memory is never overwritten, memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cifnet_pl.data import loading
from cifnet_pl.data.loading import (
    AHEAD,
    Decoded,
    EmbeddingBatch,
    ImageBatch,
    ImageLoader,
    StoredLoader,
    WorkerPool,
    shard_batches,
)
from cifnet_pl.data.sets import FileSet, ImageSet
from cifnet_pl.photos.cache import EvaluationMemory
from cifnet_pl.photos.photo import UnreadableImage
from cifnet_pl.photos.reading import cores
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import make_photos


class ProcessNumbers(ImageSet):
    """Images that show which process decoded them; those in ``broken`` cannot be decoded."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()):
        self.labels = np.arange(count, dtype=np.int64) % 2
        self.names = [f"{i}\n.png" for i in range(count)]
        self.broken = broken
        self.decoded = 0

    def given(self, index: int) -> Image.Image:
        self.decoded += 1
        if index in self.broken:
            raise UnreadableImage("of no known format")
        digits = np.array([os.getpid()], dtype=np.int64).view(np.uint8)
        return Image.fromarray(np.resize(digits, (2, 2, 3)))

    def subset(self, rows: np.ndarray) -> ImageSet:
        raise NotImplementedError


def processes(batches: list[ImageBatch]) -> set[int]:
    pixels = torch.cat([batch.image for batch in batches]).permute(0, 2, 3, 1).reshape(-1, 12)[:, :8]
    return {int(row.numpy().copy().view(np.int64)[0]) for row in pixels}


def loader_of(images: ImageSet, workers: int, batch_size: int, device: str = "cpu") -> ImageLoader:
    return ImageLoader(images, 2, 1.0, workers, batch_size, device)


# ---------------------------------------------------------------------- shards


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 9))
def test_shards_partition_exactly(count: int, batch_size: int, world: int) -> None:
    rows = np.random.default_rng(count).permutation(1000)[:count]
    shards = [shard_batches(rows, batch_size, rank, world) for rank in range(world)]
    joined = np.concatenate([rows[:0], *(part for step in zip(*shards, strict=True) for part in step)])
    assert joined.tolist() == rows.tolist()  # in order, too
    assert {len(shard) for shard in shards} == {-(-count // (batch_size * world))}  # else ranks would wait for ever
    assert all(len(batch) <= batch_size for shard in shards for batch in shard)
    for step in zip(*shards, strict=True):
        assert max(map(len, step)) - min(map(len, step)) <= 1


# ---------------------------------------------------------------------- decoding


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_left_out_and_named(workers: int) -> None:
    loader = loader_of(ProcessNumbers(6, broken=(1, 4, 5)), workers, 20)
    first, second = loader.decode([np.array([0, 1, 2]), np.array([4, 5])])
    assert (first.row.tolist(), first.label.tolist()) == ([0, 2], [0, 0])
    assert first.unreadable == ("1\\n.png: of no known format",)
    assert second.image.shape == (0, 3, 2, 2)
    assert second.image.dtype == torch.uint8
    assert [part.dtype for part in second[1:4]] == [torch.int64] * 3
    assert second.unreadable == ("4\\n.png: of no known format", "5\\n.png: of no known format")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_of_ours_is_not_taken_for_a_bad_image(workers: int) -> None:
    class Faulty(ProcessNumbers):
        def given(self, index: int) -> Image.Image:
            raise KeyError("a bug")

    with pytest.raises(KeyError) as caught:
        list(loader_of(Faulty(1), workers, 1).decode([np.array([0])]))
    where = str(caught.value.__cause__) if workers else "".join(traceback.format_tb(caught.tb))
    assert 'raise KeyError("a bug")' in where  # the place in the worker is shown, too


def test_workers_start_with_the_first_batch() -> None:
    images = ProcessNumbers(4)
    plan = [(np.array([0, 1]), None), (np.array([2]), None)]
    loader = StoredLoader(images, plan, loader_of(images, 0, 20), learned=True)
    iterators = [iter(loader), iter(loader)]  # Lightning makes two for every task after the first
    assert images.decoded == 0
    assert next(iterators[1]).row.tolist() == [0, 1]
    assert images.decoded == 2


def test_workers_stay_for_all_tasks_until_they_are_closed() -> None:
    """They can start before there are batches, and again after they were closed in the middle of some."""
    before = {child.pid for child in multiprocessing.active_children()}
    loader = loader_of(ProcessNumbers(12), 2, 20)
    loader.start()
    workers = {child.pid for child in multiprocessing.active_children()} - before
    assert len(workers) == 2
    for parts in (6, 4, 2):
        batches = list(loader.decode(np.split(np.arange(12), parts)))
        assert [batch.row.tolist() for batch in batches] == np.arange(12).reshape(parts, -1).tolist()
        assert processes(batches) == workers
    next(loader.decode(np.split(np.arange(12), 6)))
    start = time.perf_counter()
    loader.close()
    loader.close()
    assert time.perf_counter() - start < 4  # not by a timeout
    assert {child.pid for child in multiprocessing.active_children()} <= before
    assert processes(list(loader.decode([np.arange(3)]))).isdisjoint(workers)
    loader.close()
    here = loader_of(ProcessNumbers(2), 0, 20)
    here.start()
    assert {child.pid for child in multiprocessing.active_children()} <= before
    assert [len(batch.row) for batch in here.decode([np.arange(2), np.arange(0)])] == [2, 0]
    assert list(here.decode([])) == []


@pytest.mark.parametrize(("device", "threads", "alternate"), [("cpu", 2, True), ("cpu", 1, False), ("cuda", 2, False)])
def test_workers_rest_while_several_threads_of_a_network_run(
    monkeypatch: pytest.MonkeyPatch, device: str, threads: int, alternate: bool
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(loading, "WorkerPool", lambda *options: made.append(options))
    loader_of(ProcessNumbers(2), 2, 20, device).start()
    assert [options[1:] for options in made] == [(2, (20, 2, 2, 3), alternate)]


def test_a_loader_can_be_left_midway_and_used_again() -> None:
    loader = loader_of(ProcessNumbers(12), 2, 20)
    for _ in loader.decode(np.split(np.arange(12), 6)):
        break
    assert [b.row.tolist() for b in loader.decode([np.array([7]), np.array([3, 2])])] == [[7], [3, 2]]


def test_unreadable_images_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known ones come first, and many are cut short."""
    make_photos(tmp_path, ["ant"], 3)
    for name in ("b.png", "c.png"):
        (tmp_path / "ant" / name).write_bytes(b"no image")
    files = FileSet(tmp_path, ["ant/0.png", "ant/b.png", "ant/c.png"], [0, 0, 0])
    broken = list(loading.unreadable_images(files, 8, 1.0))
    assert [line.split(": ")[0] for line in broken] == [str(tmp_path / "ant" / n) for n in ("b.png", "c.png")]
    text = loading.name_unreadable(broken[1:], [files], 8, 1.0)
    assert text.startswith(f"cannot read these images: {broken[1]}; {broken[0]}: repair")
    monkeypatch.setattr(loading, "NAMED", 1)
    assert "; and more" in loading.name_unreadable([], [files], 8, 1.0)
    assert loading.name_unreadable(["x: y"], [], 8, 1.0).startswith("cannot read image x: y")


# ---------------------------------------------------------------------- memory


@given(st.integers(1, 40), st.integers(0, 45), st.integers(1, 7), st.data())
def test_memory_holds_what_fits_and_gives_it_back(images: int, room: int, width: int, data: st.DataObject) -> None:
    limit_mb = room * width * 4 / 1e6
    memory = EvaluationMemory(images, limit_mb)
    z = torch.randn(images, width, generator=torch.Generator().manual_seed(images))
    offered: set[int] = set()
    for _ in range(data.draw(st.integers(1, 5))):
        rows = data.draw(st.lists(st.integers(0, images - 1), unique=True, max_size=images))
        memory.add(torch.tensor(rows, dtype=torch.int64), z[rows].double() if len(rows) % 2 else z[rows])
        offered.update(rows)
        known = np.flatnonzero(memory.known(np.arange(images)))
        assert set(known.tolist()) <= offered
        assert len(known) == min(len(offered), int(limit_mb * 1e6) // (4 * width))
        result = memory.get(known[::-1].copy())
        assert result.dtype == torch.float32
        assert torch.equal(result, z[known[::-1].copy()])


def test_memory_does_not_follow_what_it_was_given() -> None:
    memory = EvaluationMemory(3, 1.0)
    with torch.inference_mode():
        z = torch.ones(2, 4)
        memory.add(torch.tensor([2, 0]), z)
        z.zero_()
    assert memory.get(np.array([0, 2])).tolist() == [[1.0] * 4] * 2
    assert not memory.get(np.array([0])).is_inference()


def test_stored_and_decoded_batches_in_the_order_of_the_plan() -> None:
    images = ProcessNumbers(8)
    images.note_hashes(np.arange(8), np.arange(10, 18))
    memory = EvaluationMemory(8, 1.0)
    memory.add(torch.arange(4), torch.arange(4.0)[:, None].expand(4, 3))
    decoder = loader_of(images, 0, 20)
    plan = [(np.array([6, 4]), None), (np.array([1, 0]), memory), (np.array([7]), None), (np.array([3]), memory)]
    loader = StoredLoader(images, plan, decoder, learned=True)
    other = StoredLoader(images, [(np.array([5]), None)], decoder, learned=False)
    assert (len(loader), len(other)) == (4, 1)
    for _ in range(2):  # a loader can be run through again, whatever was made since
        batches = list(loader)
        assert [type(b) for b in batches] == [ImageBatch, EmbeddingBatch, ImageBatch, EmbeddingBatch]
        assert [b.row.tolist() for b in batches] == [[6, 4], [1, 0], [7], [3]]
        assert [b.label.tolist() for b in batches] == [[0, 0], [1, 0], [1], [1]]
        stored = batches[1]
        assert isinstance(stored, EmbeddingBatch)
        assert stored.embedding.tolist() == [[1.0] * 3, [0.0] * 3]
        assert stored.key.tolist() == [11, 10]
        assert images.decoded == 3
        images.decoded = 0
    assert [b.row.tolist() for b in other] == [[5]]


# ---------------------------------------------------------------------- worker processes


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


def test_processes_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system such as macOS does not say which cores may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    assert [cores(processes) for processes in (1, 3, 5, 12, 64)] == [12, 4, 2, 1, 1]
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, used in ((4, 4), (100, 16), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
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
from tests.data.test_loading import show_row
from cifnet_pl.data.loading import WorkerPool
pool = WorkerPool(show_row, 2, (7, 2, 2, 3))
next(pool.decode([[1], [2], [3]]))
"""


def test_a_program_that_forgets_its_pool_ends() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, timeout=100, cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
