"""One thread for matrices as tiny as those of the head tests: several only wait for each other."""

from collections.abc import Iterator

import pytest
import sklearn.linear_model  # noqa: F401  (loads the thread pools that are limited below)
import torch
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)
