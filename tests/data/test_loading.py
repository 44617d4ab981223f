"""From positions to batches: exact shards, decoded images, memory."""

import os
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cifnet_pl.data import loading
from cifnet_pl.data.embedding_cache import EmbeddingCache
from cifnet_pl.data.loading import (
    EmbeddingBatch,
    ImageBatch,
    ImageLoader,
    PlannedBatch,
    StoredLoader,
    shard_batches,
)
from cifnet_pl.data.samples import SampleTable, table_of
from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.utilities.errors import DataError
from tests.command_line import make_images
from tests.simulated_device import simulated_device


class Numbers(SampleTable):
    """Images of one colour, their number; those in ``broken`` cannot be decoded."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()):
        labels = np.arange(count, dtype=np.int64) % 2
        names = [f"{i}\n.png" for i in range(count)]
        super().__init__(pd.DataFrame({"label": labels, "name": names}), prefix="")
        self.in_files = False
        self.broken = broken
        self.decoded = 0

    def given(self, index: int) -> Image.Image:
        self.decoded += 1
        if index in self.broken:
            raise UnreadableImage("of no known format")
        return Image.new("RGB", (2, 2), (index, 0, 0))


# ---------------------------------------------------------------------- shards


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 9))
def test_shards_partition_exactly(count: int, batch_size: int, world: int) -> None:
    rows = np.random.default_rng(count).permutation(1000)[:count]
    shards = [shard_batches(rows, batch_size, rank, world) for rank in range(world)]
    joined = np.concatenate(
        [rows[:0], *(part for step in zip(*shards, strict=True) for part in step)]
    )
    assert joined.tolist() == rows.tolist()  # in order, too
    assert {len(shard) for shard in shards} == {
        -(-count // (batch_size * world))
    }  # else ranks would wait for ever
    assert all(len(batch) <= batch_size for shard in shards for batch in shard)
    for step in zip(*shards, strict=True):
        assert max(map(len, step)) - min(map(len, step)) <= 1


# ---------------------------------------------------------------------- decoding


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_left_out_and_named(workers: int) -> None:
    loader = ImageLoader(Numbers(6, broken=(1, 4, 5)), 2, 1.0, workers)
    first, second, third = loader.decode(
        [np.array([0, 1, 2]), np.array([4, 5]), np.arange(0)]
    )
    assert (first.row.tolist(), first.label.tolist()) == ([0, 2], [0, 0])
    assert first.image[:, 0, 1, 1].tolist() == [0, 2]
    assert first.unreadable == ("1\\n.png: of no known format",)
    for batch in (second, third):
        assert batch.image.shape == (0, 3, 2, 2)
        assert batch.image.dtype == torch.uint8
        assert [part.dtype for part in batch[1:4]] == [torch.int64] * 3
    assert second.unreadable == (
        "4\\n.png: of no known format",
        "5\\n.png: of no known format",
    )
    assert list(loader.decode([])) == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_are_whole_and_in_order_whatever_reads_them(device: str) -> None:
    """Threads, or processes where a GPU embeds; also where a task is left midway."""
    loader = ImageLoader(Numbers(250, broken=(3,)), 2, 1.0, 3, device)
    for count, size in ((60, 7), (250, 100), (4, 7)):
        batches = np.split(np.arange(count), range(size, count, size))
        for batch, rows in zip(loader.decode(batches), batches, strict=True):
            readable = rows[rows != 3].tolist()
            assert batch.row.tolist() == batch.image[:, 0, 0, 0].tolist() == readable
            assert len(batch.unreadable) == (3 in rows)
        next(loader.decode(batches))


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
    loader.close()
    assert not readers() & first


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_data_that_changed_end_the_reading(device: str) -> None:
    class Changed(Numbers):
        def given(self, index: int) -> Image.Image:
            raise DataError("shard a.tar changed")

    with pytest.raises(DataError, match=r"^shard a\.tar changed$"):
        list(ImageLoader(Changed(1), 2, 1.0, 2, device).decode([np.array([0])]))


def test_unreadable_images_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known ones come first, and many are cut short."""
    make_images(tmp_path, ["ant"], 3)
    for name in ("b.png", "c.png"):
        (tmp_path / "ant" / name).write_bytes(b"no image")
    names = ["ant/0.png", "ant/b.png", "ant/c.png"]
    files = SampleTable(table_of(name=names).assign(label=0), root=tmp_path)
    loader = ImageLoader(files, 8, 1.0, 2)
    broken = list(loader.unreadable())
    assert [line.split(": ")[0] for line in broken] == [
        str(tmp_path / "ant" / n) for n in ("b.png", "c.png")
    ]
    text = loading.name_unreadable(broken[1:], [loader])
    assert text.startswith(
        f"cannot read these images: {broken[1]}; {broken[0]}: repair"
    )
    monkeypatch.setattr(loading, "UNREADABLE_SHOWN", 1)
    assert "; and more" in loading.name_unreadable([], [loader])
    assert loading.name_unreadable(["x: y"], []).startswith("cannot read image x: y")


