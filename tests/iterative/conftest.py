"""Fixtures of all tests of trained methods."""

import pytest
import torch

from tests.iterative.suite import install


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    install(monkeypatch.setitem)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Where others compute too, threads wait for each other longer than these small sums take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
