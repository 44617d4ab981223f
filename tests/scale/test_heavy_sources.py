"""Data sources of large packages: the shared suite, the same photos in every format, and what is wrong with them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.data.image_sets import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.utilities.errors import DataError
from tests.data import test_sources
from tests.data.layouts import NUMBERED, THREE, Case, encoded, photo
from tests.data.test_sources import source  # noqa: F401
from tests.data.test_tar_shards import OPTIONS, photos  # noqa: F401
from tests.data.tree import COLOURS, class_tree

datasets = pytest.importorskip("datasets")
litdata = pytest.importorskip("litdata")
webdataset = pytest.importorskip("webdataset")
pytestmark = [pytest.mark.scale, pytest.mark.timeout(600)]


def rows(first: int, count: int) -> dict[str, list[Any]]:
    """Columns of a table of images and labels."""
    numbers = range(first, first + count)
    images = [{"bytes": encoded(COLOURS[THREE[i % 3]], i), "path": None} for i in numbers]
    return {"image": images, "label": [i % 3 for i in numbers]}


def features(names: list[str] | None = None) -> Any:
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    return datasets.Features({"image": datasets.Image(), "label": label})


def parquet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Parquet file, without a test part."""
    datasets.Dataset.from_dict(rows(0, 15), features()).to_parquet(str(root / "table.parquet"))


def saved(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``save_to_disk`` writes, with names of classes and a test part."""
    parts = {"train": (0, 12), "test": (60, 3)}
    made = {part: datasets.Dataset.from_dict(rows(*span), features(list(THREE))) for part, span in parts.items()}
    datasets.DatasetDict(made).save_to_disk(str(root))


def image_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_tree(root / "train", 5)
    for i, name in enumerate(THREE):
        (root / "test" / name).mkdir(parents=True)
        photo(COLOURS[name], seed=100 + i).save(root / "test" / name / "0.png")


def sample(i: int) -> dict[str, Any]:
    return {"image": encoded(COLOURS[THREE[i % 3]], i), "label": THREE[i % 3]}


def chunks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for subset, numbers in (("train", range(12)), ("test", range(60, 63))):
        litdata.optimize(sample, list(numbers), str(root / subset), chunk_size=5, num_workers=1)


HEAVY = [
    Case("hf", parquet, NUMBERED, (12, 3), file="table."),
    Case("hf", saved, THREE, (12, 3)),
    Case("hf", image_folder, THREE, (15, 3)),
    Case("litdata", chunks, THREE, (12, 3)),
]


@pytest.fixture(params=HEAVY, ids=test_sources._id)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("HF_HOME", str(tmp_path.parent / "hf"))
    request.param.write(tmp_path, monkeypatch)
    return request.param


class TestHeavySources(test_sources.TestEverySource):
    """The suite of all sources."""


class TestHeavySourcesOfImages(test_sources.TestEverySourceOfImages):
    """The suite of all sources of images."""


# ---------------------------------------------------------------------- the same photos


def of_file(root: Path, name: str) -> dict[str, Any]:
    return {"image": (root / name).read_bytes(), "label": name.split("/")[2]}


@pytest.fixture(scope="module")
def formats(photos: Path) -> dict[str, tuple[str, Path]]:  # noqa: F811
    """The photos of ``photos`` in every format."""
    table = [line.split(",") for line in (photos / "table.csv").read_text().splitlines()[1:]]
    parts = {subset: [path for path, _, split in table if split == subset] for subset in ("train", "test")}
    for subset, files in parts.items():
        litdata.optimize(partial(of_file, photos), files, str(photos / "chunks" / subset), chunk_size=7, num_workers=2)
        (photos / "wds").mkdir(exist_ok=True)
        with webdataset.ShardWriter(str(photos / "wds" / f"{subset}-%03d.tar"), maxcount=8, verbose=0) as writer:
            for i, path in enumerate(files):
                made = of_file(photos, path)
                writer.write({"__key__": f"{i:05d}", "png": made["image"], "txt": made["label"]})
    columns = {
        subset: [{"image": {"bytes": s["image"], "path": None}, "label": s["label"]} for s in samples]
        for subset, samples in {p: [of_file(photos, f) for f in files] for p, files in parts.items()}.items()
    }
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    (photos / "parquet").mkdir()
    for subset, samples in columns.items():
        datasets.Dataset.from_list(samples, kinds).to_parquet(str(photos / "parquet" / f"{subset}-00000.parquet"))
    return {
        "folder": ("folder", photos / "folder"),
        "manifest": ("manifest", photos / "table.csv"),
        "tar": ("webdataset", photos / "wds"),
        "litdata": ("litdata", photos / "chunks"),
        "parquet": ("hf", photos / "parquet"),
    }


def test_every_format_gives_the_same_run(formats: dict[str, tuple[str, Path]], tmp_path: Path):
    """A_k, weights and the content of every photo, with workers that decode."""
    result = {}
    for name, (kind, root) in formats.items():
        options = ["--data.source", kind, "--data.root", str(root), "--data.num_workers", "2"]
        assert main(["fit", *OPTIONS, *options, "--logs", str(tmp_path), "--experiment", name]) == 0
        run = tmp_path / name / "version_0"
        result[name] = cifnet_pl.load(run), json.loads((run / "summary.json").read_text())
    model, summary = result["folder"]
    for name, (other, about) in result.items():
        assert about["A_k"] == summary["A_k"], name
        assert other.photos.content.tolist() == model.photos.content.tolist(), name
        np.testing.assert_allclose(other.head.weights, model.head.weights, rtol=1e-9, atol=1e-12, err_msg=name)


# ---------------------------------------------------------------------- what is wrong


def build(kind: str, root: Path, **own: str) -> Any:
    return build_source(kind, SourceOptions(root, own=own))


def test_wrong_names_say_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved(tmp_path, monkeypatch)
    with pytest.raises(DataError, match=r"has no column 'photo', it has image \(Image\), label \(ClassLabel\)"):
        build("hf", tmp_path, image="photo")
    with pytest.raises(DataError, match="has no split 'validation', it has train, test"):
        build("hf", tmp_path, test="validation")


def test_no_split_for_training(tmp_path: Path):
    made = datasets.Dataset.from_dict(rows(0, 6), features())
    datasets.DatasetDict({"unsupervised": made}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(DataError, match=r"has no split train, it has unsupervised: name one with"):
        build("hf", tmp_path / "d")
    assert len(build("hf", tmp_path / "d", train="unsupervised").val)  # a dataset without a test split


def test_float_labels_and_empty_cells(tmp_path: Path):
    for values, sentence in (([0.5, 1.5], r"a label is 0\.5 \(float\)"), ([1, None], "is empty in row 1")):
        made = datasets.Dataset.from_dict({"image": rows(0, 2)["image"], "label": values})
        made.to_parquet(str(tmp_path / "t.parquet"))
        with pytest.raises(DataError, match=sentence):
            build("hf", tmp_path / "t.parquet")


def test_the_network_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"cannot load hf:someone/flowers: .*; allow the download with"):
        build_source("hf:someone/flowers", SourceOptions())


def test_a_folder_that_litdata_did_not_write(tmp_path: Path):
    with pytest.raises(DataError, match=r"has no index\.json"):
        build("litdata", tmp_path)
