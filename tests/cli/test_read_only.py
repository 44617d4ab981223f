"""Folders that may not be written or read: one sentence, no exit code 0, and nothing is left."""

import ctypes
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from tests.command_line import make_images
from tests.killing import in_a_process
from tests.models import learned

pytestmark = pytest.mark.system
CAPABILITY_VERSION = 0x20080522
WRITES_ANYWHERE = (1 << 1) | (1 << 2) | (1 << 3)
"""Bits of a process that ignores the permissions of files (Linux, capabilities(7))."""

FIT = "fit --model.backbone pixels:8 --data.image_size 8 --data.num_workers 0"
FIT += " --energy.enabled false --model.head RidgeHead"


def give_up_privileges() -> None:
    """Obey the permissions of files, as any user but root does."""
    if os.geteuid() != 0:
        return
    system = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)  # of this process
    # Effective, permitted, inheritable; then their upper halves.
    bits = (ctypes.c_uint32 * 6)()
    assert system.capget(ctypes.byref(header), bits) == 0
    for kind in range(3):
        bits[kind] &= ~WRITES_ANYWHERE
    assert system.capset(ctypes.byref(header), bits) == 0


def as_a_user(folder: Path, *words: str) -> int:
    """Run a command in a folder without the privileges of root."""
    give_up_privileges()
    os.chdir(folder)
    os.environ["CIFNET_CACHE"] = str(folder / "cache")
    return main(list(words))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Images, a model, and folders that nobody may write."""
    make_images(tmp_path / "images", ["ant", "bee"], 6)
    make_images(tmp_path / "new", ["yak"], 40)
    learned("acil").save(tmp_path / "model")
    learned("acil").save(tmp_path / "half")
    (tensors,) = (tmp_path / "half").glob("tensors-*")
    tensors.chmod(0o000)
    for name in ("here", "here/cache", "other", "shut"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "predictions.csv").write_text("old")
    read_only = ["here", "here/cache", "other", "model"]
    for name in read_only:
        (tmp_path / name).chmod(0o555)
    (tmp_path / "shut").chmod(0o000)
    yield tmp_path
    for name in (*read_only, "shut"):
        (tmp_path / name).chmod(0o755)


def contents(place: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and time of all files and folders."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.name != "output" and "logs" not in path.parts:
            status = path.lstat()
            size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
            found[path] = (size, status.st_mtime_ns)
    return found


LEARN = f"{FIT} --data.root {{}}/images"
EXTEND = "extend --model {}/model --images {}/new --overwrite true --output {}/model"
CACHE = "--data.cache true --data.cache_folder {}/other"
CLASSIFY = "classify --model {}/model --images {}/new --overwrite true --output {}"
COMMANDS = {
    "fit in the current folder": LEARN,
    "fit with a cache": f"{LEARN} {CACHE} --logs {{}}/logs",
    "extend the model itself": EXTEND,
    "classify into a folder": f"{CLASSIFY}/other/a.csv",
    "classify over a file": f"{CLASSIFY}/here/predictions.csv",
    "serve": "serve --model {}/model --port 0 --workspace {}/other/w",
    "a model": "info --model {}/shut/model",
    "images": "classify --model {}/model --images {}/shut/new --output {}/out.csv",
    "an output": f"{CLASSIFY}/shut/out.csv",
    "images to learn": f"{FIT} --data.root {{}}/shut --logs {{}}/logs",
    "a configuration": "fit --config {}/shut/a.yaml",
    "a sweep": "sweep {}/shut/a.yaml --logs {}/logs",
    "a file of a model": "info --model {}/half",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_may_not_be_written_or_read(name: str, place: Path) -> None:
    """The sentence names what cannot be read, and not the output that waits for it."""
    before = contents(place)
    words = [word.format(place) for word in COMMANDS[name].split()]
    output = place / "output"
    work = partial(as_a_user, place / "here", *words)
    code = in_a_process(work, output)
    said = output.read_text()
    assert code not in (0, 99), said
    assert "Traceback" not in said
    sentence = said.splitlines()[-1]
    assert "ermission denied" in sentence
    for unreadable in ("shut", "half"):
        is_meant = f"{{}}/{unreadable}" in COMMANDS[name]
        assert (f"{place / unreadable}" in sentence) == is_meant
    assert contents(place) == before
