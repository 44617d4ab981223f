"""Terminals of few characters and columns, and Ctrl-C: what a user's machine does to a run."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from tests.command_line import FAST, call_in_turn, environment, make_images
from tests.terminal import seen_at_a_terminal

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
@pytest.mark.parametrize(
    ("when", "sign"),
    [("starting", "begun"), ("importing", "importing"), ("learning", "solving")],
)
def test_ctrl_c_leaves_with_130(tmp_path: Path, when: str, sign: str):
    """While importing as well, where compiled modules make an error of the interrupt."""
    # A shell that starts programs in the background has them ignore the signal.
    slow = "import signal, time, torch; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    slow += "def wait(*a, **k):\n    print('solving', flush=True); time.sleep(60)\n"
    if when == "learning":
        slow += "torch.linalg.cholesky_ex = wait\n"
    else:
        slow += SAYS_WHEN_MAIN_HAS_BEGUN
    if when == "importing":
        (tmp_path / "lightning.py").write_text(CHANGES_THE_ERROR)
        slow = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + slow
    args = ["fit", *FAST, "--logs", str(tmp_path)]
    slow += f"import sys; from cifnet_pl.__main__ import main; sys.exit(main({args!r}))"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", slow]
    with subprocess.Popen(words, env=environment(), **pipes) as process:
        while sign not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.3)  # at the start, somewhere in the imports
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


# ---------------------------------------------------------------------- 80 columns

COLUMNS = 80
FIT = "fit --config folder --model.backbone pixels:8 --data.image_size 8"
COMMANDS = [
    f"{FIT} --data.num_workers 0 --data.root images --energy.tracking_mode process",
    "extend --model lightning_logs/folder --images new --output more --check images",
    "evaluate --model more --images images --output evaluated",
    "audit --model more --images images --output audit",
    "info --model more",
    "classify --model more --images new --output p.csv --unknown 0.05",
    "forget --model more --class ant --output less",
    "forget --model more --class ant --images images --output lesser",
    "export --model more --output bundle",
    "report lightning_logs --output report",
]


def run_all(folder: Path) -> int:
    """Run the commands in a folder, and print a line of its own before each."""
    os.chdir(folder)
    for line in COMMANDS:
        print("###", flush=True)
        assert main(line.split()) == 0
    return 0


def test_screens(tmp_path: Path):
    """No line is wider or said twice, and ``fit`` says little at its end."""
    # With so much noise none is a near-duplicate of another.
    make_images(tmp_path / "images", ["ant", "bee", "cat"], 24, noise=70)
    make_images(tmp_path / "new", ["dog"], 24, noise=70)
    shown = seen_at_a_terminal(partial(run_all, tmp_path), COLUMNS)
    assert [line for line in shown.splitlines() if len(line) > COLUMNS] == []
    screens = [part.splitlines() for part in shown.split("###\n")[1:]]
    for lines in screens:
        said = [line for line in lines if re.match(r"\w", line) and "━" not in line]
        assert len(said) == len(set(said)) > 0
    lines = screens[0]
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    folder = next(i for i, line in enumerate(lines) if line.startswith("Run folder"))
    said = [line for line in lines[end + 1 : folder] if line]
    assert 3 <= len(said) <= 6
