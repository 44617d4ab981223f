"""Parquet files that unpack without a bound, name other files, or are damaged."""

import os
import random
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source, tables
from cifnet_pl.utilities.errors import CifnetError, DataError
from tests.data.entrances import ENTRANCES, png, samples

LONG = "x" * 2**22
LABELS = ["ant", "bee"] * 4


@pytest.fixture(params=["manifest", "hf"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "hf":
        pytest.importorskip("datasets", reason="the extra `hf` is missing")
    return str(request.param)


def write(path: Path, kind: str, image: object, **options: object) -> Path:
    """Write a table of eight images, of which the last is another one."""
    images: list[object] = [{"bytes": png(i), "path": None} for i in range(7)]
    name = "image"
    if kind == "manifest":
        for i in range(7):
            (path.parent / f"{i}.png").write_bytes(png(i))
        images = [f"{i}.png" for i in range(7)]
        name = "path"
    columns = {name: [*images, image], "label": LABELS}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_what_unpacks_to_far_more_than_its_size_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PARQUET_BYTES", 2**16)
    bomb = LONG if kind == "manifest" else {"bytes": LONG.encode(), "path": None}
    path = write(tmp_path / "a.parquet", kind, bomb, compression="zstd")
    assert path.stat().st_size < 2**16
    with pytest.raises(DataError, match="100 times its size"):
        build_source(kind, SourceOptions(path))


def test_a_long_text_is_not_copied_into_each_row(tmp_path: Path) -> None:
    """One text of four megabytes in 100,000 rows would take 400 gigabytes."""
    rows = pyarrow.array([0] * 100_000)
    paths = pyarrow.DictionaryArray.from_arrays(rows, pyarrow.array([LONG]))
    table = pyarrow.table({"path": paths, "label": ["ant"] * 100_000})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(DataError, match="at most 65536"):
        build_source("manifest", SourceOptions(tmp_path / "a.parquet"))


@pytest.mark.parametrize("name", ["../secret", "http://[::1]/"])
def test_a_table_of_files_that_are_not_there_is_refused(
    name: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", "manifest", name)
    with pytest.raises(DataError, match="not there"):
        build_source("manifest", SourceOptions(path))


@pytest.mark.parametrize("name", ["/dev/zero", "{}/pipe", "{}/secret"])
@pytest.mark.timeout(60)
def test_images_that_are_other_files_are_unreadable(
    kind: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("root:x:0:0")
    os.mkfifo(tmp_path / "pipe")
    place = name.format(tmp_path)
    image = place if kind == "manifest" else {"bytes": None, "path": place}
    path = write(tmp_path / "a.parquet", kind, image)
    source = build_source(kind, SourceOptions(path))
    failed = 0
    for images in (source.train, source.val):
        for row in range(len(images)):
            try:
                images.image(row).square(6)
            except DataError:
                failed += 1
    assert failed == 1


def test_damaged_files_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrance = ENTRANCES["parquet table"]
    path = entrance.lay(tmp_path, samples("blue", "red"), monkeypatch)
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(60):
        content = bytearray(whole)
        place = draw.randrange(len(content) - 700, len(content))
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content[: draw.choice([len(content), place])])
        with suppress(CifnetError):
            entrance.open(path)
