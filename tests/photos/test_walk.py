"""Folders are walked in a fixed order; links never lead in circles."""

from __future__ import annotations

from pathlib import Path

import pytest

from cifnet_pl.photos import files as walk
from cifnet_pl.photos.files import links_upwards, walk_images


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.png", "a.jpg", ".hidden.png", "note.txt", "sub/c.png", "sub/deep/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def names(folder: Path, depth: int | None = None) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in walk_images(folder, depth)]


def test_images_below_a_folder(tree: Path):
    assert sorted(names(tree)) == ["a.jpg", "b.png", "sub/c.png", "sub/deep/d.png"]
    assert sorted(names(tree, 1)) == ["a.jpg", "b.png"]
    assert sorted(names(tree, 2)) == ["a.jpg", "b.png", "sub/c.png"]


def test_links_are_followed_once_and_never_upwards(tree: Path):
    (tree / "sub" / "up").symlink_to(tree)
    (tree / "other").symlink_to(tree / "sub")
    assert links_upwards(tree / "sub" / "up")
    assert not links_upwards(tree / "other")
    assert len(names(tree)) == 4


def test_large_folders_are_sorted_in_pieces(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "SORTED_AT_ONCE", 1)
    assert sorted(names(tree)) == ["a.jpg", "b.png", "sub/c.png", "sub/deep/d.png"]
