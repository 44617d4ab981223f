"""Versions: every change is stored before it counts; undo, redo, a full disk, other models."""

import errno
import sqlite3
from contextlib import closing
from unittest.mock import Mock

import pytest
import torch

from cifnet_pl.serving import workspace as module
from cifnet_pl.serving.gate import Upload
from cifnet_pl.serving.messages import RequestError
from cifnet_pl.serving.workspace import Change, Workspace
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from tests.serving.services import model, tree


@pytest.fixture
def workspace(tmp_path):
    """A new one, which knows red and green."""
    return Workspace(tmp_path / "w", model())


def renamed(workspace, new):
    """A version in which the first class has another name."""
    result = workspace.load(workspace.current)
    old = result.class_names[0]
    result.rename(old, new)
    change = Change(action="rename", message=f"to {new}", renamed=(old, new))
    return workspace.commit(result, change)


def walk(workspace, action):
    """Go one step along the line of versions; whether there was one."""
    step = workspace.step(action)
    if step is not None:
        workspace.go(step.version, action, step.place)
    return step is not None


def first_class(workspace):
    return workspace.load(workspace.current).class_names[0]


def test_a_version_is_the_same_model_on_the_backbone_that_was_given(tmp_path):
    """Another network, and session of its engine, would be left behind by every undo."""
    made = model()
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    workspace = Workspace(tmp_path / "w", made)
    renamed(workspace, "a")
    again = workspace.load(1).probabilities(images)
    assert torch.equal(made.probabilities(images), again)
    assert workspace.load(1).backbone is workspace.load(2).backbone is made.backbone


def test_versions_are_not_removed_because_the_journal_is_damaged_or_lost(workspace):
    renamed(workspace, "a")
    workspace.close()
    before = tree(workspace.folder / "versions")
    journal = workspace.folder / "journal.sqlite"
    whole = journal.read_bytes()
    for damage in (bytes(100), whole[:100] + bytes(4000) + whole[4100:]):
        journal.write_bytes(damage)
        with pytest.raises(CheckpointError, match="damaged"):
            Workspace(workspace.folder, model())
    journal.unlink()
    with pytest.raises(CheckpointError, match="ends with version 0, but 2 is stored"):
        Workspace(workspace.folder, model())
    assert tree(workspace.folder / "versions") == before


def test_undo_redo_a_new_start_and_a_change_after_undo(workspace, tmp_path):
    renamed(workspace, "a")
    renamed(workspace, "b")
    assert (workspace.current, first_class(workspace)) == (3, "b")
    assert walk(workspace, "undo")
    assert walk(workspace, "undo")
    assert (workspace.current, first_class(workspace)) == (1, "red")
    assert not walk(workspace, "undo")
    assert walk(workspace, "redo")
    workspace.close()
    workspace = Workspace(tmp_path / "w", model())
    assert (workspace.current, first_class(workspace)) == (2, "a")
    assert workspace.step("redo").version == 3
    messages = {number: one.message for number, one in workspace.versions.items()}
    assert messages == {1: messages[1], 2: "to a", 3: "to b"}
    renamed(workspace, "c")
    assert (workspace.current, workspace.versions[4].parent) == (4, 2)
    assert workspace.step("redo") is None
    workspace.go(3)
    assert first_class(workspace) == "b"
    walk(workspace, "undo")
    assert first_class(workspace) == "c"


def test_the_version_before_stays_however_old_it_is(tmp_path):
    workspace = Workspace(tmp_path / "w", model(), keep_versions=2)
    renamed(workspace, "a")
    assert walk(workspace, "undo")
    renamed(workspace, "b")
    assert walk(workspace, "undo")
    assert (workspace.current, first_class(workspace)) == (1, "red")


def test_only_one_process_and_only_one_model(workspace, tmp_path):
    with pytest.raises(UsageError, match="choose another with --workspace"):
        Workspace(tmp_path / "w", model())
    workspace.close()
    with pytest.raises(UsageError, match="began with another model"):
        Workspace(tmp_path / "w", model(("red", "blue")))
    Workspace(tmp_path / "w", model()).close()


