"""Terminals that cannot show every character, and Ctrl-C: what a user's machine does to a run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cifnet_pl.__main__ import SPINS, tune_libraries
from tests.command_line import FAST, call_in_turn, command, environment, make_images
from tests.killing import in_a_process

CHANGES_THE_ERROR = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("cannot be set up") from None
"""

SAYS_WHEN_MAIN_HAS_BEGUN = """
import sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "cifnet_pl.cli.commands":
            print("begun", flush=True)
sys.meta_path.insert(0, Finder())
"""
"""Says so when the command line imports its first module: Ctrl-C before that is Python's own."""

CLASSES = ["Süßes", "→", "Ā 猫"]


@pytest.mark.system
def test_no_character_ends_a_run(tmp_path: Path):
    images = make_images(tmp_path / "images", CLASSES, 5)
    options = "--model.backbone pixels:4 --data.image_size 4 --data.classes_per_task 3"
    options += " --model.head RidgeHead --model.head.ridge 1 --energy.enabled false"
    options += f" --data.num_workers 0 --logs {tmp_path}/logs"
    fit, info, missing = call_in_turn(
        ["fit", "--data.root", str(images), *options.split()],
        ["info", "--model", str(tmp_path / "logs" / "default")],
        ["info", "--model", str(tmp_path / "none ß →")],
        PYTHONIOENCODING="ascii",
    )
    assert (fit.returncode, fit.stderr) == (0, "")
    assert "Run folder" in fit.stdout
    assert (info.returncode, info.stderr) == (0, "")
    assert "3 classes" in info.stdout
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no model at" in missing.stderr


@pytest.mark.system
@pytest.mark.parametrize("when", ["starting", "importing", "learning"])
def test_ctrl_c_leaves_with_130(tmp_path: Path, when: str):
    """While importing as well, where compiled modules turn the interrupt into an error of their
    own.
    """
    # A shell that starts programs in the background has them ignore the signal.
    slow = "import signal, time, torch; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    slow += "def wait(*a, **k):\n    print('solving', flush=True); time.sleep(60)\n"
    slow += (
        "torch.linalg.cholesky_ex = wait\n"
        if when == "learning"
        else SAYS_WHEN_MAIN_HAS_BEGUN
    )
    if when == "importing":
        (tmp_path / "lightning.py").write_text(CHANGES_THE_ERROR)
        slow = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + slow
    args = ["fit", *FAST, "--logs", str(tmp_path)]
    code = (
        slow
        + f"import sys; from cifnet_pl.__main__ import main; sys.exit(main({args!r}))"
    )
    with subprocess.Popen(
        [*command()[:1], "-c", code],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        sign = {"starting": "begun", "importing": "importing", "learning": "solving"}[
            when
        ]
        while sign not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.3)  # at the start, somewhere in the imports
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


# ---------------------------------------------------------------------- memory and threads

SIZE = 2**26


def comes_back() -> bool:
    """Whether a large block that was freed is handed out again as it was; the system would have
    cleared it.
    """
    used_before = False
    for _ in range(8):  # the first few may lie side by side
        block = torch.empty(SIZE, dtype=torch.uint8)
        used_before |= bool((block[SIZE // 4 : -SIZE // 4 : 4096] == 7).all())
        block.fill_(7)
        del block
    return used_before


def without() -> int:
    return int(comes_back())


def with_it() -> int:
    tune_libraries()
    return int(comes_back())


@pytest.mark.system
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="an allocator of Linux"
)
def test_large_blocks_stay_with_the_process(tmp_path: Path):
    assert in_a_process(without, tmp_path / "output") == 0
    assert in_a_process(with_it, tmp_path / "output") == 1, (
        tmp_path / "output"
    ).read_text()


@pytest.mark.parametrize(
    ("given", "turns"),
    [
        ({}, str(SPINS)),
        ({"GOMP_SPINCOUNT": "70000"}, "70000"),
        ({"OMP_WAIT_POLICY": "passive"}, "None"),
    ],
)
def test_threads_wait_briefly_unless_told_otherwise(given, turns):
    """How many turns GNU's OpenMP is told to wait for, in a process that begins as the command line
    does.
    """
    code = (
        "import os; from cifnet_pl.__main__ import main; main(['configs']);"
        " print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP", "GOMP"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **given},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split()[-1] == turns
