"""64 shards by Ray on two cores: a worker, a node or the head is killed in the middle. The sums are
those of one run, bit for bit, and nothing is counted twice.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.parsing import options_in
from cifnet_pl.cli.ray import Workers, make_with_ray
from cifnet_pl.cli.sums import make, words_of
from cifnet_pl.model.partial_sums import add_up
from cifnet_pl.model.partition import Shard
from tests.command_line import call
from tests.models import tensors_equal

pytest.importorskip("ray")
pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]
SHARDS = 64


def with_ray(folder: Path, given: list[str]) -> subprocess.CompletedProcess[str]:
    """All shards by a command of its own, of which everything that is printed is seen."""
    words = f"sums --output {folder} --shards {SHARDS} --workers 2"
    return call(*words.split(), *given)


def kill(name: str, folder: Path, killed: list[int]) -> None:
    """Kill the newest process of a name once ten parts are finished; ``killed`` gets its number."""
    while len(list(folder.glob("*.sums"))) < 10:
        time.sleep(0.05)
    while not killed:
        for process in list(psutil.process_iter())[::-1]:
            with suppress(psutil.Error):
                if not killed and name in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(process.pid)
        time.sleep(0.01)


def killing(name: str, folder: Path) -> list[int]:
    """Kill a process of a name beside this test; the list gets its number."""
    killed: list[int] = []
    threading.Thread(target=kill, args=(name, folder, killed), daemon=True).start()
    return killed


def same_bits(folder: Path, here: Path) -> bool:
    """All parts in one folder are those in the other."""
    files = sorted(here.glob("*.sums"))
    return all((folder / file.name).read_bytes() == file.read_bytes() for file in files)


def equals(given: list[str]) -> list[str]:
    """Options as single words."""
    return [f"{name}={value}" for name, value in options_in(given)]


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
    words = words_of(None, equals(given))
    for i in range(1, SHARDS + 1):
        make(folder, words, 1, Shard(i, SHARDS))
    return folder


def test_processes_and_a_killed_worker_end_in_one_model(given, here, tmp_path):
    """A part by a command of its own, as a task of a SLURM array makes it, the others by Ray, which
    loses a worker, against one process.
    """
    part = f"sums --output {tmp_path} --shard 7/{SHARDS}"
    assert call(*part.split(), *given).returncode == 0
    killed = killing("ray::make", tmp_path)
    assert with_ray(tmp_path, given).returncode == 0
    assert killed
    assert same_bits(tmp_path, here)
    assert main(["merge", str(tmp_path), "--output", str(tmp_path / "m")]) == 0
    expected = add_up(sorted(here.glob("*.sums"))).solved()
    assert tensors_equal(cifnet_pl.load(tmp_path / "m").tensors(), expected.tensors())


PORT = 6391


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two nodes of Ray on this machine, which ``cifnet`` joins; each has a GPU, so it says."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = str(Path(sys.executable).with_name("ray"))
    before = {process.pid for process in psutil.process_iter()}
    head = f"--head --port {PORT} --include-dashboard=false"
    try:
        for where in (head, f"--address 127.0.0.1:{PORT}"):
            words = f"start {where} --num-cpus 1 --num-gpus 1 --disable-usage-stats"
            subprocess.run([program, *words.split()], check=True, env=dict(os.environ))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{PORT}")
        yield
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                is_of_ray = "/ray/" in words or "ray::" in words
                if is_of_ray and process.pid not in before:
                    process.kill()


@pytest.mark.parametrize("lost", ["raylet/raylet", "gcs/gcs_server"])
def test_two_nodes(lost, given, here, tmp_path, cluster):
    """One of them killed, or the head: all parts, or one sentence within a minute; then the same
    command makes what is left.
    """
    killed = killing(lost, tmp_path)
    ended = with_ray(tmp_path, given)
    end = time.time()
    assert killed
    finished = len(list(tmp_path.glob("*.sums")))
    if lost == "raylet/raylet":
        assert ended.returncode == 0
        assert finished == SHARDS
    elif ended.returncode:  # else all parts were under way when the head was lost
        assert ended.returncode == 1
        assert "does not answer" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        assert finished >= 10
        last = max(path.stat().st_mtime for path in tmp_path.glob("*.sums"))
        assert end - last < 60
    for i in range(1, SHARDS + 1):
        make(tmp_path, words_of(None, equals(given)), 1, Shard(i, SHARDS))
    assert same_bits(tmp_path, here)


def test_as_many_at_once_as_workers_and_another_try(tmp_path, cluster, capfd):
    """One worker on two nodes, of which each could run one."""

    def flaky(shard: Shard) -> str:
        """Record how many run at once; the first shard fails at first, and the third always."""
        running = tmp_path / f"{shard.index}.running"
        running.touch()
        time.sleep(0.3)
        at_once = len(list(tmp_path.glob("*.running")))
        running.unlink()
        with (tmp_path / "at_once").open("a") as file:
            file.write(f"{at_once}\n")
        tried = tmp_path / f"{shard.index}.tried"
        if shard.index == 3 or (shard.index == 1 and not tried.exists()):
            tried.touch()
            raise OSError("the disk is busy")
        return shard.name

    shards = [Shard(i, 4) for i in range(1, 5)]
    failed = make_with_ray(flaky, shards, Workers(1, 2, 1, 1))
    assert failed == ["shard-3-of-4"]
    at_once = (tmp_path / "at_once").read_text().split()
    assert at_once == ["1"] * (4 + 1 + 2)
    said = capfd.readouterr()
    assert "shard-1-of-4\n" in said.out
    assert "shard-3-of-4 failed: " in said.err
    assert "the disk is busy" in said.err


def test_nothing_at_the_address(given, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    start = time.monotonic()
    ended = with_ray(tmp_path, given)
    assert time.monotonic() - start < 60
    assert ended.returncode == 1
    assert "Ray cluster 127.0.0.1:1 does not answer" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
