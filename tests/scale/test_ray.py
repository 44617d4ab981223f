"""64 shards by Ray on two cores, one worker killed in the middle: the sums of one run, and nothing
counted twice.
"""

import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.merge import reduce_sums
from cifnet_pl.cli.sums import make
from cifnet_pl.model.partial_sums import Shard
from tests.command_line import command, environment
from tests.models import tensors_equal

pytest.importorskip("ray")
pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]
SHARDS = 64


def with_ray(folder: Path, given: list[str]) -> list[str]:
    words = f"sums --output {folder} --shards {SHARDS} --workers 2"
    return [*words.split(), *given]


def kill_a_worker(folder: Path, killed: list[int]) -> None:
    """Kill the first of Ray's workers that makes a shard, once ten are finished; ``killed`` gets
    its number.
    """
    while len(list(folder.glob("*.sums"))) < 10:
        time.sleep(0.05)
    while not killed:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if not killed and "ray::_make" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(process.pid)
        time.sleep(0.01)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options: 64,000 embeddings of 256 numbers in 50 classes."""
    path = tmp_path_factory.mktemp("vectors") / "vectors.npz"
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 50, 64_000)
    z = (draw.normal(size=(50, 256))[labels] + draw.normal(size=(64_000, 256))).astype(
        np.float32
    )
    np.savez(path, embeddings=z, labels=labels)
    return ["--data.source", "embeddings", "--data.root", str(path)]


@pytest.fixture(scope="module")
def here(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All shards, made in this process one after the other."""
    folder = tmp_path_factory.mktemp("here")
    make(folder, [Shard(i, SHARDS) for i in range(1, SHARDS + 1)], given)
    return folder


def test_a_killed_worker_changes_nothing(given: list[str], here: Path, tmp_path: Path):
    killed: list[int] = []
    killer = threading.Thread(
        target=kill_a_worker, args=(tmp_path, killed), daemon=True
    )
    killer.start()
    assert main(with_ray(tmp_path, given)) == 0
    assert killed
    for path in sorted(here.glob("*.sums")):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    model = reduce_sums(sorted(tmp_path.glob("*.sums")))
    other = reduce_sums(sorted(here.glob("*.sums")))
    assert sum(model.model.counts.values()) == sum(other.model.counts.values())
    assert tensors_equal(model.solved().tensors(), other.solved().tensors())


def test_processes_and_ray_end_in_one_model(
    given: list[str], here: Path, tmp_path: Path
):
    """A part by a command of its own, as a task of a SLURM array makes it, the others by Ray,
    against one process.
    """
    part = command("sums", "--output", str(tmp_path), "--shard", f"7/{SHARDS}", *given)
    subprocess.run(part, check=True, env=environment())
    assert main(with_ray(tmp_path, given)) == 0
    assert main(["merge", str(tmp_path), "--output", str(tmp_path / "m")]) == 0
    expected = reduce_sums(sorted(here.glob("*.sums"))).solved()
    assert tensors_equal(cifnet_pl.load(tmp_path / "m").tensors(), expected.tensors())
