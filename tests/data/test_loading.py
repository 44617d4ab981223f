"""From positions to batches: exact shards, lasting workers, remembered embeddings."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cifnet_pl.data import loading
from cifnet_pl.data.loading import (
    EmbeddingBatch,
    ImageBatch,
    ImageLoader,
    StoredLoader,
    decode_batch,
    shard_batches,
)
from cifnet_pl.data.sets import ImageSet, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.photos.cache import EvaluationMemory
from cifnet_pl.photos.photo import UnreadableImage
from tests.data.tree import class_tree


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
    assert sorted(np.concatenate([rows[:0], *(b for shard in shards for b in shard)]).tolist()) == sorted(rows)
    assert {len(shard) for shard in shards} == {-(-count // (batch_size * world))}  # else ranks would wait for ever
    assert all(len(batch) <= batch_size for shard in shards for batch in shard)
    for step in zip(*shards, strict=True):
        assert max(map(len, step)) - min(map(len, step)) <= 1


def test_one_process_gets_everything_in_order() -> None:
    batches = shard_batches(np.array([5, 3, 9, 1, 7]), 2, 0, 1)
    assert [batch.tolist() for batch in batches] == [[5, 3], [9, 1], [7]]


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


def test_same_workers_over_all_tasks() -> None:
    loader = loader_of(ProcessNumbers(40), 2, 20)
    seen = [processes(list(loader.decode(np.split(np.arange(40), parts)))) for parts in (4, 2, 8)]
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 2
    assert os.getpid() not in seen[0]


def test_workers_start_with_the_first_batch() -> None:
    images = ProcessNumbers(4)
    plan = [(np.array([0, 1]), None), (np.array([2]), None)]
    loader = StoredLoader(images, plan, loader_of(images, 0, 20), learned=True)
    iterators = [iter(loader), iter(loader)]  # Lightning makes two for every task after the first
    assert images.decoded == 0
    assert next(iterators[1]).row.tolist() == [0, 1]
    assert images.decoded == 2


def test_workers_can_start_before_there_are_batches() -> None:
    before = {child.pid for child in multiprocessing.active_children()}
    loader = loader_of(ProcessNumbers(12), 2, 20)
    loader.start()
    workers = {child.pid for child in multiprocessing.active_children()} - before
    assert len(workers) == 2
    loader.start()
    batches = list(loader.decode(np.split(np.arange(12), 6)))
    assert [batch.row.tolist() for batch in batches] == np.arange(12).reshape(6, 2).tolist()
    assert processes(batches) == workers
    loader.close()
    here = loader_of(ProcessNumbers(2), 0, 20)
    here.start()
    assert {child.pid for child in multiprocessing.active_children()} <= before
    assert len(list(here.decode([np.arange(2)]))) == 1


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


def test_closed_loader_leaves_no_process_and_can_start_again() -> None:
    loader, batches = loader_of(ProcessNumbers(12), 2, 20), np.split(np.arange(12), 6)
    next(loader.decode(batches))
    first = {child.pid for child in multiprocessing.active_children()}
    assert len(first) >= 2
    start = time.perf_counter()
    loader.close()
    assert time.perf_counter() - start < 4  # not by a timeout
    left = {child.pid for child in multiprocessing.active_children()}
    assert len(first - left) == 2
    second = processes(list(loader.decode(batches)))
    assert second.isdisjoint(first)
    loader.close()
    loader.close()
    loader_of(ProcessNumbers(2), 0, 20).close()


def test_nothing_to_decode() -> None:
    loader = loader_of(ProcessNumbers(2), 2, 20)
    assert list(loader.decode([])) == []
    assert [len(batch.row) for batch in loader.decode([np.zeros(0, dtype=np.int64)])] == [0]


def test_broken_file_is_named_with_its_path(tmp_path: Path) -> None:
    class_tree(tmp_path)
    (tmp_path / "red" / "0.png").write_bytes(b"")
    source = build_source("folder", SourceOptions(tmp_path))
    images = source.train if "red/0.png" in source.train.names else source.val
    row = list(images.names).index("red/0.png")
    decoded = decode_batch(images, 4, 1.0, [row], np.zeros((1, 4, 4, 3), dtype=np.uint8))
    (named,) = decoded.unreadable
    assert named.startswith(f"{tmp_path}/red/0.png: no image of a known format")


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
        assert memory._store is not None
        assert memory._store.numel() * memory._store.element_size() <= limit_mb * 1e6
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
