"""64 shards by Ray on two cores, one worker killed in the middle: the sums of one run, and nothing counted twice."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

import cifnet_pl
from benchmarks.sums import SHARDS, kill_a_worker, sums, write_vectors
from cifnet_pl.__main__ import main
from cifnet_pl.cli.merge import reduce_sums
from cifnet_pl.cli.shard_maker import make
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
    assert main(sums(tmp_path, "ray", given)) == 0
    assert killed
    for path in sorted(here.glob("*.sums")):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    model, other = reduce_sums(sorted(tmp_path.glob("*.sums"))), reduce_sums(sorted(here.glob("*.sums")))
    assert sum(model.model.counts.values()) == sum(other.model.counts.values())
    assert tensors_equal(model.solved().tensors(), other.solved().tensors())


def test_the_commands_of_all_drivers_end_in_one_model(given: list[str], here: Path, tmp_path: Path):
    """Plain processes from the command line, a task of a SLURM array, and merge, against one process."""
    assert main(sums(tmp_path, "slurm", given)) == 0
    script = str(tmp_path / "sums.sbatch")
    subprocess.run(["bash", script], check=True, env=environment(SLURM_ARRAY_TASK_ID="7"))
    subprocess.run(command(*sums(tmp_path, "processes", given)), check=True, env=environment())
    assert main(["merge", str(tmp_path), "--output", str(tmp_path / "m")]) == 0
    expected = reduce_sums(sorted(here.glob("*.sums"))).solved()
    assert tensors_equal(cifnet_pl.load(tmp_path / "m").tensors(), expected.tensors())
