"""Tables of embeddings and of image files: what is read and refused, and a model of them."""

import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.data.sources.tables import open_table
from cifnet_pl.data.streams import Domains, Listed, make_plan
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.command_line import learned, make_images
from tests.data.entrances import built
from tests.data.layouts import THREE, listed, vectors

Z, Y = vectors()


def write(folder: Path, **arrays) -> Path:
    path = folder / "embeddings.npz"
    np.savez(path, **{"embeddings": Z, "labels": Y, **arrays})
    return path


def read_all(path: Path) -> None:
    source = built("embeddings", path)
    for split in (source.train, source.test):
        split.get(np.arange(len(split)))


def refused(path: Path) -> str:
    with pytest.raises((DataError, UsageError)) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_uncompressed_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    mapped = open_table(write(tmp_path)).matrix("embeddings")
    assert isinstance(mapped, np.memmap)
    assert (mapped == Z).all()
    fortran = write(tmp_path, embeddings=np.asfortranarray(Z))
    assert (open_table(fortran).matrix("embeddings") == Z).all()


def test_rows_come_as_asked_for(tmp_path: Path) -> None:
    source = built("embeddings", write(tmp_path))
    for rows in (np.array([5, 2, 9]), np.zeros(0, dtype=np.int64)):
        original = [int(source.train.names[row]) for row in rows]
        assert (source.train.get(rows).numpy() == Z[original]).all()
        assert (source.train.labels[rows] == Y[original]).all()


