"""What every data source promises, and what single ones do besides."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import datasets

from cifnet_pl.data.loading import ImageLoader, decode_batch
from cifnet_pl.data.sets import ArraySet, Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.sources.benchmarks import set_names
from cifnet_pl.photos.copies import held_back
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.data.layouts import CASES, Case, cifar100_parquet
from tests.data.tree import COLOURS, class_tree, fill


def _id(case: Case) -> str:
    return f"{case.source}-{case.write.__name__}"


@pytest.fixture(params=CASES, ids=_id)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    made: Case = request.param
    made.write(tmp_path, monkeypatch)
    return made


@pytest.fixture
def source(case: Case, tmp_path: Path) -> Source:
    return case.build(tmp_path)


class TestEverySource:
    def test_classes_and_sizes(self, case: Case, source: Source) -> None:
        assert tuple(source.class_names) == case.classes
        assert len(set(source.class_names)) == len(source.class_names)
        assert (len(source.train), len(source.val)) == case.sizes

    def test_labels_are_positions_of_classes(self, source: Source) -> None:
        for images in (source.train, source.val):
            assert images.labels.dtype == np.int64
            assert images.labels.shape == (len(images.names),)
            assert set(images.labels.tolist()) <= set(range(len(source.class_names)))
            for label, rows in images.rows_of.items():
                assert (np.diff(rows) > 0).all()
                assert (images.labels[rows] == label).all()
            assert sum(map(len, images.rows_of.values())) == len(images)

    def test_every_class_can_be_learned(self, source: Source) -> None:
        assert sorted(source.train.rows_of) == list(range(len(source.class_names)))

    def test_names_are_unique_within_a_set(self, source: Source) -> None:
        for images in (source.train, source.val):
            assert len(set(images.names)) == len(images)

    def test_no_image_is_in_both_sets(self, source: Source) -> None:
        contents = [set(images.hashes(np.arange(len(images))).tolist()) for images in (source.train, source.val)]
        assert len(contents[0]) == len(source.train)  # so that the next line means something
        assert contents[0].isdisjoint(contents[1])

    def test_built_twice_is_the_same(self, case: Case, source: Source, tmp_path: Path) -> None:
        again = case.build(tmp_path)
        assert again.class_names == source.class_names
        for one, two in ((source.train, again.train), (source.val, again.val)):
            assert list(one.names) == list(two.names)
            assert one.labels.tolist() == two.labels.tolist()
            assert [one.mark(i) for i in range(5) if i < len(one)] == [two.mark(i) for i in range(5) if i < len(two)]
            assert one.content_hash(0) == two.content_hash(0)

    def test_subset_keeps_names_and_contents(self, source: Source) -> None:
        rows = np.array([len(source.train) - 1, 0])
        split = source.train.subset(rows)
        assert list(split.names) == [source.train.names[i] for i in rows]
        assert split.labels.tolist() == source.train.labels[rows].tolist()
        assert split.hashes(np.arange(2))[1] == source.train.content_hash(0)
        assert split.place(0) == source.train.place(int(rows[0]))

    def test_domains_and_tasks_are_of_every_sample(self, source: Source) -> None:
        for groups in (source.domains, source.tasks):
            for images, group in [] if groups is None else [(source.train, groups.train), (source.val, groups.val)]:
                assert group.shape == (len(images),)
                assert set(group.tolist()) <= set(range(len(groups.names)))


class TestEverySourceOfImages:
    @pytest.fixture(params=[case for case in CASES if case.images], ids=_id)
    def case(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
        made: Case = request.param
        made.write(tmp_path, monkeypatch)
        return made

    def test_squares(self, source: Source) -> None:
        for images in (source.train, source.val):
            for size, crop in ((5, 1.0), (16, 0.875)):
                image = images.photo(len(images) - 1).square(size, crop)
                assert (image.shape, image.dtype) == ((size, size, 3), np.uint8)

    def test_squares_of_another_build_are_the_same(self, case: Case, source: Source, tmp_path: Path) -> None:
        again = case.build(tmp_path)
        assert (again.train.photo(0).square(6) == source.train.photo(0).square(6)).all()
        split = source.train.subset(np.array([len(source.train) - 1, 0]))
        assert (split.photo(1).square(6) == source.train.photo(0).square(6)).all()

    def test_a_spawned_worker_can_receive_it(self, source: Source) -> None:
        squares = np.zeros((2, 1, 6, 6, 3), dtype=np.uint8)
        received = pickle.loads(pickle.dumps(source.val))
        one, two = (decode_batch(s, 6, 1.0, [0], squares[i]) for i, s in enumerate((source.val, received)))
        assert squares[0].any()
        assert (squares[0] == squares[1]).all()
        assert (one.numbers == two.numbers).all()

    def test_workers_change_nothing(self, source: Source) -> None:
        rows = np.random.default_rng(0).permutation(len(source.train))[:40]
        batches = [rows[:3], rows[3:3], rows[3:]]
        here, there = (list(ImageLoader(source.train, 6, 0.875, workers, 40).decode(batches)) for workers in (0, 2))
        assert [len(batch.label) for batch in here] == [len(batch) for batch in batches]
        for one, two in zip(here, there, strict=True):
            for a, b in zip(one[:4], two[:4], strict=True):
                assert torch.equal(a, b)
            assert one.unreadable == two.unreadable == ()
        assert torch.cat([batch.row for batch in here]).tolist() == rows.tolist()
        assert torch.cat([batch.key for batch in here]).tolist() == source.train.hashes(rows).tolist()


# ---------------------------------------------------------------------- splits


@given(st.lists(st.text(max_size=5), unique=True, max_size=30), st.floats(0.01, 0.99), st.integers(0, 5), st.randoms())
def test_held_back_share(names: list[str], fraction: float, seed: int, random: Random) -> None:
    held = {name for name, flag in zip(names, held_back(names, fraction, seed), strict=True) if flag}
    assert len(held) == (min(max(round(len(names) * fraction), 1), len(names) - 1) if len(names) > 1 else 0)
    mixed = random.sample(names, len(names))
    assert {name for name, flag in zip(mixed, held_back(mixed, fraction, seed), strict=True) if flag} == held


def test_another_seed_holds_back_others() -> None:
    names = [f"{i}.jpg" for i in range(100)]
    one, two = (held_back(names, 0.3, seed) for seed in (0, 1))
    assert one.sum() == two.sum() == 30
    assert 3 <= (one & two).sum() <= 17  # 9 expected by chance


def test_one_more_image_moves_at_most_one() -> None:
    names = [f"{i}.jpg" for i in range(101)]
    before, after = held_back(names[:100], 0.2, 0), held_back(names, 0.2, 0)[:100]
    assert (before != after).sum() <= 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, float("nan")])
def test_fraction_must_be_inside(fraction: float) -> None:
    with pytest.raises(UsageError, match=r"val_fraction is .*, expected a number between 0 and 1"):
        held_back(["a", "b"], fraction, 0)


# ---------------------------------------------------------------------- folders


def keys(source: Source) -> dict[str, int]:
    """Name → key of each training image."""
    return dict(zip(source.train.names, source.train.hashes(np.arange(len(source.train))).tolist(), strict=True))


def test_identity_survives_another_class_and_another_place(tmp_path: Path) -> None:
    before = keys(build_source("folder", SourceOptions(class_tree(tmp_path / "a"))))
    fill(tmp_path / "a" / "amber", COLOURS["white"], 5)  # sorts before all others
    (tmp_path / "a").rename(tmp_path / "b")
    grown = build_source("folder", SourceOptions(tmp_path / "b"))
    assert grown.class_names[0] == "amber"
    assert {name: key for name, key in keys(grown).items() if not name.startswith("amber")} == before


def test_what_is_passed_over(tmp_path: Path) -> None:
    root = class_tree(tmp_path, 3)
    for stray in ("notes.txt", ".hidden.png", "Thumbs.db", "blue/notes.txt", "blue/.DS_Store", "blue/._0.png"):
        (root / stray).write_text("not an image")
    for folder in (".git", "__MACOSX", "blue/.cache"):
        (root / folder).mkdir()
        (root / folder / "0.png").write_text("not an image")
    source = build_source("folder", SourceOptions(root))
    assert source.class_names == ["blue", "green", "red"]
    assert len(source.train) + len(source.val) == 9


def test_own_images_stay_with_their_class_whatever_links_say(tmp_path: Path) -> None:
    root = class_tree(tmp_path / "photos", 3)
    elsewhere = tmp_path / "disk" / "amber"
    fill(elsewhere / "2024", COLOURS["white"], 4)
    (root / "amber").symlink_to(elsewhere)  # a class folder elsewhere
    (root / "blue" / "again").symlink_to(root / "blue")  # a loop
    (root / "blue" / "up").symlink_to(root)  # a loop through all classes
    (root / "green" / "sub").mkdir()
    (root / "green" / "sub" / "back").symlink_to("..")
    source = build_source("folder", SourceOptions(root))
    assert source.class_names == ["amber", "blue", "green", "red"]
    names = [*source.train.names, *source.val.names]
    assert sorted(name.split("/")[0] for name in names) == ["amber"] * 4 + ["blue"] * 3 + ["green"] * 3 + ["red"] * 3
    assert "amber/2024/0.png" in names


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("blue", "class folders 'blue' and 'copy' in .* are the same folder: remove one of the links"),
        (".", "class folder .*copy holds no image"),
        ("gone", "the link .*copy leads nowhere: repair or remove it"),
    ],
)
def test_misleading_links(tmp_path: Path, target: str, sentence: str) -> None:
    root = class_tree(tmp_path, 3)
    (root / "copy").symlink_to(root / target)
    with pytest.raises(DataError, match=sentence):
        build_source("folder", SourceOptions(root))


def test_only_train(tmp_path: Path) -> None:
    class_tree(tmp_path / "train", 3)
    class_tree(tmp_path / "test", 3)
    with pytest.raises(DataError, match=r"has test, train, expected train and val: call the held-out folder val, or"):
        build_source("folder", SourceOptions(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    class_tree(tmp_path, 3)
    fill(tmp_path / "train", COLOURS["white"], 3)
    assert build_source("folder", SourceOptions(tmp_path)).class_names == ["blue", "green", "red", "train"]


def test_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_tree(tmp_path, 3)
    listed = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "green":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot read .*green: Permission denied; give this account access"):
        build_source("folder", SourceOptions(root))


def test_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_tree(tmp_path / "photos", 2)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(build_source("folder", SourceOptions(Path("~/photos"))).train) == 3
    with pytest.raises(DataError, match="no folder ~nobody-of-that-name"):
        build_source("folder", SourceOptions(Path("~nobody-of-that-name")))


# ---------------------------------------------------------------------- torchvision


def test_missing_set_says_where_and_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        build_source("cifar100", SourceOptions(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "set --data.root to the folder that holds it, or fetch it with --data.download true" in str(caught.value)


def cut(root: Path) -> None:
    (root / "train.parquet").write_bytes((root / "train.parquet").read_bytes()[:3000])


def with_columns(columns: dict[str, list[Any]]) -> Callable[[Path], None]:
    return lambda root: pyarrow.parquet.write_table(pyarrow.table(columns), root / "test.parquet")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda root: (root / "test.parquet").unlink(), "has no test.parquet, which belongs to the other Parquet file"),
        (cut, "cannot read .*/train.parquet: "),
        (with_columns({"image": [b""], "fine_label": [0]}), "test.parquet has no column img, it has image, fine_label"),
        (with_columns({"img": [{"bytes": b""}], "label": [0]}), "has no column fine_label, it has img, label"),
        (with_columns({"img": ["a.png"], "fine_label": [0]}), "column img has string, expected the bytes of image"),
        (with_columns({"img": [{"bytes": b""}], "fine_label": [None]}), r"the label in row 9 .* is missing"),
        (
            with_columns({"img": [{"bytes": b""}], "fine_label": [100]}),
            "a label is 100, but there are names of 0 to 99",
        ),
    ],
)
def test_bad_parquet_files_of_cifar100(
    spoil: Callable[[Path], None], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar100_parquet(tmp_path, monkeypatch)
    spoil(tmp_path)
    with pytest.raises(DataError, match=sentence) as caught:
        build_source("cifar100", SourceOptions(tmp_path))
    assert "\n" not in str(caught.value)


def test_an_empty_cell_of_cifar100_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100_parquet(tmp_path, monkeypatch)
    with_columns({"img": [{"bytes": b""}, {"bytes": None}], "fine_label": [0, 0]})(tmp_path)
    source = build_source("cifar100", SourceOptions(tmp_path))
    with pytest.raises(DataError, match=r"row 1 of column img .* is empty"):
        source.val.content_hash(1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("torchvision:CocoDetection", "is not a set of images with one class each .needs annFile"),
        ("torchvision:CelebA", "CelebA"),
        ("cifar", "unknown data source 'cifar': did you mean"),
        ("torchvision:CIFAR1", "did you mean torchvision:CIFAR10 or"),
        ("torchvision:ImageFolder", "unknown data source"),
        ("torchvision:wrap_dataset_for_transforms_v2", "unknown data source"),
        ("folders", "did you mean folder"),
    ],
)
def test_unsuitable_or_unknown_sets(name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, DataError), match=sentence):
        build_source(name, SourceOptions(tmp_path))


def test_every_set_of_torchvision_answers_in_one_sentence(tmp_path: Path) -> None:
    for name in set_names():
        with pytest.raises((UsageError, DataError)) as caught:
            build_source(f"torchvision:{name}", SourceOptions(tmp_path))
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)


class _Fake(datasets.VisionDataset):
    """A set with one of the shapes that torchvision's sets have."""

    def __init__(self, root: str, train: bool = True):
        super().__init__(root)
        self.targets = [0, 1, 2]
        self.classes = ["crane", "crane", "heron"]

    def __getitem__(self, index: int) -> tuple[object, int]:
        return "not an image", index


