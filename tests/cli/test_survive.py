"""Kills, rivals, full disks: nothing half-written is read; trying again gives the same result."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.model.bundle import CONFIG
from cifnet_pl.model.store import load_bundle
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.files import exclusive
from tests.command_line import assert_ends, make_images
from tests.killing import at_call, full_disk, in_a_process, kill_self
from tests.models import learned

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


@pytest.mark.parametrize("command", ["forget --class ant", "classify --images new"])
def test_the_second_writer_is_refused(command, cwd, capsys):
    """Of a bundle and of a table."""
    learned("ridge").save(Path("b"))
    make_images(Path("new"), ["yak"], 2)
    words = f"{command} --model b --output out".split()
    with exclusive(Path("out")):
        assert_ends(main(words), 2, "another process is writing out", capsys)
        assert not Path("out").exists()
    assert main(words) == 0
    assert not list(cwd.glob(".*.lock"))


def test_a_bundle_in_the_folder_where_one_is(tmp_path, monkeypatch):
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


def test_a_link_that_leads_nowhere_is_no_place_for_a_bundle(tmp_path, capsys):
    learned("ridge").save(tmp_path / "b")
    (tmp_path / "link").symlink_to("nowhere")
    words = f"export --model {tmp_path}/b --output {tmp_path}/link".split()
    assert_ends(main(words), 2, "expected a folder for the bundle", capsys)


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
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path: path.read_bytes() for path in files} == before
    assert not (tmp_path / "fresh").exists()