def with_number(number: float) -> np.ndarray:
    z = Z.astype(np.float64)
    z[17, 2] = number
    return z


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("labels", Y[:9], "'labels' has shape (9,) and dtype int64, expected (30,)"),
        ("labels", Y.astype(str).astype(object), "save labels.astype(str)"),
        ("embeddings", np.zeros((30, 2), dtype=int), "dtype int64, expected"),
        ("embeddings", with_number(np.nan), "no finite float32 in row 17"),
        ("embeddings", with_number(1e300), "no finite float32 in row 17"),
        ("ids", np.arange(30) // 2, "id '0' stands there twice"),
        ("split", np.full(30, "train"), "the test split has no sample"),
        ("split", np.where(Y == 1, "test", "train"), "'1' has no training sample"),
    ],
)
def test_bad_arrays(name: str, array, sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(write(tmp_path, **{name: array}))


@pytest.mark.parametrize(
    ("name", "cells", "sentence"),
    [
        ("embeddings", [[1.0, 2.0], [1.0]] * 4, "must have the same shape"),
        ("embeddings", [[1.0, 2.0], [1.0, None]] * 4, "no finite float32 in row"),
        ("embeddings", [["1", "2"]] * 8, "expected (n, d) floats"),
        ("labels", [0, None] * 4, "'labels' has rows without a value"),
    ],
)
def test_tables_with_holes_or_other_types(name, cells, sentence, tmp_path):
    whole = {"embeddings": [[1.0, 2.0]] * 8, "labels": [0, 1] * 4, name: cells}
    pyarrow.parquet.write_table(pyarrow.table(whole), tmp_path / "a.parquet")
    assert sentence in refused(tmp_path / "a.parquet")


def test_files_that_are_no_embeddings(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path / "nowhere.npz")
    for name, content, sentence in (
        ("a.pkl", b"x", "unknown kind of table"),
        ("cut.npz", write(tmp_path).read_bytes()[:200], f"cannot read {tmp_path}/cut"),
        ("a.parquet", b"no", f"cannot read {tmp_path}/a.parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        assert sentence in refused(tmp_path / name)
    with pytest.raises(UsageError, match=r"no file was given: set --data\.root"):
        built("embeddings")


def test_tasks_and_domains_of_a_table(tmp_path):
    listed(tmp_path)
    source = built("manifest", tmp_path / "table.csv")
    numbers = np.array([int(Path(name).stem) for name in source.train.names])
    plan = make_plan(source, Listed(), None, 3)
    tasks = [sorted(numbers[rows]) for rows in plan.rows]  # the tasks 9 and 10
    assert tasks == [list(range(0, 18, 2)), list(range(1, 18, 2))]
    domains = make_plan(source, Domains(["b", "a"]), None, 3)
    assert [set(numbers[rows] % 2) for rows in domains.rows] == [{1}, {0}]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("file,label\nblue/0.png,blue\n", r"has no column 'path', it has file, label"),
        ("path,label\n", "lists no image"),
        ("path,label\nblue/0.png,\n", "row 1 has nothing for label"),
        ("path,label\nblue/99.png,b\n", "lists .*blue/99.png, which is not"),
        ("path,label\nblue/0.png,a\nblue/../blue/0.png,b\n", "stands there twice"),
        ("path,label\nblue/0.png,K\xe4fer\n", "not UTF-8: .*: save it as CSV UTF-8"),
        ("path,label,label\nblue/0.png,a,b\n", "two columns 'label'"),
        ("path,label\nblue/0.png,a,b\n", "Expected 2 fields in line 2, saw 3"),
        ("", "No columns to parse from file"),
    ],
)
def test_bad_tables(table: str, sentence: str, tmp_path: Path) -> None:
    make_images(tmp_path, THREE, 1)
    (tmp_path / "table.csv").write_bytes(table.encode("latin-1"))
    with pytest.raises(DataError, match=sentence):
        built("manifest", tmp_path / "table.csv")


ROWS = [f"{name}/{i}.png" for name in ("blue", "green") for i in range(3)]


def listing(header: str, row: str, encoding: str = "utf-8", end: str = "") -> bytes:
    """Return a table over ``ROWS``, each as the template ``row`` has it."""
    lines = [header]
    for path in ROWS:
        label, name = path.split("/")
        lines.append(row.format(label=label, name=name))
    return "\n".join([*lines, end]).encode(encoding)


TABLES = [
    listing('"path";"label"', '"{label}/{name}";"{label}"'),
    listing("path\tlabel", "{label}/{name}\t{label}", "utf-16"),
    listing("Path, LABEL", "./{label}/{name}, {label} ", "utf-8-sig"),
    listing("path,label,", "{label}\\..\\{label}\\{name},{label},", end=",\n , \n\n"),
]


@pytest.mark.parametrize("content", TABLES)
def test_tables_as_spreadsheets_write_them(content: bytes, tmp_path: Path) -> None:
    make_images(tmp_path, THREE, 3)
    (tmp_path / "table.csv").write_bytes(content)
    source = built("manifest", tmp_path / "table.csv")
    assert source.class_names == ["blue", "green"]
    assert sorted([*source.train.names, *source.test.names]) == ROWS


def test_an_excel_workbook(tmp_path: Path) -> None:
    make_images(tmp_path, THREE, 3)
    rows = pd.DataFrame({"path": ROWS, "label": [7] * 3 + [12] * 3})
    rows.to_excel(tmp_path / "table.xlsx", index=False)
    source = built("manifest", tmp_path / "table.xlsx")
    assert source.class_names == ["12", "7"]


def test_bare_ids_are_asked_about_and_completed(tmp_path: Path) -> None:
    make_images(tmp_path / "train", THREE, 2)
    for path in sorted((tmp_path / "train").rglob("*.png")):
        path.rename(tmp_path / "train" / f"{path.parent.name}{path.name}")
    (tmp_path / "labels.csv").write_text("id,breed\nblue0,a\nblue1,a\nred0,b\nred1,b")
    own = {"path": "id", "label": "breed"}
    with pytest.raises(DataError, match=r"did you mean train/blue0\.png\?") as caught:
        built("manifest", tmp_path / "labels.csv", own=own)
    pattern = str(caught.value).rpartition("pattern ")[2].strip("'")
    assert pattern == "train/{}.png"
    own["pattern"] = pattern
    source = built("manifest", tmp_path / "labels.csv", own=own)
    assert source.class_names == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "name"), [("embeddings", "a.npz"), ("webdataset", "a.tar")]
)
def test_pointers_of_git_lfs_are_named(source: str, name: str, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:17\nsize 9\n"
    (tmp_path / name).write_bytes(pointer)
    with pytest.raises(DataError, match="git lfs pull"):
        built(source, tmp_path / name)


def test_learn_and_classify_files_by_the_command_line(tmp_path, capsys):
    z, y = vectors(200, width=16, classes=10)
    files = tmp_path / "files"
    files.mkdir()
    np.savez(files / "train.npz", embeddings=z[:150], labels=y[:150])
    ids = [f"s{i}" for i in range(50)]
    np.savez(files / "test.npz", embeddings=z[150:], labels=y[150:], ids=ids)
    line = f"--data.source embeddings --data.root {files} --model.head RidgeHead"
    run = learned(tmp_path, *line.split(), "--data.classes_per_task", "5")
    assert "backbone, pixels:8 is left out" in capsys.readouterr().out
    assert "backbone: none:16" in (run / "config.yaml").read_text()
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, embeddings=z[:, :8])
    table = tmp_path / "classes.csv"
    images = f"--images {files}/test.npz --output {table}"
    for line, code, said in (
        (f"classify {images}", 0, ""),
        (f"classify {images} --gallery {tmp_path}/a.png", 2, "--gallery needs images"),
        (f"audit --output {tmp_path}/audit", 2, "give them with --images"),
        (f"classify --images {narrow} --output {tmp_path}/b", 1, "expected (n, 16)"),
    ):
        assert main([*line.split(), "--model", str(run), "--overwrite", "true"]) == code
        assert said in capsys.readouterr().err
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert rows[7][0] == f"{files}/test.npz#s7"
    correct = [row[1] == str(label) for row, label in zip(rows, y[150:], strict=True)]
    assert np.mean(correct) > 0.9


def test_a_file_is_mapped_as_long_as_what_was_read_of_it(tmp_path):
    np.savez(tmp_path / "z.npz", embeddings=np.ones((9, 2)))
    (block,) = open_table(tmp_path / "z.npz").blocks()
    z = block.matrix("embeddings")
    mapped = weakref.ref(z._mmap)
    assert mapped() is not None
    del z
    assert mapped() is None
