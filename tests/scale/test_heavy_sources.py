"""Data sources of large packages: the shared suite, the same images in every format, and what is
wrong with them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.utilities.errors import DataError
from tests.command_line import FAST, make_images, summary_of
from tests.data import test_sources
from tests.data.entrances import class_folders, png, samples
from tests.data.layouts import NUMBERED, THREE, Case

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
    notes = {"notes": datasets.Value("string")}
    kinds = datasets.Features({**features(list(THREE)), **notes})
    spans = {
        "train-0": (0, 1),
        "train-1": (1, 9),
        "train-2": (10, 2),
        "test-0": (60, 3),
    }
    for file, (first, count) in spans.items():
        columns = {**rows(first, count), "notes": ["x" * 10_000] * count}
        table = datasets.Dataset.from_dict(columns, kinds)
        table.to_parquet(str(root / f"{file}.parquet"), batch_size=2)


def parquet(root: Path) -> None:
    """One Parquet file, without a test part."""
    table = datasets.Dataset.from_dict(rows(0, 15), features())
    table.to_parquet(str(root / "table.parquet"))


def saved(root: Path) -> None:
    """What ``save_to_disk`` writes, with names of classes and a test part."""
    parts = {"train": (0, 12), "test": (60, 3)}
    made = {
        part: datasets.Dataset.from_dict(rows(*span), features(list(THREE)))
        for part, span in parts.items()
    }
    datasets.DatasetDict(made).save_to_disk(str(root))


def image_folder(root: Path) -> None:
    make_images(root / "train", THREE, 5)
    make_images(root / "test", THREE, 1, noise=20)


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


OPTIONS = [
    *FAST[:2],
    *["--model.head", "RidgeHead", "--model.engine", "torch", "--data.image_size", "8"],
    *["--data.classes_per_task", "1", "--energy.enabled", "false"],
    *["--data.batch_size", "4", "--data.num_workers", "2"],
]


def test_every_format_gives_the_same_run(tmp_path: Path):
    """A_k, weights, and the content of every image, each counted once; in no order of classes."""
    classes = ("ant", "bee", "cat")
    given = samples(*classes, count=12, split="train")
    given += samples(*classes, count=3, split="test", first=len(given))
    given.sort(key=lambda sample: sample.seed % 12)
    folder = class_folders(tmp_path, given)
    roots = {"folder": folder, "webdataset": tmp_path / "w", "hf": tmp_path / "h"}
    for name in ("webdataset", "hf"):
        roots[name].mkdir()
    text = datasets.Value("string")
    kinds = datasets.Features({"image": datasets.Image(), "label": text})
    for split in ("train", "test"):
        rows = []
        tars = str(roots["webdataset"] / f"{split}-%03d.tar")
        with webdataset.ShardWriter(tars, maxcount=8, verbose=0) as writer:
            for sample in given:
                if sample.split == split:
                    image, label = png(sample.seed), sample.label
                    key = f"{sample.seed:05d}"
                    writer.write({"__key__": key, "png": image, "txt": label})
                    cell = {"bytes": image, "path": None}
                    rows.append({"image": cell, "label": label})
        # Uneven files, of row groups of five.
        for number, part in enumerate((rows[:1], rows[1:])):
            path = roots["hf"] / f"{split}-{number:05d}.parquet"
            datasets.Dataset.from_list(part, kinds).to_parquet(str(path), batch_size=5)
    found = {}
    for name, root in roots.items():
        words = ["--data.source", name, "--data.root", str(root), *OPTIONS]
        place = ["--logs", str(tmp_path), "--experiment", name]
        assert main(["fit", *words, *place]) == 0
        run = tmp_path / name / "version_0"
        accuracy = summary_of(run)["A_k"]
        found[name] = (cifnet_pl.load(run), accuracy)
    model, expected = found["folder"]
    for name, (other, accuracy) in found.items():
        assert accuracy == expected, name
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
def test_wrong_names_say_what_there_is(option, wrong, known, tmp_path):
    saved(tmp_path)
    with pytest.raises(DataError) as raised:
        build("hf", tmp_path, **{option: wrong})
    for told in (wrong, *known, "--data.options."):
        assert told in str(raised.value)


def test_no_split_for_training(tmp_path: Path):
    made = datasets.Dataset.from_dict(rows(0, 6), features())
    datasets.DatasetDict({"unsupervised": made}).save_to_disk(str(tmp_path / "d"))
    words = r"train.* unsupervised.*--data\.options\.train"
    with pytest.raises(DataError, match=words):
        build("hf", tmp_path / "d")
    # A dataset without a test split.
    assert len(build("hf", tmp_path / "d", train="unsupervised").test)


@pytest.mark.parametrize(("values", "row"), [([0.5, 1.5], 0), ([1, None], 1)])
def test_float_labels_and_empty_cells(values, row, tmp_path):
    columns = {"image": rows(0, 2)["image"], "label": values}
    file = tmp_path / "t.parquet"
    datasets.Dataset.from_dict(columns).to_parquet(str(file))
    with pytest.raises(DataError, match=f"{file.name}: a label is {values[row]}"):
        build("hf", file)


def test_the_network_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    words = r"cannot load hf:someone/flowers: .*; allow the download with"
    with pytest.raises(DataError, match=words):
        build_source("hf:someone/flowers", SourceOptions())
