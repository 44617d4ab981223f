"""What a hostile client sends: the right status, one sentence, and the service goes on."""

import logging
from functools import partial

import httpx
import pytest

from cifnet_pl.serving.gate import Access
from tests.serving.services import PATIENCE, ThreadServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ThreadServer(tmp_path_factory.mktemp("service") / "w") as made:
        yield made


FOREIGN = [{"origin": "http://evil.example"}, {"origin": "null"}]
FOREIGN += [{"sec-fetch-site": "cross-site"}]
HOSTS = ["evil.example", "localhost@evil.example", "", "localhost.evil.example:80"]
FORM = {"content-type": "multipart/form-data"}
XML = {"content-type": "application/xml"}
LARGE = "9" * 20
BAD = [
    ("POST", "/classify", FORM, b"--x", 400, "boundary"),
    ("POST", "/classify", {}, b"not a form", 422, "files"),
    ("GET", "/classify", {}, b"", 405, "Not Allowed"),
    ("GET", "/nothing", {}, b"", 404, "Not Found"),
    ("POST", "/rename", XML, b"<a/>", 422, "wrong: body"),
    ("POST", "/rename", {}, b"{", 422, "wrong: body"),
    ("POST", "/versions/0/serve", {}, b"", 422, "number"),
    ("POST", "/versions/99/serve", {}, b"", 404, "there is no version 99"),
    ("GET", f"/versions/{LARGE}/bundle", {}, b"", 422, "number"),
    ("GET", "/images/..%2f..%2fjournal.sqlite", {}, b"", 404, "Not Found"),
    *(("POST", "/undo", headers, b"", 403, "other sites") for headers in FOREIGN),
    *(("POST", "/undo", {"host": host}, b"", 421, "localhost") for host in HOSTS),
]


@pytest.mark.parametrize("bad", BAD)
def test_bad_requests_get_one_sentence(bad, server, patient):
    method, path, headers, content, status, sentence = bad
    answer = patient.request(method, path, headers=headers, content=content)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert sentence in answer.json()["error"]
    assert server.get("/health") == {"ready": True}


def test_this_machine_and_the_own_page_may_ask(patient):
    own_page = {"host": "localhost", "origin": "http://localhost"}
    for headers in ({"host": "127.0.0.1:9999"}, {"host": "[::1]:80"}, own_page):
        assert patient.get("/classes", headers=headers).status_code == 200


def test_a_token_is_never_written_to_the_log(tmp_path, caplog, monkeypatch):
    """Neither one in the address, nor one in the header, nor that of a fault."""
    monkeypatch.setattr("cifnet_pl.serving.inspection.audited", lambda *args: 1 / 0)
    caplog.set_level(logging.DEBUG)
    token = "correct-horse-battery"
    with ThreadServer(tmp_path / "w", Access(token=token)) as made:
        asked = partial(httpx.get, timeout=PATIENCE)
        bare = asked(f"{made.url}/classes?token={token}")
        header = {"Authorization": f"Bearer {token}"}
        failed = asked(f"{made.url}/audit?token={token}", headers=header)
        assert (bare.status_code, failed.status_code) == (401, 500)
    assert "ZeroDivisionError" in caplog.text
    for record in caplog.records:
        assert "httpx" in record.name or token not in record.getMessage()
