"""Small services on classes of coloured squares, in this process and in another one."""

import io
import socket
import threading
import time
import zipfile
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import httpx
import numpy as np
import torch
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

import cifnet_pl
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.bundle import Event
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.app import make_app
from cifnet_pl.serving.gate import Access
from cifnet_pl.serving.service import Service
from cifnet_pl.serving.workspace import Workspace
from tests.images.contents import file_of
from tests.models import learn_embeddings

PATIENCE = 300
"""Seconds that a test waits for an answer at most: a busy machine is slow to give it."""

SIDE = 8
COLOURS = {"red": (200, 30, 30), "green": (30, 180, 60)}
COLOURS |= {"blue": (40, 60, 210), "yellow": (220, 210, 40)}


def pixels(name, number, side=24):
    """A square of the class's colour with noise: another one for each number."""
    drawn = np.random.default_rng([*name.encode()]).integers(0, 256, 3)
    draw = np.random.default_rng([*name.encode(), number])
    shades = COLOURS.get(name, drawn) + draw.normal(0, 25, (side, side, 3))
    return shades.clip(0, 255).astype(np.uint8)


def image(name, number, side=24, kind="PNG"):
    """The same as a file's content."""
    return file_of(Image.fromarray(pixels(name, number, side)), kind)


def heic(name):
    """An image as phones make it."""
    import pillow_heif

    out = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels(name, 0, 64))).save(out)
    return out.getvalue()


def images(name, count, first=100):
    """Images of one class, as a multipart request has them."""
    numbers = range(first, first + count)
    return [("files", (f"{name}-{i}.png", image(name, i))) for i in numbers]


def teach(http, files, name=None, **params):
    """Bring images and learn the new ones as one class, or as their folders; the last answer."""
    arrived = http.post("/inbox", files=files).json()["images"]
    waiting = http.get("/inbox?count=10000").json()["images"]
    new = [one for one in waiting if one["image"] in arrived]
    names = {one["image"]: name or one["folder"] for one in new}
    return http.post("/inbox/learn", json={"names": names}, params=params)


def changed(http, path, **content):
    """The answer to a change, which is made."""
    answer = http.post(path, json=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


def counts(http):
    """How many images each class was learned from."""
    return {one["name"]: one["images"] for one in http.get("/classes").json()}


def kept(http):
    """The images of each class that are kept."""
    return {one["name"]: one["kept_images"] for one in http.get("/classes").json()}


def becomes(true, seconds=PATIENCE):
    """What an expression gives as soon as it is true; what it gives then if it never is."""
    until = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def assert_same_model(one, other, atol=1e-7):
    """Both give the same scores to the same classes, to rounding."""
    squares = torch.randint(0, 256, (5, 3, SIDE, SIDE), dtype=torch.uint8)
    order = [other.class_names.index(name) for name in one.class_names]
    ours = one.head(one.embed(squares))
    theirs = other.head(other.embed(squares))
    assert torch.allclose(ours, theirs[:, order], atol=atol)


def zipped(files):
    """A zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def model(names=("red", "green"), head=RidgeHead):
    """A model that knows a few colours, twelve images of each."""
    return learned_once(names, head).clone()


@cache
def learned_once(names, head):
    backbone = build_backbone(f"pixels:{SIDE}")
    buffer = CalibrationBuffer(100)
    made = Classifier(backbone, head(backbone.features), buffer, [], SIDE)
    if not names:
        return made
    pictures = [Image.fromarray(pixels(name, i)) for name in names for i in range(12)]
    squares = np.stack([np.asarray(one.resize((SIDE, SIDE))) for one in pictures])
    z = made.embed(torch.from_numpy(squares).permute(0, 3, 1, 2))
    keys = torch.arange(len(z))
    learn_embeddings(made, names, z, keys // 12, keys)
    cost = {"seconds": 0.1, "energy_kwh": 1e-6, "energy_source": "estimated"}
    made.history.append(Event("task", len(names), None, 95.0, **cost))
    return made


def class_folders(root, **classes):
    """Images in a folder for each class."""
    for name, contents in classes.items():
        (root / name).mkdir(parents=True)
        for number, content in enumerate(contents):
            (root / name / f"{number}.png").write_bytes(content)
    return root


def version_of(place, number):
    """A version of the workspace "w" of a test."""
    return cifnet_pl.load(place / "w" / "versions" / f"{number:06}", "cpu")


def saved(folder):
    """A bundle of the model."""
    model().save(folder)
    return folder


@contextmanager
def client(folder, access=None, options=None, begun=None, images=None):
    """A client of a service on a workspace, in this process."""
    begun = begun or model()
    workspace = Workspace(folder, begun, images=images)
    current = workspace.load(workspace.current)
    app = make_app(Service(workspace, current, options), access or Access())
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as made:
        yield made


def tree(folder):
    """Everything below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Address:
    """A service that is asked over HTTP."""

    url: str

    def get(self, path):
        """A JSON answer."""
        return httpx.get(self.url + path, timeout=PATIENCE).raise_for_status().json()


def proxied(app, folder):
    """An ASGI application below a folder, as a reverse proxy offers it."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].removeprefix(folder)}
        await app(scope, receive, send)

    return answer


class ThreadServer(Address):
    """A service in a thread of this process, with a real port, which a browser can ask."""

    def __init__(self, folder, access=None, begun=None, options=None, below=""):
        begun = begun or model()
        self.folder = folder
        self.service = Service(Workspace(folder, begun), begun, options)
        gate = make_app(self.service, access or Access())
        self.app = gate.app
        app = proxied(gate, below)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.url = f"http://localhost:{self._socket.getsockname()[1]}{below}"
        config = uvicorn.Config(app, http="h11", log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
        run = partial(self._server.run, sockets=[self._socket])
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.stop()

    def stop(self):
        """Answer what is under way and end."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()
