"""What would lose images, fill memory or disk, or keep others waiting does not."""

from __future__ import annotations

import errno
import socket
import sqlite3
import threading
import time
import zipfile
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from cifnet_pl.serving import journal, slow_clients
from cifnet_pl.serving import workspace as workspaces
from cifnet_pl.serving.fair_queue import FairQueue, Requester
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.serving.uploads import Limits, uploads
from cifnet_pl.serving.workspace import Workspace
from cifnet_pl.utilities.errors import CifnetError, UsageError
from tests.serving.services import (
    as_png,
    becomes,
    client,
    image,
    images,
    kept,
    model,
    teach,
    tree,
)


def received(http, content: bytes) -> list[str]:
    """Send one image; the names of the files that wait then."""
    answer = http.post("/inbox", files=[("files", ("a.png", content))])
    return answer.json()["images"] if answer.status_code == 200 else []


def test_a_purge_deletes_nothing_that_is_acknowledged(server):
    """Three clients send images while a fourth deletes all that neither waits nor was learned."""
    acknowledged: list[str] = []
    purging = threading.Event()

    def send(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            for i in range(40):
                acknowledged.extend(received(http, image("blue", 1000 * number + i)))

    def purge() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not purging.is_set():
                http.post("/purge", json={"images": "all"})

    senders = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    purger = threading.Thread(target=purge)
    for thread in (purger, *senders):
        thread.start()
    for thread in senders:
        thread.join()
    purging.set()
    purger.join()
    assert len(acknowledged) == 120
    assert set(acknowledged) <= tree(server.folder / "images")
    assert len(server.service.workspace.waiting()) == 120


def test_a_purge_leaves_temporary_files_of_others_alone(tmp_path):
    with client(tmp_path / "w") as http:
        received(http, image("blue", 1))
        other = tmp_path / "w" / "images" / ".half-written.tmp"
        other.write_bytes(b"half")
        assert http.post("/purge", json={"images": "all"}).status_code == 200
        assert other.exists()
    with client(tmp_path / "w"):
        assert not other.exists()


def zipped_by(method: int, content: bytes) -> bytes:
    """A zip file whose entry is packed by a method."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("a.png", content)
    return out.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_files_that_unpack_without_a_bound_are_refused(method):
    content = zipped_by(method, image("red", 1))
    with pytest.raises(RequestError, match="deflate") as refusal:
        list(uploads([("a.zip", BytesIO(content))], Limits()))
    assert refusal.value.status == 422


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_files_of_ordinary_programs_are_read(method):
    content = zipped_by(method, image("red", 1))
    ((_, found),) = uploads([("a.zip", BytesIO(content))], Limits())
    assert found == image("red", 1)


def test_while_another_program_holds_the_journal_requests_are_refused(
    server, monkeypatch
):
    """Reads and changes answer 503; afterwards all goes on, what waits is embedded, too."""
    other = sqlite3.connect(server.folder / "journal.sqlite", isolation_level=None)
    server.service.workspace._journal._database.execute("PRAGMA busy_timeout = 50")
    with httpx.Client(base_url=server.url, timeout=60) as http:
        other.execute("BEGIN EXCLUSIVE")
        answers = [
            http.get("/versions"),
            http.post("/rename", json={"old": "red", "new": "a"}),
            http.post("/inbox", files=images("blue", 1)),
        ]
        assert [answer.status_code for answer in answers] == [503] * 3
        assert http.post("/classify", files=images("red", 1)).status_code == 200
        other.execute("ROLLBACK")
        assert http.post("/inbox", files=images("blue", 2)).status_code == 200
        assert becomes(lambda: http.get("/inbox").json()["seen"] == 2)
        assert http.post("/rename", json={"old": "red", "new": "a"}).status_code == 200
    other.close()
    assert journal.PATIENCE_SECONDS < 60


def test_json_has_a_limit_of_its_own(http):
    body = b'{"name": "' + b"x" * 2**23 + b'"}'
    answer = http.post(
        "/forget",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert (answer.status_code, "4 MiB" in answer.json()["error"]) == (413, True)


def test_more_files_than_starlette_allows(server):
    """As many as the limits say; one more is refused."""
    content = image("red", 1)
    files = [("files", (f"{i}.png", content)) for i in range(1001)]
    answer = httpx.post(f"{server.url}/inbox", files=files, timeout=60)
    assert (answer.status_code, answer.json()["known"]) == (200, 1000)


def test_two_lengths_are_refused(server):
    chunks = iter([b"{}"])
    headers = {"content-length": "2", "transfer-encoding": "chunked"}
    answer = httpx.post(f"{server.url}/undo", content=chunks, headers=headers)
    assert answer.status_code == 400


def test_a_second_server_does_not_start_where_the_lock_file_was_deleted(tmp_path):
    first = Workspace(tmp_path / "w", model())
    for lock in tmp_path.glob("w/.*.lock"):
        lock.unlink()
    with pytest.raises(UsageError, match="another process"):
        Workspace(tmp_path / "w", model())
    first.close()
    Workspace(tmp_path / "w", model()).close()


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\u2069"])
def test_marks_of_text_direction_are_no_part_of_class_names(http, mark):
    answer = teach(http, images("blue", 1), f"a{mark}b")
    assert answer.status_code == 422


BEGINNINGS = [
    b"",
    b"GET /health HTTP/1.1\r\nHost: ",
    b"GET /health HTTP/1.1\r\nHost: a\r\nx: ",
]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_headers_that_never_end_do_not_hold_a_connection(
    server, beginning, monkeypatch
):
    monkeypatch.setattr(slow_clients, "HEADER_SECONDS", 0.5)
    address = urlsplit(server.url)
    place = (address.hostname, address.port)
    with server.paused():
        slow = socket.create_connection(place, 60)
        slow.sendall(beginning)
    with slow:
        assert slow.recv(100) == b""
    with server.paused():
        again = socket.create_connection(place, 60)
        again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with again:
        assert again.recv(10_000).startswith(b"HTTP/1.1 200")
        again.sendall(beginning or b"G")
        while again.recv(10_000):
            continue


@pytest.mark.parametrize("jump", [-400 * 86_400, 3 * 86_400])
def test_a_clock_that_jumps_loses_nothing(tmp_path, monkeypatch, jump):
    """Images that were taken away can be put back, images of the folder come in, updates go on."""
    with client(tmp_path / "w") as http:
        files = [received(http, image("blue", number))[0] for number in range(4)]
        http.post("/inbox/remove", json={"images": files[:1]})
    now = time.time
    monkeypatch.setattr(workspaces.time, "time", lambda: now() + jump)
    with client(tmp_path / "w") as http:
        assert set(files) <= tree(tmp_path / "w" / "images")
        back = {"images": files[:1]}
        assert http.post("/inbox/remove?back=true", json=back).json()["waiting"] == 4
        names = dict.fromkeys(files, "blue")
        assert http.post("/inbox/learn", json={"names": names}).status_code == 200
        assert http.post("/undo").status_code == 200
        assert http.get("/inbox").json()["waiting"] == 4


# ---------------------------------------------------------------------- fair shares


def test_clients_take_turns_by_the_time_they_used():
    queue: FairQueue[str] = FairQueue()
    for i in range(3):
        queue.put(Requester("greedy", 1), f"greedy {i}")
    order = [queue.next_item()[1]]
    queue.charge(Requester("greedy", 1), 5.0)
    queue.put(Requester("modest", 2), "modest 0")
    queue.put(Requester("greedy", 3), "greedy, another request")
    for _ in range(4):
        requester, item = queue.next_item()
        queue.charge(requester, 1.0)
        order.append(item)
    assert order[0] == "greedy 0"
    assert order.index("modest 0") <= 2
    assert order.index("greedy, another request") < order.index("greedy 2")
    with pytest.raises(IndexError):
        queue.next_item()
    assert not queue._client_seconds
    assert not queue._request_seconds


def test_a_small_image_does_not_wait_for_forty_large_ones(server, monkeypatch):
    """One client sends large images; another one, with a single image, is served in between.

    The first large images take until the small one waits behind all others, and those that are
    begun after them take until the small one is answered.
    """
    large = as_png(np.zeros((300, 300, 3), np.uint8))
    answering = server.service.answering
    decode = answering.decode
    small_waits, small_is_answered = threading.Event(), threading.Event()
    answers: dict[str, httpx.Response] = {}

    def slow(content: bytes) -> tuple[np.ndarray, str]:
        if content == large:
            (small_is_answered if small_waits.is_set() else small_waits).wait(120)
        return decode(content)

    def ask(name: str, files: list[tuple[str, tuple[str, bytes]]]) -> threading.Thread:
        def post() -> None:
            url = f"{server.url}/classify"
            answers[name] = httpx.post(url, files=files, timeout=240)

        thread = threading.Thread(target=post)
        thread.start()
        return thread

    monkeypatch.setattr(answering, "decode", slow)
    greedy = ask("greedy", [("files", (f"{i}.png", large)) for i in range(40)])
    assert becomes(lambda: answering.under_way == 40)
    modest = ask("modest", images("red", 1))
    assert becomes(lambda: answering.under_way == 41)
    small_waits.set()
    modest.join(60)
    was_answered_first = list(answers) == ["modest"]
    small_is_answered.set()
    for thread in (modest, greedy):
        thread.join(60)
    assert was_answered_first
    assert [answer.status_code for answer in answers.values()] == [200, 200]


# ---------------------------------------------------------------------- full and damaged disks


class FullDisk:
    """A disk that has room again once the reserve of a workspace is given up."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.reserve = folder / workspaces.RESERVE
        self._write = workspaces.write_bytes
        self.error = OSError(errno.ENOSPC, "No space left on device")
        self._begin = journal.Journal.transaction
        monkeypatch.setattr(workspaces, "write_bytes", self.write)
        monkeypatch.setattr(
            journal.Journal, "transaction", lambda database: self.transaction(database)
        )

    def write(self, path: Path, content: bytes) -> None:
        """Refuse to write."""
        raise CifnetError("cannot write") from self.error

    def transaction(self, database):
        """Refuse a transaction unless the reserve was given up."""
        if self.reserve.exists():
            raise CifnetError("cannot write") from self.error
        return self._begin(database)


def test_a_full_disk_can_be_freed_from_the_page(tmp_path, monkeypatch):
    """Images are refused with 507; purge and undo go on, and take the reserve again afterwards."""
    with client(tmp_path / "w") as http:
        teach(http, images("blue", 3), "blue")
        with monkeypatch.context() as patch:
            FullDisk(tmp_path / "w", patch)
            assert http.post("/inbox", files=images("yellow", 1)).status_code == 507
            assert http.post("/undo").status_code == 200
            assert not (tmp_path / "w" / "reserve").exists()
            assert http.post("/purge", json={}).status_code == 200
        assert http.post("/purge", json={}).status_code == 200
    with client(tmp_path / "w"):
        assert (tmp_path / "w" / "reserve").stat().st_size == workspaces.RESERVE_BYTES


def test_downloads_and_uploads_say_that_the_disk_is_full(http, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cifnet_pl.serving.api.shutil.make_archive", refuse)
    assert http.get("/versions/1/bundle").status_code == 507
    monkeypatch.setattr("starlette.datastructures.UploadFile.write", refuse)
    assert http.post("/classify", files=images("red", 1)).status_code == 507


def damage(folder: Path, name: str) -> None:
    """Change a kept image on the disk."""
    content = (folder / "images" / name).read_bytes()
    (folder / "images" / name).write_bytes(content[:-20])


def test_a_damaged_image_does_not_block_forgetting(tmp_path):
    """The class can be forgotten from the predictions, once someone says so."""
    with client(tmp_path / "w") as http:
        teach(http, images("blue", 4), "blue")
        damage(tmp_path / "w", kept(http)["blue"][0])
        assert http.post("/forget", json={"name": "blue"}).status_code == 409
        answer = http.post("/forget?anyway=true", json={"name": "blue"})
        assert (answer.status_code, answer.json()["exact"]) == (200, False)


def test_images_that_are_gone_or_changed_are_not_learned(tmp_path):
    with client(tmp_path / "w") as http:
        files = http.post("/inbox", files=images("blue", 5)).json()["images"]
        assert becomes(lambda: http.get("/inbox").json()["seen"] == 5)
        damage(tmp_path / "w", files[0])
        answer = http.post(
            "/inbox/learn", json={"names": dict.fromkeys(files[:1], "blue")}
        )
        assert (answer.status_code, "disk" in answer.json()["error"]) == (409, True)
        update = http.post(
            "/inbox/learn", json={"names": dict.fromkeys(files, "blue")}
        ).json()
        assert (update["learned"], len(update["unreadable"])) == ({"blue": 4}, 1)
