"""Main journeys in a process where what only POSIX keeps is missing or refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import FAST, call_in_turn, environment, rows

ROOT = Path(__file__).parents[1]
SIMULATED = "from tests import simulated_windows\nsimulated_windows.simulate()\n"


@pytest.mark.system
def test_a_model_lives_on_windows(cwd):
    """Outputs are replaced, too, and a run goes on with its checkpoint and cache."""
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
    assert not list(cwd.rglob("*.tmp"))
    assert not list(cwd.rglob(".*.held"))


SERVED = """
import os, signal, socket, threading, traceback
from pathlib import Path
import httpx
from cifnet_pl.__main__ import main
from tests.serving.services import PATIENCE, becomes, changed, counts, image, images, model
from tests.serving.services import teach

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
failed = []

def while_served(use):
    def answer():
        address = f"http://localhost:{port}"
        with httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as http:
            becomes(lambda: reached(http))
            try:
                use(http)
            except BaseException:
                failed.append(traceback.format_exc())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=answer).start()
    words = f"serve --model model --port {port} --images photos --watch camera"
    try:
        main(words.split())
    except SystemExit as end:
        assert end.code == 130
    assert not failed, failed

def reached(http):
    try:
        return http.get("/summary").status_code == 200
    except httpx.ConnectError:
        return False

def first(http):
    assert becomes(lambda: http.get("/inbox").json()["waiting"]) == 1
    assert http.post("/classify", files=images("red", 2)).status_code == 200
    teach(http, images("aux", 6), "aux")
    changed(http, "/rename", old="green", new="Red?")
    assert http.post("/undo").status_code == 200
    assert http.post("/redo").status_code == 200
    assert http.get("/versions/2/bundle").status_code == 200
    assert changed(http, "/forget", name="aux")["exact"]
    changed(http, "/purge")

def again(http):
    assert counts(http) == {"red": 12, "Red?": 12}
    teach(http, images("con", 3), "con")

model().save(Path("model"))
for folder in ("photos/red", "camera"):
    Path(folder).mkdir(parents=True)
Path("photos/red/0.png").write_bytes(image("red", 0))
Path("camera/new.png").write_bytes(image("red", 70))
while_served(first)
while_served(again)
"""


@pytest.mark.system
def test_a_service_lives_on_windows(tmp_path):
    """It learns, undoes, forgets and deletes, and goes on after Ctrl-C."""
    words = [sys.executable, "-c", SIMULATED + SERVED]
    options = {"env": environment(PYTHONPATH=str(ROOT)), "cwd": tmp_path, "text": True}
    done = subprocess.run(words, capture_output=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