# ---------------------------------------------------------------------- memory


def in_memory(images: Numbers) -> EmbeddingCache:
    return EmbeddingCache(images, ["number"], None)


def test_memory_gives_back_what_it_got() -> None:
    count, width = 12, 5
    memory = in_memory(Numbers(count))
    draw = np.random.default_rng(0)
    z = torch.from_numpy(draw.normal(size=(count, width))).float()
    offered: set[int] = set()
    for rows in np.split(draw.permutation(count), [0, 5, 8]):
        memory.collect(torch.from_numpy(rows), torch.from_numpy(rows), z[rows].double())
        offered.update(rows.tolist())
        known = np.flatnonzero(memory.known(np.arange(count)))
        assert set(known.tolist()) == offered
        if len(known):
            backwards = known[::-1].copy()
            result = memory.get(backwards)
            assert result.dtype == torch.float32
            assert torch.equal(result, z[backwards])


def test_stored_and_decoded_batches_in_the_order_of_the_plan() -> None:
    images = Numbers(8)
    images.hash_of[:] = np.arange(10, 18)
    memory = in_memory(images)
    memory.collect(
        torch.arange(4), torch.arange(4), torch.arange(4.0)[:, None].expand(4, 3)
    )
    decoder = ImageLoader(images, 2, 1.0, 0)
    plan = [
        PlannedBatch(np.array([6, 4]), None),
        PlannedBatch(np.array([1, 0]), memory),
        PlannedBatch(np.array([7]), None),
        PlannedBatch(np.array([3]), memory),
    ]
    loader = StoredLoader(plan, decoder, learned=True)
    other = StoredLoader([PlannedBatch(np.array([5]), None)], decoder, learned=False)
    assert (len(loader), len(other)) == (4, 1)
    for _ in range(2):  # a loader can be run through again, whatever was made since
        batches = list(loader)
        assert [type(b) for b in batches] == [
            ImageBatch,
            EmbeddingBatch,
            ImageBatch,
            EmbeddingBatch,
        ]
        assert [b.row.tolist() for b in batches] == [[6, 4], [1, 0], [7], [3]]
        assert [b.label.tolist() for b in batches] == [[0, 0], [1, 0], [1], [1]]
        stored = batches[1]
        assert isinstance(stored, EmbeddingBatch)
        assert stored.embedding.tolist() == [[1.0] * 3, [0.0] * 3]
        assert stored.key.tolist() == [11, 10]
        assert images.decoded == 3
        images.decoded = 0
    assert [b.row.tolist() for b in other] == [[5]]


@pytest.mark.parametrize(
    ("device", "is_done", "limited_by_images"),
    [("cpu", False, True), ("cuda", True, True), ("cuda", False, False)],
)
def test_waits_count_unless_a_gpu_still_embeds_when_the_images_come(
    device: str, is_done: bool, limited_by_images: bool
) -> None:
    class Slow(Numbers):
        def given(self, index: int) -> Image.Image:
            time.sleep(0.005)
            return super().given(index)

    images = Slow(8)
    plan = [PlannedBatch(np.arange(2), None) for _ in range(4)]
    stream = mock.Mock(query=lambda: is_done)
    with (
        simulated_device(),
        mock.patch.object(torch.cuda, "current_stream", return_value=stream),
    ):
        decoder = ImageLoader(images, 2, 1.0, 0, device)
        loader = StoredLoader(plan, decoder, learned=True)
        assert len(list(loader)) == 4
    if limited_by_images:
        assert loader.waiting_seconds > 0.03
    else:
        assert loader.waiting_seconds == 0


def test_processes_of_one_machine_share_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A system such as macOS does not say which cores may be used."""
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: set(range(12)), raising=False
    )
    assert [decoding_cores(processes) for processes in (1, 3, 5, 12, 64)] == [
        12,
        4,
        2,
        1,
        1,
    ]
    # SLURM has bound each task to 12 cores of its own, or only says how many it gave.
    for cores, expected in (("12", 12), ("24", 4)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cores)
        assert decoding_cores(3) == expected
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, used in ((4, 4), (100, 16), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert decoding_cores() == used
