"""Data sources of large packages: the shared suite, the same images in every format, and what is
wrong with them.
"""

import json
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.utilities.errors import DataError
from tests.command_line import FAST, make_images
from tests.data import test_sources
from tests.data.entrances import png
from tests.data.layouts import NUMBERED, THREE, Case
from tests.data.test_tar_shards import write
from tests.data.tree import COLOURS, class_tree, image

datasets = pytest.importorskip("datasets")
webdataset = pytest.importorskip("webdataset")
pytestmark = [pytest.mark.scale, pytest.mark.timeout(600)]


def rows(first: int, count: int) -> dict[str, list[Any]]:
    """Columns of a table of images and labels."""
    numbers = range(first, first + count)
    rows = [{"bytes": png(i), "path": None} for i in numbers]
    return {"image": rows, "label": [i % 3 for i in numbers]}


def features(names: list[str] | None = None) -> Any:
    if names:
        label = datasets.ClassLabel(names=names)
    else:
        label = datasets.Value("int64")
    return datasets.Features({"image": datasets.Image(), "label": label})


def in_pieces(root: Path) -> None:
    """Uneven Parquet files of row groups of two, with names of classes and a test part; another
    column is large.
    """
    for file, first, count in (
        ("train-0", 0, 1),
        ("train-1", 1, 9),
        ("train-2", 10, 2),
        ("test-0", 60, 3),
    ):
        columns = {**rows(first, count), "notes": ["x" * 10_000] * count}
        kinds = datasets.Features(
            {**features(list(THREE)), "notes": datasets.Value("string")}
        )
        table = datasets.Dataset.from_dict(columns, kinds)
        table.to_parquet(str(root / f"{file}.parquet"), batch_size=2)


def parquet(root: Path) -> None:
    """One Parquet file, without a test part."""
    datasets.Dataset.from_dict(rows(0, 15), features()).to_parquet(
        str(root / "table.parquet")
    )


def saved(root: Path) -> None:
    """What ``save_to_disk`` writes, with names of classes and a test part."""
    parts = {"train": (0, 12), "test": (60, 3)}
    made = {
        part: datasets.Dataset.from_dict(rows(*span), features(list(THREE)))
        for part, span in parts.items()
    }
    datasets.DatasetDict(made).save_to_disk(str(root))


def image_folder(root: Path) -> None:
    class_tree(root / "train", 5)
    for i, name in enumerate(THREE):
        (root / "test" / name).mkdir(parents=True)
        image(COLOURS[name], seed=100 + i).save(root / "test" / name / "0.png")


HEAVY = [
    Case("hf", parquet, NUMBERED, (12, 3), file="table."),
    Case("hf", in_pieces, THREE, (12, 3)),
    Case("hf", saved, THREE, (12, 3)),
    Case("hf", image_folder, THREE, (15, 3)),
]


@pytest.mark.parametrize("case", HEAVY, ids=lambda case: case.write.__name__)
def test_what_every_source_promises(case, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path.parent / "hf"))
    test_sources.check_source(test_sources.as_shipped(case, tmp_path))


# ---------------------------------------------------------------------- the same images


