"""Kills, rivals and full disks: nothing half-written is ever read as whole, and trying again gives
the same result.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.model.bundle import CONFIG
from cifnet_pl.model.store import load_bundle
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.files import exclusive, new_folder
from tests.command_line import assert_ends, make_images
from tests.killing import at_call, in_a_process, kill_self, start
from tests.models import learned

pytestmark = pytest.mark.usefixtures("true_fsync")

STEPS = ["replace", "fsync", "unlink", "mkdir"]
"""Functions of ``os`` through which every write goes."""

NEW = "ncm"
"""The head of the bundle that is written over another one."""


def content(folder: Path) -> dict[str, bytes]:
    """The files of a bundle that a reader sees."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.startswith(".")
    }


def write(step: str, number: int, target: Path) -> int:
    """Save a bundle and die at call ``number`` of a function of ``os``."""
    new = learned(NEW)
    setattr(os, step, at_call(number, getattr(os, step), kill_self))
    new.save(target, overwrite=True)
    return 0


@pytest.mark.parametrize(
    ("step", "old"), [("replace", False), *((step, True) for step in STEPS)]
)
def test_killed_at_every_step_of_a_write(step: str, old: bool, tmp_path: Path):
    new = learned(NEW)
    before = learned("ridge")
    new.save(tmp_path / "expected")
    for number in range(1, 20):
        target = tmp_path / f"{number}"
        if old:
            before.save(target)
        code = in_a_process(partial(write, step, number, target), tmp_path / "output")
        assert code in (0, -signal.SIGKILL), (tmp_path / "output").read_text()
        if old or (target / CONFIG).exists():
            assert type(load_bundle(target).head) in (type(new.head), type(before.head))
        else:
            with pytest.raises(CheckpointError, match="not a bundle"):
                load_bundle(target)
        new.save(target, overwrite=True)  # nothing that is left lies in the way
        assert content(target) == content(tmp_path / "expected")
        assert sorted(path.name for path in target.iterdir()) == sorted(content(target))
        if code == 0:
            break
    else:
        raise AssertionError("the write has more steps than were tried")


def hold(target: Path, ready: Path) -> int:
    """Take the lock of ``target``, say so and keep it."""
    with exclusive(target):
        ready.touch()
        time.sleep(600)
    return 0


def hold_with_a_worker(target: Path, ready: Path) -> int:
    """The same, with a forked process as those that decode images."""
    with exclusive(target):
        get_context("fork").Process(target=time.sleep, args=(5,)).start()
        ready.touch()
        time.sleep(600)
    return 0


def test_what_a_killed_writer_leaves_running_does_not_hold_its_place(tmp_path: Path):
    writer = another_writer(tmp_path / "b", tmp_path, hold_with_a_worker)
    with (
        writer,
        pytest.raises(UsageError, match="another process"),
        exclusive(tmp_path / "b"),
    ):
        pass
    with exclusive(tmp_path / "b"):
        pass


@contextmanager
def another_writer(
    target: Path, folder: Path, work: Callable[[Path, Path], int] = hold
) -> Iterator[None]:
    """A process that is writing ``target``, killed at the end."""
    ready = folder / "ready"
    process = start(partial(work, target, ready), folder / "output")
    while not ready.exists():
        assert process.is_alive(), (folder / "output").read_text()
        time.sleep(0.01)
    try:
        yield
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("name", ["forget", "classify"])
def test_the_second_writer_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of a bundle and of a table."""
    learned("ridge").save(tmp_path / "b")
    make_images(tmp_path / "new", ["yak"], 2)
    target = tmp_path / "out"
    options = {
        "forget": ["--class", "ant"],
        "classify": ["--images", f"{tmp_path}/new"],
    }
    model = ["--model", str(tmp_path / "b"), "--output", str(target)]
    given_options = [name, *options[name], *model]
    with another_writer(target, tmp_path):
        assert_ends(
            main(given_options), 2, f"another process is writing {target}", capsys
        )
        assert not target.exists()
    # The process is gone, and its lock with it.
    assert main(given_options) == 0
    assert not list(tmp_path.glob(".*.lock"))


def test_a_bundle_in_the_folder_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learned("ridge").save(tmp_path / "b")
    (tmp_path / "here" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "inner")
    assert main(["export", "--model", str(tmp_path / "b"), "--output", "."]) == 0
    assert main(["info", "--model", "."]) == 0
    assert sorted(os.listdir(tmp_path)) == ["b", "here"]
    with (
        exclusive(Path()),
        pytest.raises(UsageError, match="another process"),
        exclusive(Path.cwd()),
    ):
        pass


def test_a_link_that_leads_nowhere_is_no_place_for_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    learned("ridge").save(tmp_path / "b")
    (tmp_path / "link").symlink_to("nowhere")
    words = ["export", "--model", str(tmp_path / "b"), "--output"]
    assert_ends(
        main([*words, str(tmp_path / "link")]),
        2,
        "expected a folder for the bundle",
        capsys,
    )


def test_a_lock_is_given_back(tmp_path: Path):
    target = tmp_path / "deep" / "out"
    with (
        exclusive(target),
        pytest.raises(UsageError, match="another process"),
        exclusive(target),
    ):
        pass
    with pytest.raises(KeyError), exclusive(target):
        raise KeyError
    with exclusive(target):
        pass
    assert list((tmp_path / "deep").iterdir()) == []


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Writes past ``limit`` bytes of a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learned("ridge").save(tmp_path / "b")
    make_images(tmp_path / "new", ["yak"], 60)
    (tmp_path / "old.csv").write_text("mine")
    learned("ncm").save(tmp_path / "old")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    model = f"--model {tmp_path}/b --overwrite true --output"
    with full_disk(100):
        for arguments in (
            f"classify --images {tmp_path}/new {model} {tmp_path}/old.csv",
            f"extend --images {tmp_path}/new {model} {tmp_path}/old",
            f"extend --images {tmp_path}/new {model} {tmp_path}/fresh",
            f"forget --class ant {model} {tmp_path}/old",
            f"unpack --source digits --output {tmp_path}/digits",
        ):
            assert main(arguments.split()) == 1
            errors = capsys.readouterr().err.splitlines()[-1]
            assert errors.startswith("cifnet: error: cannot write ")
            assert "File too large; nothing was changed" in errors
    assert {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == before
    assert not (tmp_path / "fresh").exists()


def test_a_new_folder_is_there_whole_or_not_at_all(tmp_path: Path):
    with suppress(KeyError), new_folder(tmp_path / "f") as folder:
        (folder / "a").touch()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "f") as folder:
        (folder / "a").touch()
        assert not (tmp_path / "f").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["a"]
