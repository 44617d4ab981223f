"""A browser and services for these tests."""

import sqlite3
from functools import partial

import httpx
import pytest

from tests.serving.services import PATIENCE, ThreadServer, client


class QuickJournal(sqlite3.Connection):
    """A journal that does not wait for the disk, as no test cuts the power."""

    def executescript(self, script):
        return super().executescript(script.replace("FULL", "OFF"))


@pytest.fixture(autouse=True, scope="module")
def quick_journals():
    with pytest.MonkeyPatch.context() as patch:
        quick = partial(sqlite3.connect, factory=QuickJournal)
        patch.setattr(sqlite3, "connect", quick)
        yield


@pytest.fixture(scope="module")
def browser():
    """Chromium; only tests of modules that import `browsing` ask for it."""
    from tests.serving.browsing import ARGS, CHROMIUM, sync_api

    with sync_api.sync_playwright() as playwright:
        options = {"executable_path": CHROMIUM, "timeout": 1000 * PATIENCE}
        made = playwright.chromium.launch(args=ARGS, **options)
        yield made
        made.close()


@pytest.fixture
def http(tmp_path):
    """A client of a service in this process, which knows red and green."""
    with client(tmp_path / "w") as made:
        yield made


@pytest.fixture
def server(tmp_path):
    """A service that knows red and green."""
    with ThreadServer(tmp_path / "w") as made:
        yield made


@pytest.fixture
def patient(server):
    """A client of the server, which waits for it as long as a busy machine needs."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as made:
        yield made
