"""Terminals that cannot show every character, and Ctrl-C: what a user's machine does to a run."""

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cifnet_pl.cli.terminal import accept_all_characters
from tests.command_line import FAST, call_in_turn, command, environment, make_photos

CLASSES = ["Süßes", "→", "Ā 猫"]


@pytest.mark.system
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_no_character_ends_a_run(tmp_path: Path, encoding: str):
    photos = make_photos(tmp_path / "photos", CLASSES, 5)
    options = ["--model.backbone", "pixels:4", "--data.image_size", "4", "--data.classes_per_task", "3"]
    options += ["--model.head", "RidgeHead", "--model.head.ridge", "1", "--logs", str(tmp_path / "logs")]
    options += ["--energy.enabled", "false", "--data.num_workers", "0"]
    fit, info, missing = call_in_turn(
        ["fit", "--data.root", str(photos), *options],
        ["info", "--model", str(tmp_path / "logs" / "default")],
        ["info", "--model", str(tmp_path / "none ß →")],
        PYTHONIOENCODING=encoding,
    )
    assert (fit.returncode, fit.stderr) == (0, "")
    assert "run folder" in fit.stdout
    assert (info.returncode, info.stderr) == (0, "")
    assert "3 classes" in info.stdout
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no model at" in missing.stderr


def test_stand_ins_of_our_own_signs_and_escapes_of_others(monkeypatch: pytest.MonkeyPatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    accept_all_characters()
    print("Ā 97.5 % → ß")
    stream.flush()
    assert stream.buffer.getvalue() == b"A_bar 97.5 % -> \\xdf\n"


@pytest.mark.system
@pytest.mark.parametrize("when", ["starting", "learning"])
def test_ctrl_c_leaves_with_130(tmp_path: Path, when: str):
    # A shell that starts programs in the background has them ignore the signal.
    slow = "import signal, time, torch; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    slow += "def wait(*a, **k):\n    print('solving', flush=True); time.sleep(60)\n"
    slow += "torch.linalg.cholesky_ex = wait\n" if when == "learning" else "print('begun', flush=True)\n"
    args = ["fit", *FAST, "--logs", str(tmp_path)]
    code = slow + f"import sys; from cifnet_pl.__main__ import main; sys.exit(main({args!r}))"
    with subprocess.Popen(
        [*command()[:1], "-c", code], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        sign = {"starting": "begun", "learning": "solving"}[when]
        while sign not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
