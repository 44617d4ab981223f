"""Tables of embeddings and of image files: what is read, what is refused, and a model of given
embeddings.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.sources.tables import open_table
from cifnet_pl.data.streams import Domains, Listed, make_plan
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.data.layouts import listed, vectors
from tests.data.tree import class_tree


def write(folder: Path, **arrays: Any) -> Path:
    z, y = vectors()
    path = folder / "embeddings.npz"
    np.savez(path, **{"embeddings": z, "labels": y, **arrays})
    return path


def read_all(path: Path, **own: Any) -> None:
    source = build_source("embeddings", SourceOptions(path, own=own))
    for split in (source.train, source.test):
        split.get(np.arange(len(split)))


def refused(path: Path, **own: Any) -> str:
    with pytest.raises((DataError, UsageError)) as caught:
        read_all(path, **own)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_uncompressed_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    table = open_table(write(tmp_path))
    assert isinstance(table.matrix("embeddings"), np.memmap)
    assert (table.matrix("embeddings") == vectors()[0]).all()
    fortran = np.asfortranarray(vectors()[0])
    assert (
        open_table(write(tmp_path, embeddings=fortran)).matrix("embeddings") == fortran
    ).all()


def test_rows_come_as_asked_for(tmp_path: Path) -> None:
    z, y = vectors()
    source = build_source("embeddings", SourceOptions(write(tmp_path)))
    for rows in (np.array([5, 2, 9]), np.arange(3, 8), np.zeros(0, dtype=np.int64)):
        original = [int(source.train.names[row]) for row in rows]
        assert (source.train.get(rows).numpy() == z[original]).all()
        assert (source.train.labels[rows] == y[original]).all()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (
            {"labels": np.linspace(0, 1, 30)},
            r"the label in row 0 .* is 0\.0 \(float\), expected integers or names",
        ),
        (
            {"labels": np.zeros(29, dtype=int)},
            r"'labels' has shape \(29,\), expected \(30,\)",
        ),
        (
            {"labels": np.array([None] * 30)},
            r"save labels\.astype\(str\)",
        ),
        ({"embeddings": np.zeros((30, 2), dtype=int)}, "dtype int64, expected"),
        ({"ids": np.arange(30) // 2}, "id '0' stands there twice"),
        ({"split": np.array(["train"] * 30)}, "the test split has no sample"),
        (
            {"split": np.where(np.arange(30) % 3 == 1, "test", "train")},
            "class '1' has no training sample",
        ),
    ],
)
def test_bad_arrays(
    arrays: dict[str, np.ndarray], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=sentence):
        build_source("embeddings", SourceOptions(write(tmp_path, **arrays)))


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_rows_that_are_not_finite_are_named(number: float, tmp_path: Path) -> None:
    z = vectors()[0].astype(np.float64)
    z[17, 2] = number
    assert "no finite float32 in row 17" in refused(write(tmp_path, embeddings=z))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"embeddings": [[1.0, 2.0]] * 4 + [[1.0]] + [[1.0, 2.0]] * 3},
            "must have the same shape",
        ),
        ({"embeddings": [[1.0, 2.0], [1.0, None]] * 4}, "no finite float32 in row"),
        ({"embeddings": [["1", "2"]] * 8}, "expected (n, d) floats"),
        ({"labels": [0, None] * 4}, "'labels' has nothing in row 1"),
        ({"labels": [0.5, 1.5] * 4}, "is 0.5 (float)"),
    ],
)
def test_tables_with_holes_or_other_types(
    columns: dict[str, list[Any]], sentence: str, tmp_path: Path
) -> None:
    whole = pyarrow.table(
        {"embeddings": [[1.0, 2.0]] * 8, "labels": [0, 1] * 4, **columns}
    )
    pyarrow.parquet.write_table(whole, tmp_path / "a.parquet")
    assert sentence in refused(tmp_path / "a.parquet")


def test_files_that_are_no_embeddings(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path / "nowhere.npz")
    (tmp_path / "a.pkl").write_bytes(b"x")
    assert "unknown kind of table" in refused(tmp_path / "a.pkl")
    whole = write(tmp_path).read_bytes()
    for name, content in {"cut.npz": whole[:200], "a.parquet": b"no"}.items():
        (tmp_path / name).write_bytes(content)
        assert f"cannot read {tmp_path / name}" in refused(tmp_path / name)
    with pytest.raises(UsageError, match=r"no file was given: set --data\.root"):
        build_source("embeddings", SourceOptions())


# ---------------------------------------------------------------------- lists of image files


def test_tasks_and_domains_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(tmp_path, monkeypatch)
    source = build_source("manifest", SourceOptions(tmp_path / "table.csv"))
    plan = make_plan(source, Listed(), None, 3)
    numbers = [
        sorted(int(Path(source.train.names[i]).stem) for i in plan.rows[k])
        for k in (0, 1)  # the tasks 9 and 10
    ]
    assert numbers == [list(range(0, 18, 2)), list(range(1, 18, 2))]
    domains = make_plan(source, Domains(["b", "a"]), None, 3)
    assert [int(Path(source.train.names[i]).stem) % 2 for i in domains.rows[0]] == [
        1
    ] * 9


def test_the_same_images_as_folders_are_the_same_classes_and_split_share(
    tmp_path: Path,
) -> None:
    root = class_tree(tmp_path, 5)
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    (root / "all.csv").write_text(
        "\ufeffpath,label\n"
        + "".join(f"{name},{name.split('/')[0]}\n" for name in files)
    )
    one = build_source("manifest", SourceOptions(root / "all.csv"))
    two = build_source("folder", SourceOptions(root))
    assert one.class_names == two.class_names
    for mine, other in ((one.train, two.train), (one.test, two.test)):
        assert list(mine.names) == list(other.names)
        assert mine.labels.tolist() == other.labels.tolist()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("file,label\nblue/0.png,blue\n", r"has no column 'path', it has file, label"),
        ("path,label\n", "lists no image"),
        ("path,label\nblue/0.png,\n", "row 1 has nothing for label"),
        (
            'path,label\n"blue/0.png","a\nb"\n',
            r"class name 'a\\nb' has control characters",
        ),
        (
            "path,label\nblue/0.png,a\nblue/99.png,b\n",
            "lists 1 files .*blue/99.png",
        ),
        (
            "path,label,split\nblue/0.png,a,fold 2\n",
            "has split 'fold 2', expected train or test",
        ),
        (
            "path,label,split\nblue/0.png,a,test\nblue/1.png,b,train\n",
            "class 'a' has no training sample",
        ),
    ],
)
def test_bad_tables(table: str, sentence: str, tmp_path: Path) -> None:
    class_tree(tmp_path, 3)
    (tmp_path / "table.csv").write_text(table)
    with pytest.raises(DataError, match=sentence):
        build_source("manifest", SourceOptions(tmp_path / "table.csv"))


ROWS = [f"{name}/{i}.png" for name in ("blue", "green") for i in range(3)]


def listing(header: str, separator: str, ending: str = "") -> str:
    """Return a table over ``ROWS``."""
    lines = [header.replace(",", separator)]
    for path in ROWS:
        lines.append(f"{path}{separator}{path.split('/')[0]}{ending}")
    return "\n".join(lines)


TABLES = {
    "semicolons": listing("path,label", ";").encode(),
    "tabs": listing("path,label", "\t").encode(),
    "UTF-16": listing("path,label", "\t").encode("utf-16"),
    "UTF-8 with a mark": listing("path,label", ",").encode("utf-8-sig"),
    "spaces": listing("path, label", ", ", " ").encode(),
    "capitals": listing("Path,LABEL", ",").encode(),
    "backslashes": listing("path,label", ",").replace("/", "\\").encode(),
    "dots": listing("path,label", ",").replace("blue/", "./blue/../blue/").encode(),
    "empty cells at the ends": listing("path,label,", ",", ",").encode(),
    "empty rows": listing("path,label", ",").encode() + b"\n,\n , \n\n",
    "quotes": "\n".join(
        ['"path";"label"', *(f'"{p}";"{p.split("/")[0]}"' for p in ROWS)]
    ).encode(),
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
def test_tables_as_spreadsheets_write_them(content: bytes, tmp_path: Path) -> None:
    class_tree(tmp_path, 3)
    (tmp_path / "table.csv").write_bytes(content)
    source = build_source("manifest", SourceOptions(tmp_path / "table.csv"))
    assert source.class_names == ["blue", "green"]
    assert sorted([*source.train.names, *source.test.names]) == ROWS
    empty = content == TABLES["empty rows"]
    assert any("2 empty rows" in note for note in source.notes) == empty


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "path,label\nblue/0.png,Käfer\n".encode("latin-1"),
            "not UTF-8: .*: save it as CSV UTF-8",
        ),
        (b"path,label,label\nblue/0.png,a,b\n", "two columns 'label'"),
        (b"path,label\nblue/0.png,a\nblue/../blue/0.png,b\n", "stands there twice"),
        (b"path,label\nblue/0.png,a,b\n", "Expected 2 fields in line 2, saw 3"),
        (b"", "No columns to parse from file"),
    ],
)
def test_tables_that_cannot_be_read(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    class_tree(tmp_path, 3)
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        build_source("manifest", SourceOptions(tmp_path / "table.csv"))


def test_an_excel_workbook(tmp_path: Path) -> None:
    class_tree(tmp_path, 3)
    rows = pd.DataFrame({"path": ROWS, "label": [7] * 3 + [12] * 3})
    rows.to_excel(tmp_path / "table.xlsx", index=False)
    source = build_source("manifest", SourceOptions(tmp_path / "table.xlsx"))
    assert source.class_names == ["12", "7"]


# ---------------------------------------------------------------------- through the command line


def fit(path: Path, logs: Path, *options: str) -> int:
    """The documented line."""
    line = f"fit --data.source embeddings --data.root {path} --data.classes_per_task 5"
    fast = f"--model.head RidgeHead --logs {logs} --energy.enabled false"
    return main([*line.split(), *fast.split(), *options])


def test_learn_export_and_classify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    z, y = vectors(200, width=16, classes=10)
    path = tmp_path / "vectors.npz"
    np.savez(path, embeddings=z, labels=y, ids=np.array([f"s{i}" for i in range(200)]))
    assert fit(path, tmp_path) == 0
    bundle = tmp_path / "bundle"
    table = tmp_path / "classes.csv"
    export = f"export --model {tmp_path}/default --output {bundle}"
    assert main(export.split()) == 0

    def classify(images: Path, output: Path, *options: str) -> int:
        line = f"classify --model {bundle} --images {images} --output {output}"
        return main([*line.split(), *options])

    assert classify(path, table) == 0
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert rows[7][0] == f"{path}#s7"
    correct = [row[1] == str(label) for row, label in zip(rows, y, strict=True)]
    assert np.mean(correct) > 0.9
    capsys.readouterr()
    gallery = ["--gallery", str(tmp_path / "a.png"), "--overwrite", "true"]
    assert classify(path, table, *gallery) == 2
    assert "--gallery needs images" in capsys.readouterr().err
    audit = f"audit --model {bundle} --output {tmp_path}/audit"
    assert main(audit.split()) == 2
    assert "an audit needs images" in capsys.readouterr().err
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, embeddings=z[:, :8])
    assert classify(narrow, tmp_path / "b.csv") == 1
    assert "expected (n, 16)" in capsys.readouterr().err


def test_a_backbone_is_left_out_and_a_configuration_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    few = ["--data.classes_per_task", "2"]
    assert fit(path, tmp_path, "--model.backbone", "pixels", *few) == 0
    assert "backbone, pixels is left out" in capsys.readouterr().out
    saved = tmp_path / "default" / "version_0" / "config.yaml"
    assert "backbone: none:4" in saved.read_text()
    assert main(["fit", "--config", str(saved)]) == 0


# ---------------------------------------------------------------------- names of files


def tables(root: Path, parts: dict[str, list[int]], ending: str) -> None:
    """Write tables of images, embeddings or images in cells, named after their splits."""
    for name, numbers in parts.items():
        labels = ["blue", "red"] * len(numbers)
        file = root / f"{name}{ending}"
        if ending == ".npz":
            z = np.array(numbers, dtype=float).repeat(4).reshape(-1, 2)
            np.savez(file, embeddings=z, labels=labels)
            continue
        paths = [f"{colour}/{i}.png" for i in numbers for colour in ("blue", "red")]
        if ending == ".csv":
            pd.DataFrame({"path": paths, "label": labels}).to_csv(file, index=False)
        else:
            cells = [{"bytes": (root / path).read_bytes()} for path in paths]
            rows = pd.DataFrame({"img": cells, "fine_label": labels, "path": paths})
            rows.assign(label=labels).to_parquet(file)


@pytest.mark.parametrize("root", ["", "*[0-9]-of-*"])
@pytest.mark.parametrize(
    ("source", "ending"),
    [
        ("manifest", ".csv"),
        ("manifest", ".parquet"),
        ("embeddings", ".npz"),
        ("cifar100", ".parquet"),
        ("hf", ".parquet"),
    ],
)
def test_files_whose_names_tell_their_splits(
    source: str, root: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rule for all sources; Hugging Face's own does not know "tst"."""
    if source == "hf":
        pytest.importorskip("datasets", reason="the extra `hf` is missing")
        monkeypatch.setenv("HF_HOME", str(tmp_path.parent / "hf"))
    class_tree(tmp_path, 4)
    parts = {
        "train-00000-of-00002": [0],
        "train-00001-of-00002": [1],
        "tst-0-of-1": [2, 3],
    }
    tables(tmp_path, parts, ending)
    made = build_source(source, SourceOptions(tmp_path / root))
    assert made.class_names == ["blue", "red"]
    assert (len(made.train), len(made.test), made.held_out) == (4, 4, False)
    assert not set(made.train.hashes(np.arange(4))) & set(
        made.test.hashes(np.arange(4))
    )
    if source != "hf":
        assert "note: splits by the names of files: 2 train, 1 test" in made.notes


