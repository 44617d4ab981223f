"""64 shards by Ray on two cores, one worker killed in the middle: the sums of one run, and nothing counted twice."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

import cifnet_pl
from benchmarks.studies.sums import SHARDS, kill_a_worker, one_by_one, with_ray, write_vectors
from cifnet_pl.__main__ import main
from cifnet_pl.cli.merge import reduce_sums
from cifnet_pl.cli.sums import make
from cifnet_pl.model.sums import Shard
from tests.command_line import command, environment
from tests.models import tensors_equal

pytest.importorskip("ray")
pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options: 64,000 embeddings of 256 numbers in 50 classes."""
    return write_vectors(tmp_path_factory.mktemp("vectors") / "vectors.npz")


@pytest.fixture(scope="module")
def here(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All shards, made in this process one after the other."""
    folder = tmp_path_factory.mktemp("here")
    make(folder, [Shard(i, SHARDS) for i in range(1, SHARDS + 1)], given)
    return folder


def test_a_killed_worker_changes_nothing(given: list[str], here: Path, tmp_path: Path):
    killed: list[int] = []
    killer = threading.Thread(target=kill_a_worker, args=(tmp_path, killed), daemon=True)
    killer.start()
    assert main(with_ray(tmp_path, given)) == 0
    assert killed
    for path in sorted(here.glob("*.sums")):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    model, other = reduce_sums(sorted(tmp_path.glob("*.sums"))), reduce_sums(sorted(here.glob("*.sums")))
    assert sum(model.model.counts.values()) == sum(other.model.counts.values())
    assert tensors_equal(model.solved().tensors(), other.solved().tensors())


def test_processes_and_ray_end_in_one_model(given: list[str], here: Path, tmp_path: Path):
    """A part by a command of its own, as a task of a SLURM array makes it, the others by Ray, against one process."""
    subprocess.run(command(*one_by_one(tmp_path, given, [7])), check=True, env=environment())
    assert main(with_ray(tmp_path, given)) == 0
    assert main(["merge", str(tmp_path), "--output", str(tmp_path / "m")]) == 0
    expected = reduce_sums(sorted(here.glob("*.sums"))).solved()
    assert tensors_equal(cifnet_pl.load(tmp_path / "m").tensors(), expected.tensors())
