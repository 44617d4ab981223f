"""A served model that is killed while it changes; set ``KILLS`` for fewer than 200."""

import os
import random
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import httpx
import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.serving.workspace import Workspace
from tests.killing import ended, start
from tests.serving.kills import KEPT, NAMES, assert_versions_whole, rows_of, serves
from tests.serving.services import becomes, image, model, saved
from tests.soak.disks import SmallDisk, small_disk

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(7200),
    pytest.mark.usefixtures("true_fsync"),
]
KILLS = int(os.environ.get("KILLS", "200"))
FOR_EVER = 10**6


@contextmanager
def served(bundle, output, seconds, *options):
    """A service in a process of its own, and what kills it so many seconds after it is ready."""
    words = f"serve --model {bundle} --port 0 --keep_versions {KEPT}".split()
    output.touch()
    process = start(partial(main, [*words, *options]), output)
    # A soak may share its machine.
    ready = partial(becomes, seconds=600)
    assert ready(lambda: not process.is_alive() or "http://" in output.read_text())
    assert process.is_alive(), output.read_text()
    url = re.search(r"http://\S+", output.read_text()).group()
    assert ready(lambda: not process.is_alive() or sent(url, "/health"))
    assert process.is_alive(), output.read_text()
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield url, timer
    finally:
        if timer.interval == FOR_EVER:
            timer.cancel()
            process.kill()
        timer.join()
    assert ended(process) == -signal.SIGKILL, output.read_text()
    assert "Traceback" not in output.read_text()


def sent(url: str, path: str, **content: Any) -> Any:
    """The answer to a request; None if it was refused or nobody answers."""
    try:
        answer = httpx.request(
            "POST" if content else "GET", url + path, timeout=60, **content
        )
    except httpx.HTTPError:
        return None
    if answer.status_code == 200:
        return answer.json()
    return None


def change(url: str, draw: random.Random) -> int | None:
    """Bring and decide images, forget, rename, undo or redo; the version served then, if that was
    acknowledged.
    """
    name = draw.choice(NAMES)
    often = {"learn": 4, "forget": 2, "rename": 1, "undo": 2, "redo": 1}
    (what,) = draw.choices(list(often), list(often.values()))
    bodies: dict[str, Any] = {
        "forget": {"name": name},
        "rename": {"old": name, "new": draw.choice(NAMES)},
    }
    if what == "learn":
        contents = [image(name, draw.randrange(10**6)) for _ in range(3)]
        files = [("files", ("a.png", content)) for content in contents]
        arrived = sent(url, "/inbox", files=files)
        bodies[what] = {"names": dict.fromkeys((arrived or {}).get("images", []), name)}
    path = "/inbox/learn" if what == "learn" else f"/{what}"
    answer = sent(url, path, json=bodies.get(what, {}))
    if answer is None:
        return None
    return int(answer["version"])


class Filler(Thread):
    """Fills the disk now and then, until it is told to end.

    Attributes:
        full: how often the disk was filled.
    """

    def __init__(self, disk: SmallDisk, draw: random.Random):
        super().__init__()
        self.disk = disk
        self.draw = draw
        self.full = 0
        self.done = Event()

    def run(self) -> None:
        """Fill the disk in one of five seconds or so."""
        while not self.done.wait(self.draw.uniform(0, 1)):
            if not self.draw.randrange(4):
                self.disk.fill()
                self.full += 1
                self.done.wait(self.draw.uniform(0, 1))
                self.disk.free()

    def __enter__(self) -> "Filler":
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop, with room on the disk."""
        self.done.set()
        self.join()
        self.disk.free()


@dataclass
class Acknowledged:
    """What the service said that it has.

    Attributes:
        received: files that wait.
        names: classes that were typed for them.
    """

    received: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)

    def send(self, url: str, draw: random.Random) -> None:
        """Send an image that is never learned, and type its class; sometimes purge before."""
        if not draw.randrange(5):
            kind = draw.choice(["forgotten", "all"])
            sent(url, "/purge", json={"images": kind})
        content = image("any", draw.randrange(10**6))
        if sent(url, "/inbox", files=[("files", ("a.png", content))]) is None:
            return
        file = f"{sha256(content).hexdigest()}.png"
        self.received.add(file)
        name = draw.choice(NAMES)
        if sent(url, "/inbox/names", json={"names": {file: name}}) is not None:
            self.names[file] = name


def assert_whole(workspace: Workspace, told: Acknowledged) -> None:
    """All versions and all images that were acknowledged are there."""
    assert_versions_whole(workspace)
    waiting = set(workspace.waiting())
    assert told.received <= waiting
    # As it was typed, whatever became of the class since.
    names = dict(rows_of(workspace.folder, "SELECT file, name FROM inbox"))
    assert told.names.items() <= names.items()


def test_kills_over_http(tmp_path: Path) -> None:
    """After each, the journal holds every acknowledged change in order, and at most one that was
    not acknowledged.

    The disk is small and full now and then, images come into a folder that is watched, and old
    images are purged.
    """
    bundle = saved(tmp_path / "b")
    watched = tmp_path / "watched"
    watched.mkdir()
    with small_disk(tmp_path / "disk", 128) as disk:
        folder = disk.folder / "w"
        options = ("--workspace", str(folder), "--watch", str(watched))
        draw = random.Random(KILLS)
        with served(bundle, tmp_path / "first", FOR_EVER, *options) as (url, _):
            begin = time.monotonic()
            while change(url, draw) is None:
                continue
            # On a busy machine a change takes seconds.
            longest = max(2.0, 2 * (time.monotonic() - begin))
        told = Acknowledged()
        acknowledged = unsaid = full = 0
        stored = len(serves(folder))
        for number in range(KILLS):
            (watched / f"{number}.png").write_bytes(image("watched", number))
            versions: list[int] = []
            if not number % 10:
                disk.fill()
            output = tmp_path / f"output-{number}"
            seconds = draw.uniform(0, longest)
            with served(bundle, output, seconds, *options) as (url, killer):
                disk.free()
                with Filler(disk, random.Random(number)) as filler:
                    while killer.is_alive():
                        version = change(url, draw)
                        versions += [] if version is None else [version]
                        told.send(url, draw)
            full += filler.full
            workspace = Workspace(folder, model(), KEPT)
            seen = serves(folder)
            new = seen[stored:]
            assert new[: len(versions)] == versions, (number, new, versions)
            assert len(new) <= len(versions) + 1
            assert_whole(workspace, told)
            acknowledged += len(versions)
            unsaid += len(new) - len(versions)
            stored = len(seen)
            workspace.close()
        with served(bundle, tmp_path / "last", FOR_EVER, *options):
            assert becomes(
                lambda: set(os.listdir(watched)) <= waiting_paths(folder), seconds=120
            )
    print(
        f"{KILLS} kills; {acknowledged} changes and {len(told.received)} images acknowledged, none"
        f" lost; {KILLS} images of the watched folder came in; {unsaid} changes stored"
        f" but not acknowledged; the disk was full {full} times while it was served"
    )
    assert acknowledged > KILLS // 4
    assert full > KILLS // 10


def waiting_paths(folder: Path) -> set[str]:
    """The paths with which the images of a workspace were sent, that the service has open."""
    return {path for (path,) in rows_of(folder, "SELECT path FROM sent")}
