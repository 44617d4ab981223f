"""All unreadable images are named in one sentence."""

from __future__ import annotations

from pathlib import Path

from cifnet_pl.data import loading as unreadable
from cifnet_pl.data.sets import FileSet
from tests.command_line import make_photos


def test_known_ones_come_first_and_many_are_cut_short(tmp_path: Path, monkeypatch):
    make_photos(tmp_path, ["ant"], 3)
    for name in ("b.png", "c.png"):
        (tmp_path / "ant" / name).write_bytes(b"no image")
    files = FileSet(tmp_path, ["ant/0.png", "ant/b.png", "ant/c.png"], [0, 0, 0])
    broken = list(unreadable.unreadable_images(files, 8, 1.0))
    assert [line.split(": ")[0] for line in broken] == [str(tmp_path / "ant" / n) for n in ("b.png", "c.png")]
    text = unreadable.name_unreadable(broken[1:], [files], 8, 1.0)
    assert text.startswith(f"cannot read these images: {broken[1]}; {broken[0]}: repair")
    monkeypatch.setattr(unreadable, "NAMED", 1)
    assert "; and more" in unreadable.name_unreadable([], [files], 8, 1.0)
    assert unreadable.name_unreadable(["x: y"], [], 8, 1.0).startswith("cannot read image x: y")
