"""Images to vectors: the same as a run computes, in files that ``fit`` and other programs read."""

import shutil

import numpy as np
import pandas
import pytest
import torch

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.images.image import read_square
from tests.command_line import assert_ends, make_images, run_cifnet

NETWORK = ["--backbone", "pixels:4"]


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
    assert (
        main(["embed", "--images", str(images), "--output", str(target), *NETWORK]) == 0
    )
    assert (
        f"16 embeddings with 48 features in {target}: embeddings, ids, labels, split"
        in capsys.readouterr().out
    )
    found = read(target)
    assert found["embeddings"].shape == (16, 48)
    assert found["embeddings"].dtype == np.float32
    network = cifnet_pl.build_backbone("pixels:4")
    for z, name, label, split in zip(*found.values(), strict=True):
        pixels = torch.from_numpy(read_square(images / name, 4).copy()).permute(2, 0, 1)
        assert np.array_equal(z, network(pixels[None])[0].numpy())
        assert name.split("/")[:2] == [split, label]
    assert (
        main(["embed", "--images", str(images), "--output", str(target), *NETWORK]) == 2
    )
    assert "--overwrite true" in capsys.readouterr().err
    # A model of these vectors is that of the images.
    (images / "train" / "ant" / "broken.png").unlink()
    learn = (
        "fit --model.head RidgeHead --energy.enabled false --data.classes_per_task 1"
    )
    given = f"--data.source embeddings --data.root {target} --logs {tmp_path}/a"
    assert main(f"{learn} {given}".split()) == 0
    given = f"--data.root {images} --data.source folder --model.backbone pixels:4"
    given += f" --data.image_size 4 --logs {tmp_path}/b"
    assert main(f"{learn} {given}".split()) == 0
    ours, theirs = (cifnet_pl.load(tmp_path / name / "default") for name in "ab")
    z = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.head(z), theirs.head(z), rtol=1e-9, atol=1e-9)


def test_images_without_classes_and_refusals(images, tmp_path, capsys):
    for path in (images / "val" / "ant").iterdir():
        shutil.copy(path, tmp_path / f"loose {path.name}")
    given = ["--images", str(tmp_path / "loose *"), "--output"]
    assert main(["embed", *given, str(tmp_path / "v.npz"), *NETWORK]) == 0
    assert set(read(tmp_path / "v.npz")) == {"embeddings", "ids"}
    assert (
        run_cifnet(
            "embed", *NETWORK, images=images / "val" / "ant", output=tmp_path / "w.npz"
        )
        == 0
    )
    assert set(read(tmp_path / "w.npz")["ids"]) == {"0.png", "1.png"}
    for words, code, reason in (
        ([*given, str(tmp_path / "v.csv")], 2, "known are: .npz, .parquet"),
        (
            [*given, str(tmp_path / "x.npz"), "--backbone", "pixel"],
            2,
            "did you mean pixels",
        ),
        (
            [*given, str(tmp_path / "x.npz"), *NETWORK, "--image_size", "1000000"],
            2,
            "expected 1 to 2048 pixels",
        ),
        (
            f"--images {images}/train/ant/broken.png --output {tmp_path}/x.npz".split(),
            1,
            "can be read",
        ),
    ):
        assert_ends(main(["embed", *words]), code, reason, capsys)
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
