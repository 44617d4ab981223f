"""What every data source promises, and what it does with names, splits, labels and other files."""

import unicodedata
from itertools import compress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.samples import SampleTable, Source
from cifnet_pl.data.splitting import held_out
from cifnet_pl.data.streams import order_classes
from cifnet_pl.utilities.errors import CifnetError, DataError
from tests.data.entrances import (
    ENTRANCES,
    Entrance,
    Sample,
    add_member,
    built,
    png,
    samples,
    split_samples,
)
from tests.data.layouts import CASES, Case


def as_shipped(case: Case, folder) -> Source:
    """Lay a benchmark out, build it, and check its classes and sizes."""
    case.write(folder)
    source = case.build(folder)
    assert tuple(source.class_names) == case.classes
    assert (len(source.train), len(source.test)) == case.sizes
    return source


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.source} {case.write.__name__}" for case in CASES]
)
def test_what_every_benchmark_promises(case, tmp_path):
    check_source(as_shipped(case, tmp_path))


def as_users_have_them(entrance: Entrance, folder) -> Source:
    given = samples("blue", "red")
    if entrance.splits:
        given = split_samples("train", "test")
    return entrance.build(folder, given)


@pytest.mark.parametrize("name", ENTRANCES)
def test_what_every_source_promises(name: str, tmp_path) -> None:
    check_source(as_users_have_them(ENTRANCES[name], tmp_path))


def check_source(source: Source) -> None:
    contents = []
    for part in (source.train, source.test):
        every_row = np.arange(len(part))
        assert part.labels.dtype == np.int64
        assert set(part.labels.tolist()) <= set(range(len(source.class_names)))
        assert sum(map(len, part.rows_of.values())) == len(part)
        for label, rows in part.rows_of.items():
            assert (np.diff(rows) > 0).all()
            assert (part.labels[rows] == label).all()
        for column in {"domain", "task"} & set(part.table):
            assert part.table[column].notna().all()
        assert len(set(part.names)) == len(part.names) == len(part)
        contents.append(set(part.hashes(every_row).tolist()))
    assert len(contents[0]) == len(source.train)  # so that the next line says something
    assert contents[0].isdisjoint(contents[1])
    rows = np.array([len(source.train) - 1, 0])
    part = source.train.subset(rows)
    assert part.names == [source.train.names[row] for row in rows]
    assert part.labels.tolist() == source.train.labels[rows].tolist()
    assert part.hashes(np.arange(2)).tolist() == source.train.hashes(rows).tolist()
    assert part.place(0) == source.train.place(int(rows[0]))
    if source.train.are_images:
        check_images(source.train)


def check_images(images: SampleTable) -> None:
    """A loader gives the same squares and hashes as the images themselves."""
    rows = np.random.default_rng(0).permutation(len(images))[:40]
    (batch,) = ImageLoader(images, 6, 0.875, 2).decode([rows])
    squares = [images.image(row).square(6, 0.875) for row in rows.tolist()]
    assert (batch.image.permute(0, 2, 3, 1).numpy() == squares).all()
    assert not batch.unreadable
    assert batch.row.tolist() == rows.tolist()
    assert batch.key.tolist() == images.hashes(rows).tolist()


def test_the_same_images_are_the_same_samples_in_every_source(tmp_path) -> None:
    """Folders, archives, tables and shards: the same contents and labels are learned."""
    learned = []
    for name in ("folders", "archive", "table", "shards"):
        (tmp_path / name).mkdir()
        train = as_users_have_them(ENTRANCES[name], tmp_path / name).train
        hashes = train.hashes(np.arange(len(train))).tolist()
        learned.append(set(zip(hashes, train.labels.tolist(), strict=True)))
    assert all(pairs == learned[0] for pairs in learned)


