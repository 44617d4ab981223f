"""Main journeys in a process where what only POSIX keeps is missing or refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import FAST, call_in_turn, environment, rows

ROOT = Path(__file__).parents[1]
SIMULATED = "from tests import simulated_windows\nsimulated_windows.simulate()\n"

REFUSED = """
import os, sys
from cifnet_pl.utilities.files import write_text
from pathlib import Path
assert not hasattr(os, "fork") and sys.modules["fcntl"] is None
for attempt in (
    lambda: os.mkdir("aux"),
    lambda: os.mkdir("dot."),
    lambda: os.mkdir("A"),
    lambda: os.replace("a", "b"),
    lambda: os.open(".", os.O_RDONLY),
):
    try:
        attempt()
    except OSError:
        continue
    raise AssertionError("not refused")
"""


@pytest.mark.system
def test_the_simulation_refuses(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED + REFUSED],
        env=environment(PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_a_model_lives_on_windows(tmp_path, monkeypatch):
    """Outputs are replaced, too, and a run goes on with its checkpoint and cache."""
    monkeypatch.chdir(tmp_path)
    run = " ".join([*FAST, "--data.max_tasks", "2", "--model.head", "RidgeHead"])
    first = f"fit --experiment first {run} --data.cache true --data.cache_folder kept"
    extend = "extend --model four --images new/train --output six"
    classify = "classify --model six --images new/val --output out.csv"
    lines = [
        "unpack --source digits --output old --classes 0 1 2 3 --size 8",
        "unpack --source digits --output new --classes 4 5 --size 8",
        f"{first} --data.source folder --data.root old",
        f"{first} --data.source folder --data.root old --ckpt_path last",
        "export --model lightning_logs/first --output four",
        extend,
        f"{extend} --overwrite true",
        classify,
        f"{classify} --overwrite true",
        "forget --model six --class 4 --images new/train/4 --output five",
        "merge lightning_logs/first six --base lightning_logs/first --output all",
        "audit --model five --images old/train --output audited",
        "report lightning_logs --output report",
    ]
    commands = [line.split() for line in lines]
    done = call_in_turn(*commands, before=SIMULATED, PYTHONPATH=str(ROOT))
    codes = [each.returncode for each in done]
    assert codes == [0] * len(codes), "".join(each.stderr for each in done)
    images = list(Path("new/val").rglob("*.png"))
    assert len(rows(Path("out.csv"))) == len(images)
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob(".*.held"))
