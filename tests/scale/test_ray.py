"""64 shards by Ray on two cores, one worker killed in the middle: the sums of one run, and nothing counted twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.merge_sums import reduce_sums
from cifnet_pl.cli.shard_maker import make
from cifnet_pl.model.shards import Shard
from tests.command_line import command, environment
from tests.models import tensors_equal

pytest.importorskip("ray")
pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]
SHARDS = 64


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options: 64,000 embeddings of 256 numbers in 50 classes."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 50, 64_000)
    z = (draw.normal(size=(50, 256))[labels] + draw.normal(size=(len(labels), 256))).astype(np.float32)
    path = tmp_path_factory.mktemp("vectors") / "vectors.npz"
    np.savez(path, embeddings=z, labels=labels)
    return ["--data.source", "embeddings", "--data.root", str(path)]


@pytest.fixture(scope="module")
def here(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All shards, made in this process one after the other."""
    folder = tmp_path_factory.mktemp("here")
    make(folder, [Shard(i, SHARDS) for i in range(1, SHARDS + 1)], given)
    return folder


def sums(folder: Path, by: str, given: list[str]) -> list[str]:
    return ["sums", "--output", str(folder), "--shards", str(SHARDS), "--by", by, "--workers", "2", *given]


def kill_a_worker(folder: Path, killed: list[int]) -> None:
    """Kill the first of Ray's workers that makes a shard, once some are finished."""
    while len(list(folder.glob("*.sums"))) < 10:
        time.sleep(0.05)
    while not killed:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and b"ray::_make" in _title(entry) and _descends(int(entry.name), os.getpid()):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
                return
        time.sleep(0.01)


def _title(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def _descends(process: int, ancestor: int) -> bool:
    """Whether a process was started by ours, so that no other's is killed."""
    while process > 1:
        if process == ancestor:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


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