@given(
    st.lists(st.text(max_size=5), unique=True, max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
    st.randoms(),
)
def test_held_out_share(names, fraction, seed, random):
    held = set(compress(names, held_out(names, fraction, seed)))
    wanted = max(round(len(names) * fraction), 1)
    assert len(held) == max(min(wanted, len(names) - 1), 0)
    mixed = random.sample(names, len(names))
    assert set(compress(mixed, held_out(mixed, fraction, seed))) == held
    if len(names) > 20 and 5 <= len(held) <= len(names) - 5:
        others = (held_out(names, fraction, seed + i) for i in range(1, 4))
        assert any(set(compress(names, other)) != held for other in others)


def test_a_hub_s_set_with_fewer_rows_than_it_says_is_refused(tmp_path) -> None:
    """A download that is not whole; a local folder is checked as a set of the hub is."""
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is missing")
    rows = datasets.Dataset.from_dict({"label": [0, 1, 0, 1]})
    rows.to_parquet(tmp_path / "train-00000-of-00001.parquet")
    about = "dataset_info:\n  splits:\n  - name: train\n    num_bytes: 1\n    num_examples: 5\n"
    (tmp_path / "README.md").write_text(f"---\n{about}---\n")
    with pytest.raises(DataError, match=r"cannot load .*num_examples=5"):
        built("hf", tmp_path)


COMPOSED = unicodedata.normalize("NFC", "Müller-Café")
DECOMPOSED = unicodedata.normalize("NFD", "Müller-Café")


def entrances(**wanted: bool):
    """Return a decorator for the entrances that have some properties."""
    chosen = [
        pytest.param(entrance, id=name)
        for name, entrance in ENTRANCES.items()
        if all(bool(getattr(entrance, key)) == wanted[key] for key in wanted)
    ]
    return pytest.mark.parametrize("entrance", chosen)


def sizes(source: Source) -> tuple[int, int]:
    return len(source.train), len(source.test)


@entrances()
def test_names_stay_as_they_are_in_one_unicode_form(entrance, tmp_path) -> None:
    given = samples(COMPOSED, DECOMPOSED, "1e5", "a; b", "nan")
    source = entrance.build(tmp_path, given)
    assert source.class_names == ["1e5", COMPOSED, "a; b", "nan"]
    assert sum(sizes(source)) == len(given)


@entrances()
def test_names_that_cannot_be_shown_are_refused(entrance, tmp_path) -> None:
    with pytest.raises(DataError, match=r"U\+200B"):
        entrance.build(tmp_path, samples("red", "ant\u200b"))


def test_orders_of_classes_know_both_unicode_forms() -> None:
    assert order_classes([COMPOSED, "red"], ["red", DECOMPOSED]) == ["red", COMPOSED]


@pytest.mark.parametrize("content", ["red\nblue", "\ufeffred\r\nblue\r\n"])
def test_lists_of_classes_as_systems_write_them(content: str, tmp_path) -> None:
    for sample in samples(0, 1):
        add_member(tmp_path / "a.tar", f"{sample.seed}.png", png(sample.seed))
        add_member(tmp_path / "a.tar", f"{sample.seed}.cls", b"%d" % sample.label)
    names = tmp_path / "classes.txt"
    names.write_bytes(content.encode())
    source = built("webdataset", tmp_path / "a.tar", own={"classes": str(names)})
    assert source.class_names == ["red", "blue"]


@pytest.mark.parametrize("label", [None, 0.5, True, b"red", ""])
@entrances(typed=True)
def test_labels_of_other_types_are_refused_in_one_sentence(entrance, label, tmp_path):
    """And never become a class ``nan``, ``0.5`` or ``b'red'``."""
    if isinstance(label, bytes) and entrance.source == "webdataset":
        pytest.skip("JSON has none")
    with pytest.raises(CifnetError) as caught:
        entrance.build(tmp_path, samples(label))
    assert "\n" not in str(caught.value)


@entrances(typed=True)
def test_whole_numbers_are_classes_in_their_order(entrance, tmp_path) -> None:
    source = entrance.build(tmp_path, samples(10, 9, -1))
    assert source.class_names == ["-1", "9", "10"]


@entrances(splits=True)
def test_of_two_splits_to_test_with_one_is_used_and_said(entrance, tmp_path):
    """Whatever they are called, in any letter case."""
    tested = samples("blue", split="TST", count=3, first=50)
    source = entrance.build(tmp_path, [*split_samples("Training", "dev"), *tested])
    assert (source.class_names, sizes(source)) == (["blue", "red"], (8, 3))
    assert not source.held_out
    assert "not used" in source.notes[-1]


@pytest.mark.parametrize("pattern", ["", "*[0-9]-of-*"])
@pytest.mark.parametrize("name", ["table", "vectors", "vectors in Parquet"])
def test_files_whose_names_tell_their_splits(name, pattern, tmp_path):
    entrance = ENTRANCES[name]
    for part, first in (("train-0-of-2", 0), ("train-1-of-2", 8), ("tst-0-of-1", 16)):
        file = entrance.lay(tmp_path, samples("blue", "red", first=first))
        file.rename(file.with_stem(part))
    source = entrance.open(tmp_path / pattern)
    assert (source.class_names, sizes(source)) == (["blue", "red"], (16, 8))
    assert not source.held_out
    assert "note: splits by the names of files: 2 train, 1 test" in source.notes


@pytest.mark.parametrize(
    ("name", "splits", "sentence"),
    [
        ("table", ("train", "fold 2"), "split 'fold 2', expected train or test"),
        ("vectors", ("train", "fold 2"), "split 'fold 2', expected train or test"),
        ("folders", ("Train", "extra", "more"), "expected train and test"),
        ("archive", ("train", "unlabeled"), "expected train and test"),
        ("folders", ("test", "val"), "expected train and test"),
    ],
)
def test_unknown_splits_are_refused(name, splits, sentence, tmp_path):
    with pytest.raises(DataError, match=sentence):
        ENTRANCES[name].build(tmp_path, split_samples(*splits))


@pytest.mark.parametrize("name", ["folders", "archive"])
def test_a_test_split_without_labels_is_said(name: str, tmp_path) -> None:
    entrance = ENTRANCES[name]
    root = entrance.lay(tmp_path, samples("blue", "red", split="train"))
    entrance.add(root, "test/0.png", png(90))
    source = entrance.open(root)
    assert (source.class_names, sum(sizes(source))) == (["blue", "red"], 8)
    assert source.held_out
    assert "test has no class folders" in source.notes[0]


def test_a_hub_s_test_split_without_labels_is_said(tmp_path) -> None:
    given = [*samples(0, 1, split="train"), *samples(-1, split="test", first=50)]
    source = ENTRANCES["data sets"].build(tmp_path, given)
    assert (source.class_names, sum(sizes(source))) == (["0", "1"], 8)
    assert "has no labels" in source.notes[0]


@pytest.mark.parametrize("name", ["folders", "archive"])
def test_classes_may_be_called_as_splits_are(name: str, tmp_path) -> None:
    """Toys: a folder of images called train is a class."""
    source = ENTRANCES[name].build(tmp_path, samples("train", "test", "car"))
    assert source.class_names == ["car", "test", "train"]


HIDDEN = [
    "{class_folder}/._0.png",
    "__MACOSX/{class_folder}/0.png",
    "{class_folder}/@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg",
    "$RECYCLE.BIN/S-1-5-21/0.png",
]
MAY_BE_IMAGES = {
    "raw.dng": b"raw",
    "a.jxl": b"x",
    "download.jpg_large": png(91),
    "no ending": png(92),
    "notes.txt": b"no image",
}


@entrances(add=True)
def test_hidden_files_are_skipped_and_possible_images_counted(entrance, tmp_path):
    root = entrance.lay(tmp_path, samples("blue", "red"))
    home = "site 0/red" if entrance.source == "domains" else "red"
    for name in HIDDEN:
        entrance.add(root, name.format(class_folder=home), png(90))
    # Shards name the types of their members.
    are_named = entrance.source != "webdataset"
    for name, content in MAY_BE_IMAGES.items():
        if are_named:
            entrance.add(root, f"{home}/{name}", content)
    source = entrance.open(root)
    assert (source.class_names, sum(sizes(source))) == (["blue", "red"], 8)
    notes = " ".join(source.notes)
    assert ("4 files are passed over that may be images" in notes) == are_named
    assert ("a.jxl" in notes) == are_named


def unreadable(source: Source) -> list[str]:
    """Return the places of the images that cannot be decoded."""
    reasons: list[str] = []
    for images in (source.train, source.test):
        (batch,) = ImageLoader(images, 4, 1.0, 1).decode([np.arange(len(images))])
        reasons += batch.unreadable.values()
    return sorted(reason.rpartition(": ")[0] for reason in reasons)


@pytest.mark.parametrize("name", ["folders", "domains", "table"])
def test_entries_that_are_no_images_are_unreadable(name: str, tmp_path) -> None:
    """Neither a walk nor a look at sizes and times ends at them."""
    entrance = ENTRANCES[name]
    root = entrance.lay(tmp_path, samples("blue", "red"))
    link, empty, page = (next(tmp_path.rglob(f"{number}.png")) for number in range(3))
    link.unlink()
    link.symlink_to("gone.png")
    empty.write_bytes(b"")
    page.write_text("<html>")
    source = entrance.open(root)
    assert sum(sizes(source)) == 8
    for images in (source.train, source.test):
        for row in range(len(images)):
            images.change_stamp(row)
            images.size(row)
        images.hashes(np.arange(len(images)))
    assert unreadable(source) == sorted(map(str, (link, empty, page)))


@entrances(images=True, typed=True)
def test_contents_that_are_no_images_are_unreadable(entrance, tmp_path, monkeypatch):
    if entrance.source == "":
        pytest.skip("arrays are decoded")
    contents = {0: b"no image"}
    monkeypatch.setattr(
        "tests.data.entrances.png", lambda seed: contents.get(seed, png(seed))
    )
    source = entrance.build(tmp_path, [*samples("blue"), Sample("red", seed=4)])
    assert len(unreadable(source)) == 1
