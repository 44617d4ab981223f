"""Threads that let processes decode: the same pixels, reasons and questions, and what ends them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cifnet_pl.images import pool as pools
from cifnet_pl.images.image import EncodedImage, UnreadableImage
from cifnet_pl.images.pool import DecodingPool
from cifnet_pl.images.slices import LEFT_OUT, SliceRequest, read_slice
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import make_images

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="needs Linux's files in memory"
)
SIDE = 8


class Example(NamedTuple):
    """A pool whose processes are ready, and images for it."""

    pool: DecodingPool
    request: SliceRequest


def request(folder: Path) -> SliceRequest:
    """Two files, the content of one, a damaged and a missing file, and no image at all."""
    first, second = sorted(make_images(folder, ["ant"], 2).rglob("*.png"))
    damaged = folder / "damaged.png"
    damaged.write_bytes(first.read_bytes()[:60])
    nothing = UnreadableImage("nothing there")
    images = [
        first,
        second,
        first.read_bytes(),
        damaged,
        folder / "missing.png",
        nothing,
    ]
    return SliceRequest(images, 1.0, EncodedImage.look)


def started(pool: DecodingPool) -> None:
    """Start the processes of a pool, and wait until they are ready."""
    processes = pool._processes
    assert processes is not None
    processes.count(pools.IMAGES_BEFORE_PROCESSES)
    assert processes.ready.wait(200)


class OwnPool(NamedTuple):
    """A pool, its processes, and the program that they are."""

    pool: DecodingPool
    processes: pools.DecodingProcesses
    program: subprocess.Popen[bytes]


@pytest.fixture
def own_pool() -> Iterator[OwnPool]:
    """A pool whose processes are shared with no other test."""
    pools._forget()
    pool = DecodingPool(pools.PROCESSES_FROM)
    started(pool)
    processes = pool._processes
    assert processes is not None
    assert processes._program is not None
    yield OwnPool(pool, processes, processes._program)
    pools._forget()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    pool = DecodingPool(pools.PROCESSES_FROM)
    started(pool)
    yield Example(pool, request(tmp_path_factory.mktemp("images")))
    pool.close()
    pools._forget()


def empty(count: int) -> np.ndarray:
    return np.zeros((count, SIDE, SIDE, 3), dtype=np.uint8)


def test_processes_read_what_threads_read(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(example.request.images)
    expected_pixels, pixels = empty(count), empty(count)
    expected = read_slice(example.request, expected_pixels)
    with monkeypatch.context() as patches:
        patches.setattr(pools, "read_slice", None)  # nothing is read here
        results = example.pool.read(example.request, pixels)
    assert [result.reason for result in results] == [one.reason for one in expected]
    assert [result.reason is None for result in results] == [True] * 3 + [False] * 3
    for result, other in zip(results[:3], expected, strict=False):
        assert result.look is not None
        assert other.look is not None
        assert result.look.hash == other.look.hash
        assert np.array_equal(result.look.thumbnail, other.look.thumbnail)
    assert np.array_equal(pixels, expected_pixels)


def test_what_is_skipped_is_decided_here(example: Example) -> None:
    asked = []

    def skip(position: int, content_hash: int) -> bool:
        asked.append((position, content_hash))
        return position != 1

    pixels = empty(6)
    results = example.pool.read(example.request, pixels, skip)
    assert [result.reason for result in results[:3]] == [LEFT_OUT, None, LEFT_OUT]
    assert [place for place, _ in asked] == [0, 1, 2, 3]  # the damaged file has a hash
    assert asked[0][1] == asked[2][1] != asked[1][1]
    assert pixels[1].any()
    assert not pixels[0].any()


def test_a_fault_of_ours_is_not_taken_for_a_bad_image(example: Example) -> None:
    faulty = example.request._replace(crop_ratio="a text")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Traceback"):
        example.pool.read(faulty, empty(6))
    example.pool.read(example.request, empty(6))  # the process goes on


def use_all_threads(pool: DecodingPool, images: SliceRequest) -> None:
    """Use each thread of the processes; the last one that was used comes last."""
    for _ in range(pool.threads):
        pool.read(images, empty(len(images.images)))


@pytest.mark.system
def test_a_killed_process_is_an_error_and_the_next_pool_starts_another(
    tmp_path: Path, own_pool: OwnPool
) -> None:
    own_pool.program.kill()
    with pytest.raises(CifnetError, match="memory is short"):
        use_all_threads(own_pool.pool, request(tmp_path))
    assert DecodingPool(pools.PROCESSES_FROM)._processes is not own_pool.processes


PROGRAM = """
import time
from cifnet_pl.images import pool as pools
pool = pools.DecodingPool(8)
pool._processes.count(pools.IMAGES_BEFORE_PROCESSES)
assert pool._processes.ready.wait(200)
print(pool._processes._program.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_the_one_that_asks(number: signal.Signals) -> None:
    asking = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    )
    assert asking.stdout is not None
    group = int(asking.stdout.readline())
    asking.send_signal(number)
    asking.wait()
    asking.stdout.close()
    deadline = time.monotonic() + 60
    while _is_there(group):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.system
def test_processes_end_where_a_fork_holds_their_connections_open(
    own_pool: OwnPool,
) -> None:
    channels = own_pool.processes._channels
    held = [os.dup(one.connection.fileno()) for one in channels]
    own_pool.processes.close()
    deadline = time.monotonic() + 60
    while _is_there(own_pool.program.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for descriptor in held:
        os.close(descriptor)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_few_threads_decode_themselves() -> None:
    pool = DecodingPool(pools.PROCESSES_FROM - 1)
    assert pool._processes is None
    pool.close()
