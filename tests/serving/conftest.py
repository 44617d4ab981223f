"""A browser and a service for the tests of the page."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.serving.services import PATIENCE, ThreadServer, client


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium; only tests of modules that import `browsing` ask for it."""
    from tests.serving.browsing import ARGS, CHROMIUM, sync_api

    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=CHROMIUM, args=ARGS, timeout=1000 * PATIENCE
        )
        yield made
        made.close()


@pytest.fixture
def http(tmp_path) -> Iterator[TestClient]:
    """A client of a service in this process, which knows red and green."""
    with client(tmp_path / "w") as made:
        yield made


@pytest.fixture
def server(tmp_path) -> Iterator[ThreadServer]:
    """A service that knows red and green."""
    with ThreadServer(tmp_path / "w") as made:
        yield made
