"""Fixtures of all tests of trained methods."""

import pytest

from tests.iterative.suite import install


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    install(monkeypatch.setitem)
