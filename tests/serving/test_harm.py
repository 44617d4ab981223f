"""What would lose images, fill memory or disk, or keep others waiting does not."""

import errno
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

from cifnet_pl.serving import workspace as workspaces
from cifnet_pl.serving.messages import DISK_FULL
from cifnet_pl.utilities.errors import CifnetError
from tests.serving.services import becomes, client, image, images, kept, teach, tree


def received(http, content):
    """Send one image; the names of the files that wait then."""
    answer = http.post("/inbox", files=[("files", ("a.png", content))])
    return answer.json()["images"] if answer.status_code == 200 else []


def test_a_purge_deletes_nothing_that_is_acknowledged(server, patient):
    """Three clients send images while a fourth deletes all that neither waits nor was learned."""
    acknowledged = []
    purging = threading.Event()

    def send(number):
        for i in range(6):
            acknowledged.extend(received(patient, image("blue", 100 * number + i)))

    def purge():
        while not purging.is_set():
            patient.post("/purge", json={"images": "all"})

    purger = threading.Thread(target=purge)
    purger.start()
    with ThreadPoolExecutor(3) as senders:
        list(senders.map(send, range(3)))
    purging.set()
    purger.join()
    assert len(acknowledged) == 18
    assert set(acknowledged) <= tree(server.folder / "images")
    assert len(server.service.workspace.waiting()) == 18


def test_a_purge_leaves_temporary_files_of_others_alone(tmp_path):
    with client(tmp_path / "w") as http:
        received(http, image("blue", 1))
        other = tmp_path / "w" / "images" / ".half-written.tmp"
        other.write_bytes(b"half")
        assert http.post("/purge", json={"images": "all"}).status_code == 200
        assert other.exists()
    with client(tmp_path / "w"):
        assert not other.exists()


def test_while_another_program_holds_the_journal_requests_are_refused(server, patient):
    """Reads and changes answer 507; afterwards all goes on, what waits is embedded, too."""
    other = sqlite3.connect(server.folder / "journal.sqlite", isolation_level=None)
    server.service.workspace._database.execute("PRAGMA busy_timeout = 50")
    other.execute("BEGIN EXCLUSIVE")
    rename = {"old": "red", "new": "a"}
    assert patient.get("/versions").status_code == 507
    assert patient.post("/rename", json=rename).status_code == 507
    assert patient.post("/inbox", files=images("blue", 1)).status_code == 507
    assert patient.post("/classify", files=images("red", 1)).status_code == 200
    other.execute("ROLLBACK")
    assert patient.post("/inbox", files=images("blue", 2)).status_code == 200
    assert becomes(lambda: patient.get("/inbox").json()["seen"] == 2)
    assert patient.post("/rename", json=rename).status_code == 200
    other.close()


# ---------------------------------------------------------------------- full and damaged disks


def test_a_full_disk_can_be_freed_from_the_page(tmp_path, monkeypatch):
    """Changes are refused with 507; purge and undo go on, and take the reserve again."""
    error = OSError(errno.ENOSPC, "No space left on device")
    begin = workspaces.Workspace._transaction

    def write(path, content):
        raise CifnetError("cannot write") from error

    def transaction(workspace):
        """There is room once the reserve is given up."""
        if (workspace.folder / workspaces.RESERVE).exists():
            raise CifnetError("cannot write") from error
        return begin(workspace)

    with client(tmp_path / "w") as http:
        teach(http, images("blue", 3), "blue")
        with monkeypatch.context() as patch:
            patch.setattr(workspaces, "write_bytes", write)
            patch.setattr(workspaces.Workspace, "_transaction", transaction)
            assert http.post("/inbox", files=images("yellow", 1)).status_code == 507
            refused = http.post("/rename", json={"old": "red", "new": "a"})
            assert (refused.status_code, refused.json()["error"]) == (507, DISK_FULL)
            assert http.post("/classify", files=images("red", 1)).status_code == 200
            assert http.post("/undo").status_code == 200
            assert not (tmp_path / "w" / "reserve").exists()
            assert http.post("/purge", json={}).status_code == 200
        assert http.post("/purge", json={}).status_code == 200
    with client(tmp_path / "w"):
        assert (tmp_path / "w" / "reserve").stat().st_size == workspaces.RESERVE_BYTES


def test_downloads_and_uploads_say_that_the_disk_is_full(http, monkeypatch):
    refuse = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("cifnet_pl.serving.app.ZipFile", refuse)
    assert http.get("/versions/1/bundle").status_code == 507
    monkeypatch.setattr("starlette.datastructures.UploadFile.write", refuse)
    assert http.post("/classify", files=images("red", 1)).status_code == 507


def damage(image):
    """Change a kept image on the disk."""
    image.write_bytes(image.read_bytes()[:-20])


def test_damaged_images_are_not_learned_and_do_not_block_forgetting(http, tmp_path):
    """The class is forgotten from the predictions."""
    files = http.post("/inbox", files=images("blue", 5)).json()["images"]
    assert becomes(lambda: http.get("/inbox").json()["seen"] == 5)
    damage(tmp_path / "w" / "images" / files[0])
    names = dict.fromkeys(files, "blue")
    answer = http.post("/inbox/learn", json={"names": {files[0]: "blue"}})
    assert (answer.status_code, "disk" in answer.json()["error"]) == (409, True)
    update = http.post("/inbox/learn", json={"names": names}).json()
    assert (update["learned"], len(update["unreadable"])) == ({"blue": 4}, 1)
    damage(tmp_path / "w" / "images" / kept(http)["blue"][0])
    answer = http.post("/forget", json={"name": "blue"})
    assert (answer.status_code, answer.json()["exact"]) == (200, False)
