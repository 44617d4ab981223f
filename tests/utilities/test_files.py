"""Files are there whole or not at all, a disk that refuses is one sentence; folders of runs."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from cifnet_pl.utilities import files
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.run_folders import images_of_run, versions

pytestmark = pytest.mark.usefixtures("true_fsync")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file with an older content."""
    path = tmp_path / "folder" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(b"old")
    return path


def untouched(target: Path) -> bool:
    """The old content is there, and nothing beside it."""
    return target.read_bytes() == b"old" and os.listdir(target.parent) == [target.name]


def test_new_and_replaced_files(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    files.write_text(path, "ä 🐈\n")
    assert path.read_bytes() == "ä 🐈\n".encode()
    assert os.listdir(path.parent) == ["c.txt"]
    files.write_atomic(target, lambda file: file.write(b"new"))
    assert target.read_bytes() == b"new"
    assert os.listdir(target.parent) == [target.name]


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.expanded("~/a") == Path.home() / "a"
    assert files.expanded("~ of nobody/a") == Path("~ of nobody/a")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for path in ("~", "~/a", Path("~/a")):
        with pytest.raises(UsageError, match="set the variable HOME, or give a path"):
            files.expanded(path)


def test_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "a", "")
    finally:
        assert os.umask(before) == 0o027  # as it was
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a fault")])
def test_failing_writer_leaves_the_old_file(target: Path, error: BaseException) -> None:
    def write(file) -> None:
        file.write(b"half of it")
        raise error

    with pytest.raises(type(error)) as caught:
        files.write_atomic(target, write)
    assert caught.value is error
    assert untouched(target)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_disk_that_refuses_at_the_end(target, call, monkeypatch):
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(os, call, Mock(side_effect=error))
    refused = r"cannot write .*file.bin: Input/output error; nothing was changed"
    with pytest.raises(CifnetError, match=refused):
        files.write_atomic(target, lambda file: file.write(b"new"))
    assert untouched(target)


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_folder_that_cannot_be_flushed_has_the_new_file(target, number, watch):
    """Only an error of the disk is one; some file systems cannot flush folders."""

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    watch(os, "fsync", refuse)
    if number == errno.EIO:
        with pytest.raises(CifnetError, match="Input/output error") as caught:
            files.write_atomic(target, lambda file: file.write(b"new"))
        assert "nothing was changed" not in str(caught.value)
    else:
        files.write_atomic(target, lambda file: file.write(b"new"))
        with files.new_folder(target.parent / "made") as made:
            (made / "file").touch()
        assert (target.parent / "made" / "file").is_file()
    assert target.read_bytes() == b"new"


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_lock_where_the_file_system_has_none(number, target, monkeypatch):
    refusal = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr("fcntl.flock", refusal)
    with files.exclusive(target):
        with (
            pytest.raises(UsageError, match="another process"),
            files.exclusive(target),
        ):
            pass
        files.write_atomic(target, lambda file: file.write(b"new"))
    with files.exclusive(target):
        assert target.read_bytes() == b"new"
    assert os.listdir(target.parent) == [target.name]


def test_a_file_that_another_program_has_open(target, watch, monkeypatch):
    """As Windows treats it: for a moment, and for longer."""
    refusals = [PermissionError(errno.EACCES, "Access is denied")]

    def refuse(*paths: Path) -> None:
        if refusals:
            raise refusals.pop()

    watch(os, "replace", refuse)
    monkeypatch.setattr("time.sleep", Mock())
    files.write_atomic(target, lambda file: file.write(b"new"))
    assert target.read_bytes() == b"new"
    refusals += [PermissionError(errno.EACCES, "Access is denied")] * 10
    with pytest.raises(CifnetError, match="close it in other programs"):
        files.write_atomic(target, lambda file: file.write(b"newer"))
    assert target.read_bytes() == b"new"
    assert os.listdir(target.parent) == [target.name]


def test_strict_json(target: Path) -> None:
    content = {"a": None, "b": [1.5, "ü"]}
    files.write_json(target, content)
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(target, {"a": float("nan")})
    assert json.loads(target.read_bytes()) == content


def test_versions_are_numbers_in_their_order(tmp_path: Path):
    for name in ("version_10", "version_9", "version_\u00b2", "version_x", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in versions(tmp_path)] == ["version_9", "version_10"]
    assert versions(tmp_path / "absent") == []


def test_the_images_of_a_run_are_found_from_within_it(cwd: Path, monkeypatch):
    run = cwd / "version_3"
    (run / "checkpoints").mkdir(parents=True)
    config = "data: {source: folder, root: photos}\n"
    (run / "config.yaml").write_text(config)
    for place in ("version_3", "version_3/model", "version_3/checkpoints/last.ckpt"):
        assert images_of_run(Path(place)) == "photos"
    (cwd / "config.yaml").write_text(config.replace("photos", "others"))
    assert images_of_run(Path("model")) is None
    monkeypatch.chdir(run)
    assert images_of_run(Path("checkpoints/last.ckpt")) == "photos"


@pytest.mark.parametrize("name", ["a" * 255, "ä" * 127])
def test_names_as_long_as_the_system_allows(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with files.exclusive(path):
        files.write_text(path, "new")
        with pytest.raises(UsageError, match="another process"), files.exclusive(path):
            pass
        with files.exclusive(tmp_path / f"b{name[1:]}"):
            pass
    assert os.listdir(tmp_path) == [name]


def test_what_a_killed_process_left_is_removed(tmp_path: Path):
    """By the next that writes there; of files that a living process writes, none. Its lock is not
    held by a process that it forked, as those that decode images.
    """
    code = (
        "import os, signal, sys, time; from pathlib import Path;"
        "from cifnet_pl.utilities.files import exclusive, write_atomic;"
        "kill = lambda file: os.kill(os.getpid(), signal.SIGKILL);"
        "path = Path(sys.argv[1]); lock = exclusive(path); lock.__enter__();"
        "forked, begun = os.pipe();"
        "os.fork() or (os.write(begun, b'1'), time.sleep(5), os._exit(0));"
        "os.read(forked, 1); write_atomic(path, kill)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "1.sums")])
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    foreign = tmp_path / ".other.lock"
    foreign.touch()

    def write(file) -> None:
        files.remove_leftovers(tmp_path)
        assert len(list(tmp_path.glob(".*.tmp"))) == 1

    with files.exclusive(tmp_path / "2.sums"):
        files.write_atomic(tmp_path / "2.sums", write)
    assert sorted(tmp_path.iterdir()) == [foreign, tmp_path / "2.sums"]