CLASSES = ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three classes in folders, in a table and in uneven shards, in no order of
    classes.
    """
    root = tmp_path_factory.mktemp("images")
    make_images(root / "folder" / "train", CLASSES, 12)
    make_images(root / "folder" / "val", CLASSES, 15)
    rows = ["path,label,split"]
    for split, word in (("train", "train"), ("val", "test")):
        for path in (root / "folder" / split).rglob("*.png"):
            if split == "val" and int(path.stem) < 12:
                path.unlink()  # the same noise as for training
        files = sorted(
            (root / "folder" / split).rglob("*.png"),
            key=lambda path: (path.stem, path.parent.name),
        )
        if split == "train":
            cuts = [0, 1, 20, len(files)]
        else:
            cuts = [0, len(files)]
        for number, (a, b) in enumerate(pairwise(cuts)):
            samples = [
                (
                    f"{f.parent.name}-{f.stem}",
                    {"png": f.read_bytes(), "txt": f.parent.name.encode()},
                )
                for f in files[a:b]
            ]
            write(root / "shards" / f"{word}-{number}.tar", samples)
        rows += [
            f"{path.relative_to(root)},{path.parent.name},{word}" for path in files
        ]
    (root / "table.csv").write_text("\n".join(rows))
    return root


OPTIONS = [
    *FAST[:2],
    *["--model.head", "RidgeHead", "--model.engine", "torch", "--data.image_size", "8"],
    *["--data.classes_per_task", "1", "--energy.enabled", "false"],
]


def of_file(root: Path, name: str) -> dict[str, Any]:
    return {"image": (root / name).read_bytes(), "label": name.split("/")[2]}


def pack(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*.png")):
            file.write(path, path.relative_to(folder))
    return archive


@pytest.fixture(scope="module")
def formats(images: Path) -> dict[str, list[str]]:
    """The images of ``images`` in every format, in no order of classes: the options that read
    each.
    """
    table = [
        line.split(",") for line in (images / "table.csv").read_text().splitlines()[1:]
    ]
    parts = {
        subset: [path for path, _, split in table if split == subset]
        for subset in ("train", "test")
    }
    (images / "wds").mkdir()
    (images / "parquet").mkdir()
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("string")}
    )
    for subset, files in parts.items():
        samples = [of_file(images, path) for path in files]
        with webdataset.ShardWriter(
            str(images / "wds" / f"{subset}-%03d.tar"), maxcount=8, verbose=0
        ) as writer:
            for i, made in enumerate(samples):
                writer.write(
                    {"__key__": f"{i:05d}", "png": made["image"], "txt": made["label"]}
                )
        rows_of = [
            {"image": {"bytes": made["image"], "path": None}, "label": made["label"]}
            for made in samples
        ]
        # Uneven files, of row groups of five.
        for number, part in enumerate((rows_of[:1], rows_of[1:])):
            path = str(images / "parquet" / f"{subset}-{number:05d}.parquet")
            datasets.Dataset.from_list(part, kinds).to_parquet(path, batch_size=5)
    roots = {
        "folder": "folder",
        "manifest": "table.csv",
        "webdataset": "wds",
        "hf": "parquet",
    }
    options = {
        kind: ["--data.source", kind, "--data.root", str(images / root)]
        for kind, root in roots.items()
    }
    packed = pack(images / "folder", images / "images.zip")
    options["zip"] = ["--data.source", "folder", "--data.root", str(packed)]
    return options


@pytest.fixture(scope="module")
def runs(
    formats: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A run over each format with two workers that decode."""
    logs = tmp_path_factory.mktemp("logs")
    found = {}
    same = [
        *OPTIONS,
        "--data.batch_size",
        "4",
        "--logs",
        str(logs),
        "--data.num_workers",
    ]
    for name, options in formats.items():
        assert main(["fit", *same, "2", "--experiment", name, *options]) == 0
        found[name] = logs / name / "version_0"
    return found


def test_every_format_gives_the_same_run(runs: dict[str, Path]):
    """A_k, weights, and the content of every image, each counted once."""
    model = cifnet_pl.load(runs["folder"])
    expected = json.loads((runs["folder"] / "summary.json").read_text())["A_k"]
    for name, run in runs.items():
        other = cifnet_pl.load(run)
        assert json.loads((run / "summary.json").read_text())["A_k"] == expected, name
        assert other.counts == model.counts
        assert other.images.content.tolist() == model.images.content.tolist(), name
        np.testing.assert_allclose(
            other.head.weights, model.head.weights, rtol=1e-9, atol=1e-12, err_msg=name
        )


# ---------------------------------------------------------------------- what is wrong


def build(kind: str, root: Path, **own: str) -> Any:
    return build_source(kind, SourceOptions(root, own=own))


@pytest.mark.parametrize(
    ("option", "wrong", "known"),
    [
        ("image", "picture", ("image", "label")),
        ("test", "validation", ("train", "test")),
    ],
)
def test_wrong_names_say_what_there_is(
    option: str,
    wrong: str,
    known: tuple[str, ...],
    tmp_path: Path,
):
    saved(tmp_path)
    with pytest.raises(DataError) as raised:
        build("hf", tmp_path, **{option: wrong})
    for told in (wrong, *known, "--data.options."):
        assert told in str(raised.value)


def test_no_split_for_training(tmp_path: Path):
    made = datasets.Dataset.from_dict(rows(0, 6), features())
    datasets.DatasetDict({"unsupervised": made}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(
        DataError, match=r"train.* unsupervised.*--data\.options\.train"
    ):
        build("hf", tmp_path / "d")
    assert len(
        build("hf", tmp_path / "d", train="unsupervised").test
    )  # a dataset without a test split


@pytest.mark.parametrize(("values", "row"), [([0.5, 1.5], 0), ([1, None], 1)])
def test_float_labels_and_empty_cells(
    values: list[float | None], row: int, tmp_path: Path
):
    columns = {"image": rows(0, 2)["image"], "label": values}
    file = tmp_path / "t.parquet"
    datasets.Dataset.from_dict(columns).to_parquet(str(file))
    with pytest.raises(DataError, match=f"{file.name}: a label is {values[row]}"):
        build("hf", file)


def test_the_network_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        DataError, match=r"cannot load hf:someone/flowers: .*; allow the download with"
    ):
        build_source("hf:someone/flowers", SourceOptions())
