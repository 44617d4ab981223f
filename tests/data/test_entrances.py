"""What every source does with names, splits, labels, hidden files and entries of other kinds."""

import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.streams import order_classes
from cifnet_pl.utilities.errors import CifnetError, DataError
from tests.data.entrances import (
    ENTRANCES,
    Entrance,
    add_member,
    class_folders,
    png,
    samples,
    split_samples,
)

COMPOSED = unicodedata.normalize("NFC", "Müller-Café")
DECOMPOSED = unicodedata.normalize("NFD", "Müller-Café")


def entrances(**wanted: bool) -> Any:
    """Return a decorator for the entrances that have some properties."""
    chosen = {
        name: entrance
        for name, entrance in ENTRANCES.items()
        if all(getattr(entrance, key) == value for key, value in wanted.items())
    }
    return pytest.mark.parametrize("entrance", chosen.values(), ids=chosen)


with_added_files = pytest.mark.parametrize(
    "entrance",
    [entrance for entrance in ENTRANCES.values() if entrance.add],
    ids=[name for name, entrance in ENTRANCES.items() if entrance.add],
)


def sizes(source: Source) -> tuple[int, int]:
    return len(source.train), len(source.test)


# ---------------------------------------------------------------------- names of classes


@entrances()
def test_a_name_in_two_unicode_forms_is_one_class(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = samples(COMPOSED, DECOMPOSED, "red")
    source = entrance.build(tmp_path, given, monkeypatch)
    assert source.class_names == [COMPOSED, "red"]
    assert sum(sizes(source)) == len(given)


@entrances()
def test_names_that_cannot_be_shown_are_refused(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"U\+200B"):
        entrance.build(tmp_path, samples("red", "ant\u200b"), monkeypatch)


@entrances()
def test_odd_names_stay_as_they_are(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["1e5", "a; b", "nan"]
    source = entrance.build(tmp_path, samples(*names), monkeypatch)
    assert source.class_names == names


def test_orders_of_classes_and_domains_know_both_unicode_forms(tmp_path: Path) -> None:
    assert order_classes([COMPOSED, "red"], ["red", DECOMPOSED]) == ["red", COMPOSED]


@pytest.mark.parametrize(
    "content", ["red\nblue\n", "\ufeffred\r\nblue\r\n", "red\nblue"]
)
def test_lists_of_classes_as_systems_write_them(content: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for sample in samples(0, 1):
            add_member(shard, f"{sample.seed}.png", png(sample.seed))
            add_member(shard, f"{sample.seed}.cls", b"%d" % sample.label)
    names = tmp_path / "classes.txt"
    names.write_bytes(content.encode())
    options = SourceOptions(tmp_path / "a.tar", own={"classes": str(names)})
    assert build_source("webdataset", options).class_names == ["red", "blue"]


# ---------------------------------------------------------------------- labels


NO_LABELS = {
    "missing": None,
    "a float": 0.5,
    "a truth value": True,
    "bytes": b"red",
    "empty": "",
}
CANNOT_HOLD = {
    ("shards", "bytes"),  # JSON has none
    # NumPy stores text and None as Python objects, which are never loaded.
    ("vectors", "missing"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, entrance in ENTRANCES.items()
        for kind in NO_LABELS
        if entrance.typed and (name, kind) not in CANNOT_HOLD
    ],
)
def test_labels_of_other_types_are_refused_in_one_sentence(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never become a class ``nan``, ``0.5`` or ``b'red'``."""
    label = NO_LABELS[kind]
    with pytest.raises(CifnetError) as caught:
        ENTRANCES[name].build(tmp_path, samples(label), monkeypatch)
    assert "\n" not in str(caught.value)


@entrances(typed=True)
def test_whole_numbers_are_classes_in_their_order(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = entrance.build(tmp_path, samples(10, 9, -1), monkeypatch)
    assert source.class_names == ["-1", "9", "10"]


# ---------------------------------------------------------------------- splits


@entrances(splits=True)
@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Training", "Testing"),
        ("TRAIN", "dev"),
    ],
)
def test_names_of_splits_in_any_case(
    entrance: Entrance,
    train: str,
    test: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = entrance.build(tmp_path, split_samples(train, test), monkeypatch)
    assert (source.class_names, sizes(source)) == (["blue", "red"], (8, 8))
    assert not source.held_out


@entrances(splits=True)
def test_of_two_splits_to_test_with_one_is_used_and_said(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        *split_samples("train", "val"),
        *samples("blue", split="test", count=3, first=50),
    ]
    source = entrance.build(tmp_path, given, monkeypatch)
    assert sizes(source) == (8, 3)
    note = source.notes[-1]
    assert "not used" in note


@pytest.mark.parametrize("name", ["table", "parquet table", "vectors"])
def test_unknown_splits_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="split 'unlabeled', expected train or test"):
        ENTRANCES[name].build(
            tmp_path, split_samples("train", "unlabeled"), monkeypatch
        )


@pytest.mark.parametrize("name", ["folders", "archive"])
@pytest.mark.parametrize(
    "splits",
    [
        ("train", "unlabeled"),
        ("Train", "extra", "more"),
        ("test", "val"),
    ],
)
def test_folders_that_are_splits_are_no_classes(
    name: str, splits: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="expected train and test"):
        ENTRANCES[name].build(tmp_path, split_samples(*splits), monkeypatch)


def test_splits_are_no_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folders(tmp_path, split_samples("train", "test"), monkeypatch)
    with pytest.raises(DataError, match="not domains"):
        ENTRANCES["domains"].open(root)


@pytest.mark.parametrize("name", ["folders", "archive"])
def test_a_test_split_without_labels_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrance = ENTRANCES[name]
    root = entrance.lay(tmp_path, samples("blue", "red", split="train"), monkeypatch)
    assert entrance.add is not None
    entrance.add(root, "test/0.png", png(90))
    source = entrance.open(root)
    assert (source.class_names, sum(sizes(source))) == (["blue", "red"], 8)
    assert source.held_out
    assert "test has no class folders" in source.notes[0]


def test_a_hub_s_test_split_without_labels_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*samples(0, 1, split="train"), *samples(-1, split="test", first=50)]
    source = ENTRANCES["data sets in memory"].build(tmp_path, given, monkeypatch)
    assert (source.class_names, sum(sizes(source))) == (["0", "1"], 8)
    assert "has no labels" in source.notes[0]


@pytest.mark.parametrize("name", ["folders", "archive"])
def test_classes_may_be_called_as_splits_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Toys: a folder of images called train is a class."""
    source = ENTRANCES[name].build(
        tmp_path, samples("train", "test", "car"), monkeypatch
    )
    assert source.class_names == ["car", "test", "train"]


# ---------------------------------------------------------------------- hidden and system files

HIDDEN = [
    "{class_folder}/._0.png",
    "__MACOSX/{class_folder}/0.png",
    "{class_folder}/@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg",
    "$RECYCLE.BIN/S-1-5-21/0.png",
]


@with_added_files
def test_hidden_files_and_folders_of_the_system_are_skipped(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = entrance.lay(tmp_path, samples("blue", "red"), monkeypatch)
    assert entrance.add is not None
    home = "site 0/red" if entrance.source == "domains" else "red"
    for name in HIDDEN:
        entrance.add(root, name.format(class_folder=home), png(90))
    source = entrance.open(root)
    assert (source.class_names, sum(sizes(source))) == (["blue", "red"], 8)


@with_added_files
def test_files_that_may_be_images_are_counted(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not entrance.files:
        pytest.skip("shards name the types of their members")
    root = entrance.lay(tmp_path, samples("blue", "red"), monkeypatch)
    home = "site 0/red" if entrance.source == "domains" else "red"
    assert entrance.add is not None
    for name, content in {
        "raw.dng": b"raw",
        "a.jxl": b"x",
        "download.jpg_large": png(91),
        "no ending": png(92),
        "notes.txt": b"no image",
    }.items():
        entrance.add(root, f"{home}/{name}", content)
    source = entrance.open(root)
    assert sum(sizes(source)) == 8
    assert "4 files are passed over that may be images" in " ".join(source.notes)
    assert "a.jxl" in " ".join(source.notes)


# ---------------------------------------------------------------------- no images


def unreadable(images: Any) -> set[str]:
    """Return the names of the images of a set that cannot be decoded."""
    assert images.are_images
    loader = ImageLoader(images, 4, 1.0, 1)
    reasons = list(loader.unreadable())
    places = [images.place(row) for row in range(len(images))]
    return {place for place in places for reason in reasons if reason.startswith(place)}


SPECIAL = {
    "a link that leads nowhere": lambda path: path.symlink_to("gone.png"),
    "an empty file": lambda path: path.write_bytes(b""),
    "a web page": lambda path: path.write_text("<html>"),
}


@pytest.mark.parametrize("name", ["folders", "domains", "table"])
def test_entries_that_are_no_images_are_unreadable(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a walk nor a look at sizes and times ends at them."""
    entrance = ENTRANCES[name]
    root = entrance.lay(tmp_path, samples("blue", "red"), monkeypatch)
    spoilt = set()
    for number, spoil in enumerate(SPECIAL.values()):
        path = next(tmp_path.rglob(f"{number}.png"))
        path.unlink()
        spoil(path)
        spoilt.add(str(path))
    source = entrance.open(root)
    assert sum(sizes(source)) == 8
    broken = set()
    for images in (source.train, source.test):
        for row in range(len(images)):
            images.change_stamp(row)
            images.size(row)
        images.hashes(np.arange(len(images)))
        broken |= unreadable(images)
    assert broken == spoilt


@entrances(images=True, typed=True)
def test_contents_that_are_no_images_are_unreadable(
    entrance: Entrance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if entrance.source == "":
        pytest.skip("arrays are decoded")
    monkeypatch.setattr(
        "tests.data.entrances.png", lambda seed: b"no image" if seed == 0 else png(seed)
    )
    source = entrance.build(tmp_path, samples("blue", "red"), monkeypatch)
    assert len(unreadable(source.train) | unreadable(source.test)) == 1
