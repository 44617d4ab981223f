"""From positions to batches: exact shards, decoded images, memory."""

import os
import time
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cifnet_pl.data.embedding_cache import EmbeddingCache
from cifnet_pl.data.loading import (
    EmbeddingBatch,
    ImageBatch,
    ImageLoader,
    PlannedBatch,
    StoredLoader,
    cut_batches,
)
from cifnet_pl.data.samples import SampleTable
from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.images.reader import decode_images, decoding_batch_size, decoding_cores
from cifnet_pl.utilities.errors import DataError
from tests.simulated_device import simulated_device


class Numbers(SampleTable):
    """Images of one colour, their number; those in ``broken`` cannot be decoded."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()):
        labels = np.arange(count, dtype=np.int64) % 2
        names = [f"{i}\n.png" for i in range(count)]
        super().__init__(pd.DataFrame({"label": labels, "name": names}), where="x")
        self.in_files = False
        self.broken = broken
        self.decoded = 0

    def given(self, index: int) -> Image.Image:
        self.decoded += 1
        if index in self.broken:
            raise UnreadableImage("of no known format")
        return Image.new("RGB", (2, 2), (index, 0, 0))


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 9))
def test_shards_partition_exactly(count: int, batch_size: int, world: int) -> None:
    rows = np.random.default_rng(count).permutation(1000)[:count]
    shards = [cut_batches(rows, batch_size, rank, world) for rank in range(world)]
    # All have as many batches, else ranks would wait for ever.
    assert len(shards[0]) == -(-count // (batch_size * world))
    joined = [rows[:0]]
    for step in zip(*shards, strict=True):
        joined += step
        sizes = [len(batch) for batch in step]
        assert max(sizes) <= min(batch_size, min(sizes) + 1)
    assert np.concatenate(joined).tolist() == rows.tolist()  # in order, too


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_are_whole_and_in_order_whatever_reads_them(device: str) -> None:
    """By threads or processes; where a task is left midway; and without unreadable images."""
    broken = (3, 14, 15)
    loader = ImageLoader(Numbers(60, broken), 2, 1.0, 3, device)
    for count, size in ((60, 7), (60, 40), (16, 2), (0, 2)):
        batches = np.split(np.arange(count), range(size, count, size))
        for batch, rows in zip(loader.decode(batches), batches, strict=True):
            readable = [row for row in rows.tolist() if row not in broken]
            assert batch.row.tolist() == batch.image[:, 0, 0, 0].tolist() == readable
            assert batch.label.tolist() == [row % 2 for row in readable]
            assert batch.image.shape == (len(readable), 3, 2, 2)
            kinds = [part.dtype for part in batch[:4]]
            assert kinds == [torch.uint8, *[torch.int64] * 3]
            others = [row for row in rows if row in broken]
            named = [f"x#{row}\\n.png: of no known format" for row in others]
            assert batch.unreadable == dict(zip(others, named, strict=True))
        next(loader.decode(batches))
    assert list(loader.decode([])) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="threads read there")
def test_processes_are_kept_until_the_loader_is_closed() -> None:
    class Readers(Numbers):
        """Images whose colour is that of the process that reads them."""

        def given(self, index: int) -> Image.Image:
            digits = os.getpid().to_bytes(3, "big")
            return Image.new("RGB", (2, 2), tuple(digits))

    loader = ImageLoader(Readers(8), 2, 1.0, 2, "cuda")

    def readers() -> set[tuple[int, ...]]:
        batches = loader.decode(np.split(np.arange(8), 4))
        return {tuple(batch.image[0, :, 0, 0].tolist()) for batch in batches}

    first = readers()
    assert len(first) == 2
    assert readers() == first
    loader.reader.close()
    assert not readers() & first


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_that_changed_end_the_reading(device: str) -> None:
    class Changed(Numbers):
        def given(self, index: int) -> Image.Image:
            raise DataError("shard a.tar changed")

    with pytest.raises(DataError, match=r"^shard a\.tar changed$"):
        list(ImageLoader(Changed(1), 2, 1.0, 2, device).decode([np.array([0])]))


def test_stored_and_decoded_batches_in_the_order_of_the_plan() -> None:
    images = Numbers(8)
    memory = EmbeddingCache(images, ["0", "1"], None)
    for collected in (torch.tensor([2, 3, 0]), torch.tensor([], dtype=int)):
        z = collected[:, None].expand(-1, 3).double()
        memory.collect(collected, collected + 10, z)
        assert np.flatnonzero(memory.known(np.arange(8))).tolist() == [0, 2, 3]
    stores = [None, memory, None, memory]
    rows = [[6, 4], [3, 2, 0], [7], [3]]
    plan = [PlannedBatch(np.array(r), s) for r, s in zip(rows, stores, strict=True)]
    decoder = ImageLoader(images, 2, 1.0, 0)
    loader = StoredLoader(plan, decoder, learned=True)
    other = StoredLoader([PlannedBatch(np.array([5]), None)], decoder, learned=False)
    assert len(loader) == 4
    for _ in range(2):  # a loader can be run through again, whatever was made since
        batches = list(loader)
        kinds = [type(batch) for batch in batches]
        assert kinds == [ImageBatch, EmbeddingBatch] * 2
        assert [batch.row.tolist() for batch in batches] == rows
        labels = [batch.label.tolist() for batch in batches]
        assert labels == [[0, 0], [1, 0, 0], [1], [1]]
        assert batches[1].embedding.tolist() == [[3.0] * 3, [2.0] * 3, [0.0] * 3]
        assert batches[1].key.tolist() == [13, 12, 10]
        assert images.decoded == 3
        images.decoded = 0
    assert [batch.row.tolist() for batch in other] == [[5]]


@pytest.mark.parametrize(
    ("device", "is_done", "limited_by_images"),
    [("cpu", False, True), ("cuda", True, True), ("cuda", False, False)],
)
def test_waits_count_unless_a_gpu_still_embeds(device, is_done, limited_by_images):
    class Slow(Numbers):
        def given(self, index: int) -> Image.Image:
            time.sleep(0.005)
            return super().given(index)

    plan = [PlannedBatch(np.arange(2), None) for _ in range(4)]
    stream = mock.Mock(query=lambda: is_done)
    with (
        simulated_device(),
        mock.patch.object(torch.cuda, "current_stream", return_value=stream),
    ):
        decoder = ImageLoader(Slow(8), 2, 1.0, 0, device)
        loader = StoredLoader(plan, decoder, learned=True)
        assert len(list(loader)) == 4
    assert (loader.waiting_seconds > 0.03) == limited_by_images
    assert limited_by_images or loader.waiting_seconds == 0


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    """A system such as macOS does not say which cores may be used."""
    cores = lambda process: set(range(12))  # noqa: E731
    monkeypatch.setattr(os, "sched_getaffinity", cores, raising=False)
    assert [decoding_cores(processes) for processes in (1, 5, 64)] == [12, 2, 1]
    # SLURM has bound each task to 12 cores of its own, or only says how many it gave.
    for cores, expected in (("12", 12), ("24", 4)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cores)
        assert decoding_cores(3) == expected
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, used in ((4, 4), (100, 16), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert decoding_cores() == used


def test_decoding_stops_with_its_consumer(tmp_path):
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield tmp_path / "a.png"

    stream = decode_images(endless(), 2, 1.0)
    next(stream)
    stream.close()
    assert asked <= 2 * decoding_batch_size(2)
