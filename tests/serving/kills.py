"""Changes of a served model, one after another, in a process that may be killed at any moment."""

import json
import os
import random
import sqlite3
from contextlib import closing
from functools import partial
from io import BytesIO

from cifnet_pl.serving.messages import RequestError
from cifnet_pl.serving.service import Service
from cifnet_pl.serving.workspace import Workspace
from tests.serving.services import image, model, tree

NAMES = ["red", "green", "blue", "yellow", "pink"]
KEPT = 4
"""Versions that are kept: few, so that kills hit their removal, too."""


def decided(service, name, first):
    """Images arrive, and all of those that wait but the newest are decided."""
    sent = [(f"{i}.png", BytesIO(image(name, first + i))) for i in range(3)]
    service.inbox.receive(sent)
    names = dict.fromkeys(list(service.workspace.waiting())[:-1], name)
    return service.submit("learn", service.learn, names)


def random_change(service, draw):
    """Bring images and decide, forget, rename, undo or redo."""
    name = draw.choice(NAMES)
    what = [
        partial(decided, service, name, draw.randrange(10**6)),
        partial(service.submit, "forget", service.forget, name),
        partial(service.submit, "rename", service.rename, name, draw.choice(NAMES)),
        partial(service.submit, "undo", service.walk, "undo"),
        partial(service.submit, "redo", service.walk, "redo"),
    ]
    return draw.choices(what, weights=[6, 2, 1, 2, 1])[0]()


def serves(folder):
    """The version that was served after each change of a workspace, as its journal has it."""
    rows = rows_of(folder, "SELECT serves FROM journal ORDER BY number")
    return [number for (number,) in rows]


def rows_of(folder, query):
    """The rows of a query of a workspace's journal, which a service may have open."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as journal:
        return journal.execute(query).fetchall()


def change_for_ever(folder, seed, acknowledged):
    """Change a model again and again; each change that was reported gets a line."""
    begun = model()
    workspace = Workspace(folder, begun, keep_versions=KEPT)
    service = Service(workspace, workspace.load(workspace.current))
    draw = random.Random(seed)
    log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        try:
            job = random_change(service, draw)
        except RequestError:
            continue
        job.end.result()
        if job.error is not None:
            continue
        state = {
            "changes": len(serves(folder)),
            "classes": service.answering.served.model.counts,
            "waiting": list(workspace.waiting()),
        }
        os.write(log, json.dumps(state).encode() + b"\n")


def assert_versions_whole(workspace):
    """All versions that the journal names can be read, and there are no others."""
    stored = workspace.stored_versions
    folders = {path.name for path in (workspace.folder / "versions").iterdir()}
    assert folders == {f"{number:06d}" for number in stored}
    for number in stored:
        assert workspace.load(number).counts == workspace.versions[number].counts


def assert_nothing_lost(folder, acknowledged):
    """What was acknowledged is there, and every version is whole; the number of changes."""
    workspace = Workspace(folder, model(), keep_versions=KEPT)
    try:
        served = serves(folder)
        versions = workspace.versions
        states = [{"changes": 1, "classes": versions[1].counts, "waiting": []}]
        if acknowledged.exists():
            states += map(json.loads, acknowledged.read_bytes().splitlines())
        for state in states:
            assert versions[served[state["changes"] - 1]].counts == state["classes"]
        last = states[-1]
        # One change may have been stored but not acknowledged.
        assert last["changes"] <= len(served) <= last["changes"] + 1
        assert workspace.current == served[-1]
        assert_versions_whole(workspace)
        present = tree(folder / "images")
        assert present >= set().union(*workspace.kept_images().values())
        for state in states:
            assert present.issuperset(state["waiting"])
        learned = set().union(*(one.learned_files for one in versions.values()))
        assert learned.union(workspace.waiting()) >= set(last["waiting"])
        assert list((folder / "incoming").iterdir()) == []
        return len(served)
    finally:
        workspace.close()
