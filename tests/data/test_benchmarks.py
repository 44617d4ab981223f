"""Benchmark sets as they are handed out: what is read and refused, and their options."""

import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from cifnet_pl.data.sources.benchmarks import set_names
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError
from tests.data.entrances import built
from tests.data.layouts import cifar100_parquet


def build(source: str, root, **own):
    return built(source, root, own=own)


@pytest.mark.parametrize(
    ("source", "archive"),
    [
        ("core50", r"core50_128x128\.zip from vlomonaco\.github\.io/core50"),
        ("imagenet100", r"image-net\.org.*train/<class>"),
        ("tinyimagenet", r"tiny-imagenet-200\.zip \(from cs231n\.stanford\.edu\)"),
        ("cifar100", "--data.download true"),
    ],
)
def test_a_missing_set_says_what_to_fetch_and_where_it_goes(source, archive, tmp_path):
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=f"{root}.*--data.root.*{archive}"):
            build(source, root)


def test_standard_sessions_are_for_testing(tmp_path) -> None:
    """A tree of CORe50's shape, whose pixels are the numbers of session and object."""
    for session in range(1, 12):
        for item in (1, 2):
            folder = tmp_path / "core50_128x128" / f"s{session}" / f"o{item}"
            folder.mkdir(parents=True)
            for frame in range(12):
                path = folder / f"C_{session:02}_{item:02}_{frame:03}.png"
                Image.new("RGB", (4, 4), (session, item, 0)).save(path)
    source = build("core50", tmp_path, stride=6)
    assert source.class_names == ["o1", "o2"]
    assert (len(source.train), len(source.test)) == (8 * 2 * 2, 3 * 2 * 2)
    assert {name.split("/")[0] for name in source.test.names} == {"s3", "s7", "s10"}
    first = ["o1/C_03_01_005", "o1/C_03_01_011", "o2/C_03_02_005"]
    assert source.test.names[:3] == [f"s3/{name}.png" for name in first]
    for split in (source.train, source.test):
        for index, domain in enumerate(split.table["domain"]):
            session, item, _ = split.image(index).square(4)[0, 0]
            assert domain == f"s{session}"
            assert split.names[index].startswith(f"s{session}/o{item}/")
            assert split.labels[index] == item - 1
    with pytest.raises(CifnetError, match="core50 'strid': did you mean stride"):
        build("core50", tmp_path, strid=3)
    for session in {*range(1, 12)} - {3, 7, 10}:
        shutil.rmtree(tmp_path / "core50_128x128" / f"s{session}")
    with pytest.raises(CifnetError, match="s1 to s11"):  # none is for training
        build("core50", tmp_path)


def save(path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (value, value, value)).save(path, format="PNG")


def test_imagenet_gives_the_usual_draw_and_a_tree_of_a_hundred_all(tmp_path):
    names = [f"n{10 * i:08}" for i in range(1000)]
    usual = np.random.RandomState(1993).permutation(1000)[:100]
    # The beginning of the class order that is printed in the literature for ImageNet and this seed.
    assert usual[:5].tolist() == [54, 7, 894, 512, 126]
    drawn = [names[i] for i in sorted(usual)]
    others = sorted(set(names) - set(drawn))
    for name in drawn:
        for split in ("train", "val"):
            save(tmp_path / split / name / "1.JPEG")
    source = build("imagenet100", tmp_path)
    assert source.class_names == drawn
    assert len(source.train) == len(source.test) == 100
    for name in others:
        (tmp_path / "train" / name).mkdir()
    assert build("imagenet100", tmp_path).class_names == drawn
    (tmp_path / "train" / others[0]).rmdir()
    with pytest.raises(CifnetError, match="999 classes, expected 100 or 1000"):
        build("imagenet100", tmp_path)


TINY_CLASSES = ["n01443537", "n01629819", "n01641577"]


def tiny(root):
    """Tiny-ImageNet-200: boxes beside training images, validation images in one folder."""
    home = root / "tiny-imagenet-200"
    for c, name in enumerate(TINY_CLASSES):
        for i in range(3):
            save(home / "train" / name / "images" / f"{name}_{i}.JPEG", 10 * c)
        boxes = home / "train" / name / f"{name}_boxes.txt"
        boxes.write_text(f"{name}_0.JPEG\t0\t0\t3\t3\n")
    lines = []
    for i in range(6):
        c = (i * 2) % 3
        save(home / "val" / "images" / f"val_{i}.JPEG", 10 * c)
        lines.append(f"val_{i}.JPEG\t{TINY_CLASSES[c]}\t0\t0\t3\t3")
    (home / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    save(home / "test" / "images" / "test_0.JPEG")
    (home / "wnids.txt").write_text("\n".join(TINY_CLASSES))
    return home


@pytest.mark.parametrize("inner", [True, False])
def test_tiny_imagenet_as_shipped(tmp_path, inner: bool) -> None:
    home = tiny(tmp_path)
    source = build("tinyimagenet", home if inner else tmp_path)
    assert source.class_names == TINY_CLASSES
    assert np.bincount(source.train.labels).tolist() == [3, 3, 3]
    assert np.bincount(source.test.labels).tolist() == [2, 2, 2]
    assert source.test.positions.tolist() == list(range(9, 15))
    for split in (source.train, source.test):
        values = [split.image(i).square(2)[0, 0, 0] for i in range(len(split))]
        assert values == (10 * split.labels).tolist()
    (home / "val" / "val_annotations.txt").write_text("")
    with pytest.raises(DataError, match=r"cannot read .*val_annotations"):
        build("tinyimagenet", tmp_path)


def test_bad_parquet_files_of_cifar100(tmp_path):
    cifar100_parquet(tmp_path)
    path = tmp_path / "test.parquet"
    columns = {"image": [b""], "fine_label": [0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(DataError, match=r"test.parquet has no 'img', it has image"):
        build("cifar100", tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cannot read .*/test\.parquet: "):
        build("cifar100", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"CIFAR100 is not in .*set --data\.root to"):
        build("cifar100", tmp_path)


def test_every_set_of_torchvision_answers_in_one_sentence(tmp_path) -> None:
    for name in set_names():
        with pytest.raises((UsageError, DataError)) as caught:
            build(f"torchvision:{name}", tmp_path)
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
    with pytest.raises(UsageError, match="'CIFAR1': did you mean CIFAR10 or"):
        build("torchvision:CIFAR1", tmp_path)