def test_only_kept_images_are_read(workspace):
    for name in ("../journal.sqlite", "/etc/passwd", "", "a" * 64, "0" * 64 + ".png"):
        with pytest.raises(RequestError, match="no such photo"):
            workspace.image(name)


def test_oldest_versions_are_removed(tmp_path):
    """Uploads that are under way stay."""
    workspace = Workspace(tmp_path / "w", model(), keep_versions=3)
    upload = workspace.incoming / "photo.png"
    upload.touch()
    for name in "abcd":
        renamed(workspace, name)
    assert not (tmp_path / "w" / "versions" / "000002").exists()
    assert workspace.stored_versions == [3, 4, 5]
    assert upload.is_file()
    with pytest.raises(RequestError, match="no longer stored"):
        workspace.go(1)
    walk(workspace, "undo")
    walk(workspace, "undo")
    assert (first_class(workspace), workspace.step("undo")) == ("b", None)
    workspace.close()
    assert Workspace(tmp_path / "w", model(), keep_versions=3).current == 3


def test_no_room_for_the_journal_refuses_the_change_and_nothing_else(workspace):
    before = tree(workspace.folder.parent)
    workspace._database.execute("PRAGMA query_only = ON")
    with pytest.raises(CifnetError, match="nothing was changed"):
        renamed(workspace, "a")
    workspace._database.execute("PRAGMA query_only = OFF")
    assert (tree(workspace.folder.parent), workspace.current) == (before, 1)
    assert renamed(workspace, "b") == 2


def test_what_a_killed_process_left_is_removed(tmp_path):
    """A bundle without its record was never acknowledged; uploads were never learned."""
    Workspace(tmp_path / "w", model()).close()
    before = tree(tmp_path / "w")
    model().save(tmp_path / "w" / "versions" / "000002")
    (tmp_path / "w" / "versions" / ".000002.x.tmp").mkdir()
    (tmp_path / "w" / "incoming" / "x").mkdir()
    (tmp_path / "w" / "versions" / ".DS_Store").touch()
    again = Workspace(tmp_path / "w", model())
    assert again.current == 1
    assert tree(tmp_path / "w") == before | {".workspace.lock", "versions/.DS_Store"}
    assert renamed(again, "a") == 2


def test_a_change_counts_where_old_versions_cannot_go(tmp_path, monkeypatch, caplog):
    workspace = Workspace(tmp_path / "w", model(), keep_versions=2)
    renamed(workspace, "a")

    def damaged(folder, **options):
        if folder.name == "000001":
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module.shutil, "rmtree", damaged)
    assert renamed(workspace, "b") == workspace.current == 3
    assert "old versions were not removed: [Errno 5] Input/output error" in caplog.text
    monkeypatch.undo()
    renamed(workspace, "c")
    assert workspace.stored_versions == [3, 4]


def test_images_that_are_not_kept_go_with_their_change(workspace, monkeypatch, caplog):
    """Where their files cannot be deleted, the change counts, and the next start deletes them."""
    photo = Upload("a.png", b"photo", f"{'0' * 64}.png")
    workspace.receive([photo], set(), again=True)
    change = Change(action="extend", message="learned")
    with monkeypatch.context() as patched:
        broken = OSError(errno.EIO, "Input/output error")
        patched.setattr(workspace, "_unlink", Mock(side_effect=broken))
        assert workspace.commit(model(), change, [photo.file]) == 2
    assert "photos or old versions were not removed" in caplog.text
    assert workspace.waiting() == {}
    assert tree(workspace.folder / "images") == {photo.file}
    workspace.close()
    Workspace(workspace.folder, model()).close()
    assert tree(workspace.folder / "images") == set()


def test_a_journal_that_another_program_holds_is_said(workspace, tmp_path):
    workspace._database.execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(tmp_path / "w" / module.JOURNAL)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CifnetError, match="cannot read the journal"):
            workspace.waiting()
