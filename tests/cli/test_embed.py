"""Images to vectors: the same as a run computes, in files that ``fit`` and other programs read."""

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import cifnet_pl
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.images.image import read_square
from tests.command_line import assert_ends, make_images, run_cifnet


@pytest.fixture
def images(tmp_path):
    make_images(tmp_path / "images" / "train", ["ant", "bee 猫"], 6)
    make_images(tmp_path / "images" / "val", ["ant", "bee 猫"], 2)
    (tmp_path / "images" / "train" / "ant" / "broken.png").write_bytes(b"no image")
    return tmp_path / "images"


def read(path):
    """Name → array of a file that was written."""
    if path.suffix == ".npz":
        return dict(np.load(path))
    table = pandas.read_parquet(path)
    return {name: np.stack(list(table[name])) for name in table}


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_what_the_file_holds(images, tmp_path, capsys, ending):
    target = tmp_path / f"v.{ending}"
    given = {"images": images, "output": target, "backbone": "pixels:4"}
    code = run_cifnet("embed", **given)
    columns = "embeddings, ids, labels, split"
    said = f"16 embeddings with 48 features in {target}: {columns}"
    assert_ends(code, 0, said, capsys)
    found = read(target)
    assert found["embeddings"].shape == (16, 48)
    assert found["embeddings"].dtype == np.float32
    network = cifnet_pl.build_backbone("pixels:4")
    for z, name, label, split in zip(*found.values(), strict=True):
        pixels = torch.from_numpy(read_square(images / name, 4).copy()).permute(2, 0, 1)
        assert np.array_equal(z, network(pixels[None])[0].numpy())
        assert name.split("/")[:2] == [split, label]
    assert_ends(run_cifnet("embed", **given), 2, "--overwrite true", capsys)
    learned = build_source("embeddings", SourceOptions(target))
    assert learned.class_names == ["ant", "bee 猫"]
    assert (len(learned.train), len(learned.test)) == (12, 4)


def test_images_without_classes_and_refusals(images, tmp_path, capsys):
    folder = images / "val" / "ant"
    loose = str(folder / "*.png")
    for given, name in ((loose, "v.npz"), (folder, "w.npz")):
        options = {"images": given, "output": tmp_path / name, "backbone": "pixels:4"}
        assert run_cifnet("embed", **options) == 0
        found = read(tmp_path / name)
        assert set(found) == {"embeddings", "ids"}
        assert {Path(file).name for file in found["ids"]} == {"0.png", "1.png"}
    assert set(found["ids"]) == {"0.png", "1.png"}
    broken = images / "train" / "ant" / "broken.png"
    for options, code, reason in (
        ({"output": "v.csv"}, 2, "known are: .npz, .parquet"),
        ({"backbone": "pixel"}, 2, "did you mean pixels"),
        ({"image_size": 1000000}, 2, "expected 1 to 2048 pixels"),
        ({"images": broken}, 1, "can be read"),
    ):
        given = {"images": loose, "output": "x.npz", "backbone": "pixels:4", **options}
        given["output"] = tmp_path / given["output"]
        assert_ends(run_cifnet("embed", **given), code, reason, capsys)
    assert not (tmp_path / "x.npz").exists()


def test_one_call(images):
    found = cifnet_pl.embed(images, "pixels:4")
    assert found.embeddings.shape == (16, 48)
    assert [file.suffix for file in found.files] == [".png"] * 16
    assert list(found.unreadable.values()) == ["no image of a known format"]
    content = found.files[3].read_bytes()
    z, files, _ = cifnet_pl.embed([content, found.files[3]], "pixels:4", image_size=4)
    assert torch.equal(z[0], z[1])
    assert torch.equal(z[1], found.embeddings[3])
    assert files == [None, found.files[3]]


def test_public_names_can_be_completed():
    assert {*cifnet_pl.__all__, "__version__"} <= set(dir(cifnet_pl))
    assert all(getattr(cifnet_pl, name) is not None for name in dir(cifnet_pl))
