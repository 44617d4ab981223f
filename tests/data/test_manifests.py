"""Tables of images: what a table says is what is learned, and what it gets wrong is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from cifnet_pl.data.plan import Plan
from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.streams import Domains, Listed
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.data.layouts import listed
from tests.data.tree import class_tree


def test_tasks_and_domains_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed(tmp_path, monkeypatch)
    source = build_source("manifest", SourceOptions(tmp_path / "table.csv"))
    assert source.tasks is not None
    assert source.tasks.names == ["9", "10"]  # as numbers
    plan = Plan(source, Listed(), None, 3, None, None)
    numbers = [sorted(int(Path(source.train.names[i]).stem) for i in plan.rows(k, ())) for k in (0, 1)]
    assert numbers == [list(range(0, 18, 2)), list(range(1, 18, 2))]
    domains = Plan(source, Domains(["b", "a"]), None, 3, None, None)
    assert [int(Path(source.train.names[i]).stem) % 2 for i in domains.rows(0, ())] == [1] * 9


def test_the_same_photos_as_folders_are_the_same_classes_and_split_share(tmp_path: Path) -> None:
    root = class_tree(tmp_path, 5)
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    (root / "all.csv").write_text("\ufeffpath,label\n" + "".join(f"{name},{name.split('/')[0]}\n" for name in files))
    one, two = build_source("manifest", SourceOptions(root / "all.csv")), build_source("folder", SourceOptions(root))
    assert one.class_names == two.class_names
    for mine, other in ((one.train, two.train), (one.val, two.val)):
        assert list(mine.names) == list(other.names)
        assert mine.labels.tolist() == other.labels.tolist()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("file,label\nblue/0.png,blue\n", r"has no column 'path', it has file, label"),
        ("", "has no column 'path', it has "),
        ("path,label\n", "lists no image"),
        ("path,label\nblue/0.png\n", "row 1 has 1 cells, the header has 2: blue/0.png"),
        ("path,label\nblue/0.png,\n", "row 1 has nothing for label"),
        ('path,label\n"blue/0.png","a\nb"\n', r"row 1 has control characters, 'a\\nb' for label"),
        ("path,label\nblue/0.png,a\nblue/0.png,b\n", r"lists an image twice \(blue/0.png\)"),
        ("path,label\nblue/0.png,a\nblue/99.png,b\n", "lists 1 files that are not there, the first is .*blue/99.png"),
        ("path,label,split\nblue/0.png,a,dev\n", "has split 'dev', expected train or test"),
        ("path,label,split\nblue/0.png,a,train\n", "the test part has no image"),
        ("path,label,split\nblue/0.png,a,test\nblue/1.png,b,train\n", "class 'a' has no training image"),
        ("path,label\nblue/0.png,1.0\nblue/1.png,2.0\n", r"the labels are floats \(1\.0\), expected integers or names"),
    ],
)
def test_bad_tables(table: str, sentence: str, tmp_path: Path) -> None:
    class_tree(tmp_path, 3)
    (tmp_path / "table.csv").write_text(table)
    with pytest.raises(DataError, match=sentence):
        build_source("manifest", SourceOptions(tmp_path / "table.csv"))


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no table was given"):
        build_source("manifest", SourceOptions())
    with pytest.raises(DataError, match=r"no file .*nowhere\.csv"):
        build_source("manifest", SourceOptions(tmp_path / "nowhere.csv"))
    (tmp_path / "a.xlsx").write_bytes(b"")
    with pytest.raises(UsageError, match="unknown kind of table"):
        build_source("manifest", SourceOptions(tmp_path / "a.xlsx"))
    (tmp_path / "a.csv").write_bytes(b"path\xff\xfe")
    with pytest.raises(DataError, match="cannot read"):
        build_source("manifest", SourceOptions(tmp_path / "a.csv"))


def test_a_parquet_table_with_holes_or_float_labels(tmp_path: Path) -> None:
    class_tree(tmp_path, 3)
    paths = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    labels = [path.split("/")[0] for path in paths]
    notes = [None, *range(1, len(paths))]
    for columns, sentence in (
        ({"path": [None, *paths[1:]], "label": labels}, "row 1 has nothing for path"),
        ({"path": paths, "label": [0.5] * len(paths)}, "the labels are floats"),
        ({"path": paths, "label": [None, *labels[1:]]}, "row 1 has nothing for label"),
    ):
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=sentence):
            build_source("manifest", SourceOptions(tmp_path / "t.parquet"))
    pyarrow.parquet.write_table(pyarrow.table({"path": paths, "kind": [1.0] * len(paths)}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="the labels are floats"):
        build_source("manifest", SourceOptions(tmp_path / "t.parquet", own={"label": "kind"}))
    pyarrow.parquet.write_table(pyarrow.table({"path": paths, "label": labels, "note": notes}), tmp_path / "t.parquet")
    assert len(build_source("manifest", SourceOptions(tmp_path / "t.parquet")).class_names) == len(set(labels))
