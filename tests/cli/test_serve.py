"""``cifnet serve``: what it refuses before it listens, and a whole life of the process."""

import os
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import uvicorn

from cifnet_pl.cli import serve as starting
from cifnet_pl.cli.serve import empty_model
from cifnet_pl.heads import RidgeHead
from cifnet_pl.serving import gate
from cifnet_pl.serving.gate import Limits
from cifnet_pl.serving.service import Service
from cifnet_pl.serving.workspace import Workspace
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import assert_ends, run_cifnet
from tests.killing import ended, start
from tests.serving.services import PATIENCE, Address, becomes, image, model, saved

TOKEN = "a" * 20
BACKBONE = "embedded:efficientnet_lite0+layers+mirror"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--host 0.0.0.0", "other machines: give a --token or --token_file"),
        ("--token short", "16 or more plain characters"),
        ("--token_file missing", "cannot read --token_file missing"),
        ("--port 99999", "port must be 0-65535"),
        (f"--host nowhere.invalid --token {TOKEN}", "cannot listen on nowhere.invalid"),
        ("--keep_versions 1", "expected at least 2"),
        ("--unknown 1.5", "--unknown is 1.5, expected a share between 0 and 1"),
    ],
)
def test_refused_before_anything_is_written(options, sentence, tmp_path, capsys):
    code = run_cifnet("serve", *options.split(), model=saved(tmp_path / "bundle"))
    assert_ends(code, 2, sentence, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_without_a_model_it_begins_with_the_recommended_one():
    made = empty_model()
    assert made.backbone.name == BACKBONE
    assert made.calibrated
    assert made.class_names == []
    auto = {"ridge": "gcv", "decision": "auto", "product_features": "auto"}
    wanted = RidgeHead(made.backbone.features, **auto)
    assert made.head.settings() == wanted.settings()
    assert made.buffer.capacity == 2000


def test_new_images_of_a_watched_folder_wait(tmp_path, watch, monkeypatch):
    """With the sub-folder, which may be their class; each is tried again where the disk is full."""
    monkeypatch.setattr(starting, "WATCH_SECONDS", 0.05)
    begun = model()
    folder = tmp_path / "photos"
    failed = []
    (folder / "blue").mkdir(parents=True)
    monkeypatch.setattr(gate, "LIMITS", Limits(image_bytes=5000))
    service = Service(Workspace(tmp_path / "w", begun), begun)
    # Too large: it does not hold up the others.
    (folder / "a.png").write_bytes(image("red", 1, 200))
    (folder / os.fsdecode(b"\xff.png")).write_bytes(image("red", 2))

    def full_at_first(files, **_):
        ((name, _),) = files
        if name not in failed:
            failed.append(name)
            raise CifnetError("the disk is full")

    watch(service.inbox, "receive", full_at_first)
    thread = Thread(target=starting.keep_watching, args=(service, folder), daemon=True)
    thread.start()
    (folder / "blue" / "1.png").write_bytes(image("blue", 1))
    assert becomes(lambda: len(service.workspace.waiting()) == 2)
    paths = {one.path for one in service.workspace.waiting().values()}
    assert paths == {"blue/1.png", "?.png"}
    service.close()
    (folder / "late.png").write_bytes(image("red", 3))
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_ctrl_c_that_is_ignored_has_the_same_exit_code(tmp_path, monkeypatch):
    """As in a script's background: uvicorn ends all the same, but raises nothing then."""
    monkeypatch.setattr(uvicorn.Server, "run", lambda *args, **options: None)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(SystemExit) as end:
        run_cifnet("serve", model=saved(tmp_path / "bundle"), port=0)
    assert end.value.code == 130


@contextmanager
def served(bundle: Path, output: Path) -> Iterator[Address]:
    """A service in a process of its own, which writes to a file, and which Ctrl-C ends."""
    output.touch()
    process = start(partial(run_cifnet, "serve", model=bundle, port=0), output)
    try:
        assert becomes(lambda: " at http://" in output.read_text())
        server = Address()
        server.url = output.read_text().split(" at ")[-1].split(" ")[0]
        yield server
    finally:
        os.kill(process.pid, signal.SIGINT)
        assert ended(process) == 130


@pytest.mark.system
def test_from_start_to_end(tmp_path):
    """It says where it is, answers, ends with Ctrl-C, and goes on at the version of then."""
    bundle = saved(tmp_path / "bundle")
    output = tmp_path / "output"
    with served(bundle, output) as server:
        greeting = f"2 classes at {server.url} (the API: /docs); Ctrl-C ends it\n"
        assert output.read_text() == greeting
        content = b'{"old": "red", "new": "crimson"}'
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/rename", content, headers)
        assert urllib.request.urlopen(request, timeout=PATIENCE).status == 200
    assert "Traceback" not in output.read_text()
    output = tmp_path / "again"
    with served(bundle, output) as server:
        greeting = f"workspace {bundle}-workspace goes on at version 2\n"
        assert output.read_text().startswith(greeting)
        assert [one["name"] for one in server.get("/classes")] == ["crimson", "green"]
