"""Commands, runs, sweeps and the building of a cache, each killed at random moments."""

import os
import random
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.model.bundle import CONFIG
from tests.cli.test_sweep import FAST, write
from tests.command_line import (
    BUFFER,
    assert_same_model,
    command,
    environment,
    learned,
    make_images,
    measurements,
)
from tests.command_line import fit as learn
from tests.killing import in_a_process, killed_within
from tests.models import learned as model
from tests.models import tensors_equal

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("true_fsync"),
]
KILLS = 20


def assert_same(output: Path, other: Path) -> None:
    """Two tables are the same, or two bundles hold the same model, bit for bit."""
    if output.is_file():
        assert output.read_bytes() == other.read_bytes()
        return
    ours = cifnet_pl.load(output)
    theirs = cifnet_pl.load(other)
    assert ours.class_names == theirs.class_names
    assert tensors_equal(ours.tensors(), theirs.tensors())


@pytest.mark.parametrize("name", ["export", "extend", "forget", "merge", "classify"])
def test_a_command(name: str, tmp_path: Path):
    """There is what was there before, or the whole new output; trying again gives the same."""
    model("acil").save(tmp_path / "b")
    model("acil", [["gnu"], ["hen", "ibis"]]).save(tmp_path / "other")
    make_images(tmp_path / "new", ["yak", "zebu"], 40)
    one = ["--model", str(tmp_path / "b")]
    options = {
        "export": one,
        "extend": [*one, "--images", str(tmp_path / "new")],
        "forget": [*one, "--class", "ant"],
        "merge": [str(tmp_path / "b"), str(tmp_path / "other")],
        "classify": [*one, "--images", str(tmp_path / "new")],
    }[name]
    expected = tmp_path / "expected"
    output = tmp_path / "output"

    def work(target: Path) -> partial[int]:
        words = [name, *options, "--output", str(target), "--overwrite", "true"]
        return partial(main, words)

    assert in_a_process(work(expected), output) == 0, output.read_text()
    begin = time.monotonic()
    assert in_a_process(work(tmp_path / "again"), output) == 0
    seconds = time.monotonic() - begin
    chance = random.Random(name)
    codes = []
    for number in range(KILLS):
        target = tmp_path / f"{number}"
        if number % 2:  # something is there already
            copy = shutil.copytree if expected.is_dir() else shutil.copy
            copy(expected, target)
        duration = chance.uniform(0, 1) * seconds
        codes.append(killed_within(duration, work(target), output))
        if target.is_file() or (target / CONFIG).exists():
            assert_same(target, expected)
        assert in_a_process(work(target), output) == 0, output.read_text()
        assert_same(target, expected)
    assert codes.count(-signal.SIGKILL) > KILLS // 4


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("head", ["CIFNetHead", "RidgeHead"])
def test_a_run(head: str, seed: int, tmp_path: Path):
    """It ends as if nothing had happened, killed twice on its way."""
    draw = random.Random(seed)
    options = [*BUFFER, "--data.batch_size", "4", "--seed_everything", "5"]
    options += ["--data.num_workers", str(seed % 2), "--model.head", head]
    begin = time.monotonic()
    run = learned(tmp_path / "reference", *options)
    seconds = time.monotonic() - begin
    work = partial(learn, tmp_path / "killed", *options, "--ckpt_path", "last")
    for _ in range(2):
        killed_within(draw.uniform(0, seconds), work, tmp_path / "output")
    assert work() == 0
    newest = max(
        (tmp_path / "killed" / "default").iterdir(),
        key=lambda path: (path / "summary.json").is_file(),
    )
    assert_same_model(newest, run)
    assert measurements(newest) == measurements(run)
    assert os.listdir(newest / "checkpoints") == ["last.ckpt"]


def test_a_sweep(tmp_path: Path):
    """Killed again and again on its way through two points, of which each goes on where it was."""
    path = write(tmp_path, fixed={**FAST, "data.classes_per_task": 2}, seeds=[3, 4])
    words = ["sweep", str(path), "--logs"]
    finished = command(*words, str(tmp_path / "expected"))
    assert subprocess.run(finished, env=environment()).returncode == 0
    chance = random.Random(0)
    logs = tmp_path / "logs"
    for _ in range(KILLS):
        options = {"env": environment(), "start_new_session": True}
        process = subprocess.Popen(command(*words, str(logs)), **options)
        time.sleep(chance.uniform(3, 14))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for summary in sorted(logs.glob("*/version_0/summary.json")):
            run = summary.parent
            expected = tmp_path / "expected" / run.parent.name / run.name
            assert measurements(run) == measurements(expected)
    assert subprocess.run(command(*words, str(logs)), env=environment()).returncode == 0
    for expected in (tmp_path / "expected").glob("*/version_0"):
        run = logs / expected.parent.name / "version_0"
        assert_same_model(run, expected)
        assert measurements(run) == measurements(expected)


def test_the_building_of_a_cache(tmp_path: Path):
    """What is there of it is right, however often its builder died; the run that uses it ends
    bit-identical.
    """
    images = make_images(tmp_path / "images", list("abcdefgh"), 30)
    line = f"--data.source folder --data.root {images} --model.head RidgeHead"
    options = [*line.split(), "--data.batch_size", "4"]
    cache = f"--data.cache true --data.cache_folder {tmp_path}/cache"
    cached = [*options, *cache.split()]
    expected = learned(tmp_path / "expected", *options)
    output = tmp_path / "output"
    work = partial(learn, tmp_path / "timed", *options)
    begin = time.monotonic()
    assert in_a_process(work, output) == 0, output.read_text()
    seconds = time.monotonic() - begin
    chance = random.Random(1)
    codes = []
    for number in range(KILLS):
        if number == KILLS // 2:
            shutil.rmtree(tmp_path / "cache")  # from nothing once more
        work = partial(learn, tmp_path / f"{number}", *cached)
        codes.append(killed_within(chance.uniform(0, 1) * seconds, work, output))
    assert codes.count(-signal.SIGKILL) > KILLS // 4
    for name in ("built", "used"):
        run = learned(tmp_path / name, *cached)
        assert_same_model(run, expected)
        assert measurements(run) == measurements(expected)
