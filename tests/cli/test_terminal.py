"""Terminals that cannot show every character, and Ctrl-C: what a user's machine does to a run."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.command_line import FAST, call_in_turn, command, environment, make_images

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
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