def test_equal_names_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "SVHN", _Fake)
    assert build_source("SVHN", SourceOptions(tmp_path)).class_names == ["crane (0)", "crane (1)", "heron"]


def test_other_classes_for_testing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Incomplete(_Fake):
        def __init__(self, root: str, train: bool = True):
            super().__init__(root)
            self.classes = self.classes if train else self.classes[1:]

    monkeypatch.setattr(datasets, "SVHN", Incomplete)
    with pytest.raises(DataError, match="other classes for testing than for training"):
        build_source("SVHN", SourceOptions(tmp_path))


@pytest.mark.parametrize("targets", [None, [], [{"boxes": 1}], ["left.xml"]])
def test_sets_without_one_label_an_image(
    targets: list[object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unlabelled(_Fake):
        def __init__(self, root: str, train: bool = True):
            super().__init__(root)
            self.targets = targets  # type: ignore[assignment]

    monkeypatch.setattr(datasets, "SVHN", Unlabelled)
    with pytest.raises(UsageError, match="not a set of images with one class each"):
        build_source("SVHN", SourceOptions(tmp_path))


def test_an_item_that_is_no_image_is_reported_as_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "SVHN", _Fake)
    source = build_source("SVHN", SourceOptions(tmp_path))
    batch = decode_batch(source.train, 4, 1.0, [0, 1], np.zeros((2, 4, 4, 3), dtype=np.uint8))
    assert len(batch.numbers) == 0
    assert batch.unreadable[0] == "number 0: _Fake gives a str, not an image"


def test_array_sets_name_images_by_their_position_in_the_object() -> None:
    images = ArraySet(lambda i: None, [0, 0, 1], rows=[7, 9, 12])  # type: ignore[arg-type, return-value]
    assert images.names == ["7", "9", "12"]
    assert images.subset(np.array([2])).names == ["12"]