def test_bare_ids_are_asked_about_and_completed(tmp_path: Path) -> None:
    class_tree(tmp_path / "train", 2)
    for path in sorted((tmp_path / "train").rglob("*.png")):
        path.rename(tmp_path / "train" / f"{path.parent.name}{path.name}")
    rows = pd.DataFrame(
        {"id": ["blue0", "blue1", "red0", "red1"], "breed": list("aabb")}
    )
    rows.to_csv(tmp_path / "labels.csv", index=False)
    own = {"path": "id", "label": "breed"}
    options = SourceOptions(tmp_path / "labels.csv", own=own)
    with pytest.raises(DataError, match=r"did you mean train/blue0\.png\?") as caught:
        build_source("manifest", options)
    pattern = str(caught.value).rpartition("pattern ")[2].strip("'")
    assert pattern == "train/{}.png"
    completed = SourceOptions(options.root, own=own | {"pattern": pattern})
    assert build_source("manifest", completed).class_names == ["a", "b"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_objects_are_explained(save: Any, tmp_path: Path) -> None:
    z, y = vectors()
    save(tmp_path / "a.npz", embeddings=z, labels=y.astype(str).astype(object))
    said = refused(tmp_path / "a.npz")
    assert "'labels'" in said
    assert "labels.astype(str)" in said
    assert "pickle" not in said


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("embeddings", "a.npz"),
        ("embeddings", "a.parquet"),
        ("manifest", "a.csv"),
        ("webdataset", "a.tar"),
    ],
)
def test_pointers_of_git_lfs_are_named(source: str, name: str, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:17\nsize 9\n"
    (tmp_path / name).write_bytes(pointer)
    with pytest.raises(DataError, match="git lfs pull"):
        build_source(source, SourceOptions(tmp_path / name))
