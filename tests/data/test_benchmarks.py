"""Benchmark sets as they are handed out: what is read, which options they have, and what is
refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.sources.benchmarks import set_names
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError
from tests.data.layouts import cifar100_parquet


def build(source: str, root: Path | None, **own: Any) -> Source:
    return build_source(source, SourceOptions(root, own=own))


@pytest.mark.parametrize(
    ("source", "archive"),
    [
        ("core50", r"core50_128x128\.zip from vlomonaco\.github\.io/core50"),
        ("imagenet100", r"image-net\.org.*train/<class>"),
        ("tinyimagenet", r"tiny-imagenet-200\.zip \(from cs231n\.stanford\.edu\)"),
        (
            "cifar100",
            "--data.download true",
        ),
    ],
)
def test_a_missing_set_says_what_to_fetch_and_where_it_goes(
    source: str, archive: str, tmp_path: Path
) -> None:
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=archive) as caught:
            build(source, root)
        assert str(root) in str(caught.value)
        assert "--data.root" in str(caught.value)


# ---------------------------------------------------------------------- CORe50


def frames(root: Path, sessions: int = 11, objects: int = 4, each: int = 20) -> Path:
    """A tree of CORe50's shape, with 4 x 4 pixels whose red value is the session and green the
    object.
    """
    for s in range(1, sessions + 1):
        for o in range(1, objects + 1):
            folder = root / "core50_128x128" / f"s{s}" / f"o{o}"
            folder.mkdir(parents=True)
            image = Image.new("RGB", (4, 4), (s, o, 0))
            for f in range(each):
                image.save(folder / f"C_{s:02}_{o:02}_{f:03}.png")
    return root


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return frames(tmp_path_factory.mktemp("core"))


def test_standard_sessions_are_for_testing(core: Path) -> None:
    source = build("core50", core)
    assert source.class_names == ["o1", "o2", "o3", "o4"]
    assert (len(source.train), len(source.test)) == (8 * 4 * 2, 3 * 4 * 2)
    assert {name.split("/")[0] for name in source.test.names} == {"s3", "s7", "s10"}
    assert source.test.names[:3] == [
        "s3/o1/C_03_01_009.png",
        "s3/o1/C_03_01_019.png",
        "s3/o2/C_03_02_009.png",
    ]
    for split, group in (
        (source.train, source.train.table["domain"]),
        (source.test, source.test.table["domain"]),
    ):
        for index in range(0, len(split), 7):
            red, green, _ = split.image(index).square(4)[0, 0]  # type: ignore[attr-defined]
            assert split.names[index].startswith(f"s{red}/o{green}/")
            assert split.labels[index] == green - 1
            assert group[index] == f"s{red}"


def test_bad_options(core: Path) -> None:
    with pytest.raises(CifnetError, match="core50 'strid': did you mean stride"):
        build("core50", core, strid=3)


# ---------------------------------------------------------------------- ImageNet


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


def test_a_tree_of_a_hundred_classes_needs_no_list(tmp_path: Path) -> None:
    names = imagenet(tmp_path, 100)
    source = build("imagenet100", tmp_path)
    assert source.class_names == names
    assert len(source.train) == len(source.test) == 100


def test_imagenet_itself_gives_the_usual_draw(tmp_path: Path) -> None:
    names = imagenet(tmp_path, 1000)
    usual = np.random.RandomState(1993).permutation(1000)[:100]
    drawn = build("imagenet100", tmp_path).class_names
    assert drawn == [names[i] for i in sorted(usual)]
    # The beginning of the class order that is printed in the literature for ImageNet and this seed.
    assert usual[:5].tolist() == [54, 7, 894, 512, 126]


def test_another_number_of_classes(tmp_path: Path) -> None:
    imagenet(tmp_path, 12)
    with pytest.raises(CifnetError, match="12 classes, expected 100 or 1000"):
        build("imagenet100", tmp_path)


TINY_CLASSES = ["n01443537", "n01629819", "n01641577"]


def tiny(root: Path) -> Path:
    """A tree of Tiny-ImageNet-200's shape: boxes beside the training images, validation images in
    one folder.
    """
    home = root / "tiny-imagenet-200"
    for c, name in enumerate(TINY_CLASSES):
        for i in range(3):
            save(home / "train" / name / "images" / f"{name}_{i}.JPEG", 10 * c)
        (home / "train" / name / f"{name}_boxes.txt").write_text(
            f"{name}_0.JPEG\t0\t0\t3\t3\n"
        )
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
    source = build("tinyimagenet", home if inner else tmp_path)
    assert source.class_names == TINY_CLASSES
    assert np.bincount(source.train.labels).tolist() == [3, 3, 3]
    assert np.bincount(source.test.labels).tolist() == [2, 2, 2]
    for split in (source.train, source.test):
        assert [
            split.image(i).square(2)[0, 0, 0] // 10 for i in range(len(split))
        ] == split.labels.tolist()  # type: ignore[attr-defined]


def test_a_damaged_tiny_imagenet_is_named(tmp_path: Path) -> None:
    annotations = tiny(tmp_path) / "val" / "val_annotations.txt"
    damages: list[tuple[Callable[[], object], str]] = [
        (lambda: annotations.write_text(""), "cannot read .*val_annotations"),
        (
            annotations.unlink,
            r"no val/val_annotations\.txt: set --data\.root",
        ),
    ]
    for damage, sentence in damages:
        damage()
        with pytest.raises(DataError, match=sentence):
            build("tinyimagenet", tmp_path)


# ---------------------------------------------------------------------- CIFAR-100 and torchvision's
# sets


def cut(root: Path) -> None:
    (root / "train.parquet").write_bytes((root / "train.parquet").read_bytes()[:3000])


def with_columns(columns: dict[str, list[Any]]) -> Callable[[Path], None]:
    return lambda root: pyarrow.parquet.write_table(
        pyarrow.table(columns), root / "test.parquet"
    )


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda root: (root / "test.parquet").unlink(),
            "CIFAR100 is not in .*set --data.root to the folder that holds it",
        ),
        (cut, "cannot read .*/train.parquet: "),
        (
            with_columns({"image": [b""], "fine_label": [0]}),
            "test.parquet has no 'img', it has image, fine_label",
        ),
        (
            with_columns({"img": ["a.png"], "fine_label": [0]}),
            "row 0 of column img holds no image",
        ),
    ],
)
def test_bad_parquet_files_of_cifar100(spoil, sentence, tmp_path, monkeypatch):
    cifar100_parquet(tmp_path, monkeypatch)
    spoil(tmp_path)
    with pytest.raises(DataError, match=sentence) as caught:
        build("cifar100", tmp_path).test.given(0)  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "torchvision:CocoDetection",
            "annFile",
        ),
        ("cifar", "unknown data source 'cifar': did you mean"),
        ("torchvision:CIFAR1", "did you mean CIFAR10 or"),
    ],
)
def test_unsuitable_or_unknown_sets(name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, DataError), match=sentence):
        build(name, tmp_path)


def test_every_set_of_torchvision_answers_in_one_sentence(tmp_path: Path) -> None:
    for name in set_names():
        with pytest.raises((UsageError, DataError)) as caught:
            build(f"torchvision:{name}", tmp_path)
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
