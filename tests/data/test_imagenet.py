from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.data.sets import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError

TINY_CLASSES = ["n01443537", "n01629819", "n01641577"]


def save(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (value, value, value)).save(path, format="PNG")


def imagenet(root: Path, classes: int) -> list[str]:
    """Class folders of ImageNet's shape; all images are one file, linked."""
    names = [f"n{10 * i:08}" for i in range(classes)]
    save(root / "one.JPEG")
    for name in names:
        for split in ("train", "val"):
            folder = root / split / name
            folder.mkdir(parents=True)
            (folder / f"{name}_1.JPEG").symlink_to(root / "one.JPEG")
    return names


def build(root: Path | None, **options: Any) -> Source:
    return build_source("imagenet100", SourceOptions(root, own=options))


def test_a_tree_of_a_hundred_classes_needs_no_list(tmp_path: Path) -> None:
    names = imagenet(tmp_path, 100)
    source = build(tmp_path)
    assert source.class_names == names
    assert len(source.train) == len(source.val) == 100


def test_a_list_selects(tmp_path: Path) -> None:
    names = imagenet(tmp_path, 12)
    (tmp_path / "list.txt").write_text(f"# of the paper\n{names[7]} tench\n\n{names[2]}\n")
    for options in (str(tmp_path / "list.txt"), [names[7], names[2]]):
        source = build(tmp_path, class_list=options)
        assert source.class_names == [names[2], names[7]]
        assert source.train.names == [f"{n}/{n}_1.JPEG" for n in source.class_names]
        assert source.val.labels.tolist() == [0, 1]


def test_imagenet_itself_gives_the_usual_draw(tmp_path: Path) -> None:
    names = imagenet(tmp_path, 1000)
    usual = np.random.RandomState(1993).permutation(1000)[:100]
    assert build(tmp_path).class_names == [names[i] for i in sorted(usual)]
    assert build(tmp_path, class_list=1).class_names != build(tmp_path).class_names
    # The beginning of the class order that is printed in the literature for ImageNet and this seed.
    assert usual[:5].tolist() == [54, 7, 894, 512, 126]


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (None, r"12 classes: set --data\.options\.class_list to a file"),
        (1993, "draws from 1000 classes"),
        ("none.txt", "no file none.txt"),
        ([], "to a file with the names"),
        ([1, 2], "to a file with the names"),
        (["n00000000", "n00000000"], "names a class twice"),
        (["n5"], "class 'n5' is not in train and val"),
    ],
)
def test_bad_lists(tmp_path: Path, given: object, part: str) -> None:
    imagenet(tmp_path, 12)
    with pytest.raises(CifnetError, match=part):
        build(tmp_path, **({} if given is None else {"class_list": given}))


def test_a_missing_imagenet_says_what_to_download(tmp_path: Path) -> None:
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=r"image-net\.org.*train/<class>") as error:
            build(root)
        assert "--data.root" in str(error.value)
    with pytest.raises(UsageError, match=r"--data\.root"):
        build(None)


def tiny(root: Path) -> Path:
    """A tree of Tiny-ImageNet-200's shape: boxes beside the training images, validation images in one folder."""
    home = root / "tiny-imagenet-200"
    for c, name in enumerate(TINY_CLASSES):
        for i in range(3):
            save(home / "train" / name / "images" / f"{name}_{i}.JPEG", 10 * c)
        (home / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t3\t3\n")
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
def test_tiny_imagenet_as_shipped(tmp_path: Path, inner: bool) -> None:
    home = tiny(tmp_path)
    source = build_source("tinyimagenet", SourceOptions(home if inner else tmp_path))
    assert source.class_names == TINY_CLASSES
    assert np.bincount(source.train.labels).tolist() == [3, 3, 3]
    assert np.bincount(source.val.labels).tolist() == [2, 2, 2]
    for split in (source.train, source.val):
        for i in range(len(split)):
            assert split.photo(i).square(2)[0, 0, 0] == 10 * split.labels[i]


def test_a_damaged_tiny_imagenet_is_named(tmp_path: Path) -> None:
    home = tiny(tmp_path)
    (home / "val" / "images" / "val_4.JPEG").unlink()
    with pytest.raises(DataError, match=r"lists val_4\.JPEG, which is not in"):
        build_source("tinyimagenet", SourceOptions(home))
    (home / "val" / "val_annotations.txt").write_text("")
    with pytest.raises(DataError, match="lists no image"):
        build_source("tinyimagenet", SourceOptions(home))
    (home / "val" / "val_annotations.txt").unlink()
    with pytest.raises(DataError, match=r"no val/val_annotations\.txt: set --data\.root to the unpacked tiny-imagenet"):
        build_source("tinyimagenet", SourceOptions(home))


def test_a_missing_tiny_imagenet_says_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip \(from cs231n\.stanford\.edu\)"):
        build_source("tinyimagenet", SourceOptions(tmp_path / "none"))


def test_sources_without_options_refuse_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"folder has no options of its own: leave --data\.options\.stride out"):
        build_source("folder", SourceOptions(tmp_path, own={"stride": 3}))
