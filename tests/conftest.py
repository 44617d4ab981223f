"""Settings of all tests: property tests draw the same cases in every run; more of them with
HYPOTHESIS_PROFILE=soak.
"""

import functools
import gc
import os
import random
import sys
import tempfile

# Before torch is imported: several workers share the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Compiled once, not in every worker and program.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests compute on the CPU, whatever the machine has: they compare bits, and fork, which CUDA does
# not survive. CIFNET_TEST_GPU=1 pytest tests/test_devices.py runs those of devices on a real GPU.
if not os.environ.get("CIFNET_TEST_GPU"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# A network is exported once, not in every test, and not into the user's folder.
if "CIFNET_CACHE" not in os.environ:
    os.environ["CIFNET_CACHE"] = os.path.join(
        tempfile.gettempdir(), f"cifnet_pl-tests-{os.getuid()}"
    )

import numpy as np
import pytest
import torch
from hypothesis import settings
from lightning.fabric.utilities import registry
from lightning.pytorch.cli import LightningCLI

from cifnet_pl.utilities import plugins

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# For each Trainer Lightning looks through hundreds of folders for packages that add callbacks, and
# each run for packages that add parts.
registry.entry_points = functools.cache(registry.entry_points)
plugins.entry_points = functools.cache(plugins.entry_points)

# Lightning writes the configuration once more, for modules that save their hyper-parameters: none
# of these tests has one, and it takes an eighth of a small run's time.
LightningCLI._dump_config = lambda cli: setattr(cli, "config_dump", {})

os.fsync = lambda descriptor: None
"""No test cuts the power, and a small run would wait 30 times for the disk."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let each test draw the same random numbers, whatever ran before it in its process."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002, of libraries that draw from it
    torch.default_generator.manual_seed(0)
    read_operators_once()


def read_operators_once() -> None:
    """Let torch's exporter, once it is imported, not read the signatures of 500 operators anew for
    each graph, which takes half the time of a small one.
    """
    registration = sys.modules.get("torch.onnx._internal.exporter._registration")
    if registration is not None:
        kind = registration.ONNXRegistry
        if not hasattr(kind.from_torchlib, "cache_info"):
            kind.from_torchlib = staticmethod(functools.cache(kind.from_torchlib))


@pytest.fixture(autouse=True)
def blank_pictures(monkeypatch):
    """Runs of single tests keep blank pictures: drawing took a third of a small run's time.

    Runs that a whole file shares, and tests that call the functions themselves, draw.
    """

    def blank(*_):
        from matplotlib.figure import Figure

        return Figure(figsize=(0.1, 0.1))

    monkeypatch.setattr(
        "cifnet_pl.learning.callbacks.task_metrics.draw_trajectory", blank
    )
    monkeypatch.setattr(
        "cifnet_pl.learning.callbacks.task_metrics.draw_confusion", blank
    )


@pytest.fixture
def watch(monkeypatch):
    """``watch(owner, name, note)`` gives a list: before each call of a function ``note`` of its
    arguments is added.
    """

    def watched(owner, name, note):
        notes = []
        real = getattr(owner, name)

        def noted(*args, **options):
            notes.append(note(*args, **options))
            return real(*args, **options)

        monkeypatch.setattr(owner, name, noted)
        return notes

    return watched


def pytest_collection_finish() -> None:
    """Take all modules and tests out of the garbage collector's sight: with them a full collection
    takes seconds.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let what was taken out of sight be freed at the end."""
    gc.unfreeze()
