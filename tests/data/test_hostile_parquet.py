"""Parquet files that unpack without a bound, name other files, or are damaged."""

import os
import random
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source, parquet
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


@pytest.fixture
def bomb(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file with one content of four megabytes, which is more than it may unpack to."""
    monkeypatch.setattr(parquet, "SMALL_BYTES", 2**16)
    content = LONG if kind == "manifest" else {"bytes": LONG.encode(), "path": None}
    return write(tmp_path / "a.parquet", kind, content, compression="zstd")


def test_what_unpacks_to_far_more_than_its_size_is_refused(
    kind: str, bomb: Path
) -> None:
    assert bomb.stat().st_size < 2**16
    with pytest.raises(DataError, match="100 times its size"):
        build_source(kind, SourceOptions(bomb))


def repeated(kind: str, rows: int) -> pyarrow.Table:
    """Return a table with one content of four megabytes in every row."""
    positions = pyarrow.array([0] * rows)
    value = pyarrow.array([LONG.encode() if kind == "hf" else LONG])
    cells = pyarrow.DictionaryArray.from_arrays(positions, value)
    labels = ["ant", "bee"] * (rows // 2)
    if kind == "manifest":
        return pyarrow.table({"path": cells, "label": labels})
    names = pyarrow.nulls(rows, pyarrow.string())
    images = pyarrow.StructArray.from_arrays([cells, names], ["bytes", "path"])
    return pyarrow.table({"image": images, "label": labels})


@pytest.mark.parametrize("ending", ["parquet", "geoparquet"])
def test_a_dictionary_is_not_unpacked_into_each_row(
    kind: str, ending: str, tmp_path: Path
) -> None:
    if kind == "manifest":
        ending = "parquet"
    path = tmp_path / f"train.{ending}"
    pyarrow.parquet.write_table(
        repeated(kind, 100_000), path, compression="zstd", store_schema=False
    )
    assert path.stat().st_size < 2**16
    with pytest.raises(DataError, match="100 times its size"):
        build_source(kind, SourceOptions(path if kind == "manifest" else tmp_path))


def test_texts_that_share_their_beginning_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "SMALL_BYTES", 2**20)
    names = [f"{'x' * 2**16}{i}.png" for i in range(100)]
    table = pyarrow.table({"path": names, "label": ["ant", "bee"] * 50})
    pyarrow.parquet.write_table(
        table,
        tmp_path / "a.parquet",
        use_dictionary=False,
        column_encoding={"path": "DELTA_BYTE_ARRAY"},
    )
    with pytest.raises(DataError, match="100 times its size"):
        build_source("manifest", SourceOptions(tmp_path / "a.parquet"))


def varint(number: int, length: int) -> bytes:
    """Return a signed number as Thrift writes it, made longer by empty bytes."""
    rest = 2 * number
    digits = [(rest >> 7 * i & 127) | 128 for i in range(length)]
    digits[-1] &= 127
    return bytes(digits)


def test_sizes_in_the_footer_are_not_believed(kind: str, bomb: Path) -> None:
    group = pyarrow.parquet.ParquetFile(bomb).metadata.row_group(0)
    content = bomb.read_bytes()
    columns = range(group.num_columns)
    sizes = [group.column(i).total_uncompressed_size for i in columns]
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:]
    for size in [group.total_byte_size, max(sizes)]:
        honest = varint(size, 4)
        assert honest in footer
        footer = footer.replace(honest, varint(100, 4))
    bomb.write_bytes(content[:start] + footer)
    lying = pyarrow.parquet.ParquetFile(bomb).metadata.row_group(0)
    assert lying.total_byte_size == 100
    with pytest.raises(DataError, match="100 times its size"):
        build_source(kind, SourceOptions(bomb))


def test_values_that_repeat_within_the_bound_are_read(tmp_path: Path) -> None:
    """An upper bound alone would refuse these: labels of two lengths, of many rows."""
    rows = 20_000
    for i in range(rows):
        (tmp_path / f"{i}.png").touch()
    labels = ["x" * 10_000, *["bee", "ant"] * rows][:rows]
    table = pyarrow.table({"path": [f"{i}.png" for i in range(rows)], "label": labels})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    parquet.check_parquet(tmp_path / "a.parquet")


def test_a_long_text_is_not_copied_into_each_row(tmp_path: Path) -> None:
    rows = pyarrow.array([0] * 8)
    paths = pyarrow.DictionaryArray.from_arrays(rows, pyarrow.array([LONG]))
    table = pyarrow.table({"path": paths, "label": LABELS})
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
@pytest.mark.timeout(120)
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
