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

import pytest
from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The process that hands tests to workers runs none: what takes seconds to import is imported in
# fixtures and hooks of tests alone.

TRUE_FSYNC = os.fsync
os.fsync = lambda descriptor: None
"""Most tests cut no power, and a small run would wait 30 times for the disk."""


@pytest.fixture(autouse=True, scope="session")
def quick_libraries():
    """Spare each small run what takes most of its time and is the same in all of them."""
    from lightning.fabric.utilities import registry

    from cifnet_pl.cli.lightning_cli import CIFNetCLI
    from cifnet_pl.learning.callbacks import task_metrics
    from cifnet_pl.utilities import files, plugins

    with pytest.MonkeyPatch.context() as patch:
        # For each Trainer Lightning looks through hundreds of folders for packages that add
        # callbacks, and each run for packages that add parts.
        for module in (registry, plugins):
            patch.setattr(module, "entry_points", functools.cache(module.entry_points))
        patch.setattr(
            CIFNetCLI, "setup_parser", with_one_parser(CIFNetCLI.setup_parser)
        )
        # A writer is refused at once: nothing here sweeps locks for as long as a second.
        patch.setattr(files, "SWEEP_SECONDS", 0.1)
        for drawing in ("draw_trajectory", "draw_confusion"):
            patch.setattr(task_metrics, drawing, blank)
        yield


def with_one_parser(set_up):
    """Build the parser of each sub-command once: it keeps nothing of the words that it parses."""
    parsers = {}

    def set_up_once(cli, *given):
        if cli.command not in parsers:
            set_up(cli, *given)
            parsers[cli.command] = cli.parser
        cli.parser = parsers[cli.command]

    return set_up_once


def blank(*_):
    """A picture of a run that nobody looks at: drawing takes half of a small run's time."""
    from matplotlib.figure import Figure

    return Figure(figsize=(0.1, 0.1))


@pytest.fixture(scope="module")
def true_fsync():
    """Flush to disk, as programs do: for tests of kills and of full disks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", TRUE_FSYNC)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let each test draw the same random numbers, whatever ran before it in its process."""
    import numpy as np
    import torch

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


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """The folder of a test, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def latin_name(tmp_path_factory):
    """A name in bytes that are not UTF-8, as old archives and memory cards leave them; a test is
    skipped where the file system takes no such names: nobody can have them there.
    """
    name = os.fsdecode(b"K\xe4fer")
    try:
        (tmp_path_factory.mktemp("names") / name).touch()
    except OSError:
        pytest.skip("names here are UTF-8")
    return name


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that fork processes come first: so one worker alone, which has the first half of
    all tests, starts the server that takes seconds (:mod:`tests.killing`).
    """
    forking = {"start", "in_a_process", "seen_at_a_terminal"}
    items.sort(
        key=lambda item: forking.isdisjoint(vars(item.getparent(pytest.Module).obj))
    )


def pytest_collection_finish() -> None:
    """Take all modules and tests out of the garbage collector's sight: with them a full collection
    takes seconds.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let what was taken out of sight be freed at the end."""
    gc.unfreeze()
