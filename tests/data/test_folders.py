"""Folders of images as people have them, through the command line: learned, or refused in one
sentence.
"""

import csv
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.sources.folders import nesting_message
from cifnet_pl.model.labelled_images import LabelledImages
from cifnet_pl.utilities.errors import DataError
from tests.data.tree import COLOURS, class_tree, fill, image, run, summary
from tests.images.test_image import bomb

GREEN = COLOURS["green"]
RED = COLOURS["red"]


def predictions(logs: Path) -> list[dict[str, str]]:
    """Rows of ``predictions.csv``; undecodable bytes of names come back as they were."""
    (found,) = logs.glob("default/version_*/predictions.csv")
    text = found.read_bytes().decode("utf-8", "surrogateescape")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def learn_and_predict(root: Path, logs: Path, *options: str) -> list[dict[str, str]]:
    """Learn, then predict the validation images with the checkpoint."""
    assert run(root, logs, *options) == 0
    assert run(root, logs, *options, "--ckpt_path", "last", command="predict") == 0
    return predictions(logs)


# ---------------------------------------------------------------------- learned and evaluated


NAMES = [
    "Kätzchen",
    "γάτα 猫 🐈",
    "with spaces  and, commas; \"quotes\" and 'apostrophes'",
    "-starts with a dash",
    "100% $HOME `x` *?[a]#{b}",
    "null",
    "007",
]


def test_names_of_all_kinds(tmp_path: Path) -> None:
    root = tmp_path / "fotos à moi"
    logs = tmp_path / "logs"
    for i, name in enumerate(NAMES):
        folder = root / name / "nested" / name
        folder.mkdir(parents=True)
        for k in range(5):
            image(((i & 1) * 255, (i >> 1 & 1) * 255, (i >> 2 & 1) * 255), seed=k).save(
                folder / f"{k} {name}.png"
            )
    rows = learn_and_predict(root, logs)
    names = [row["true_class"] for row in rows]
    assert sorted(names) == sorted(NAMES)
    assert [row["class"] for row in rows] == [row["true_class"] for row in rows]
    assert all((root / row["file"]).is_file() for row in rows)


def test_names_that_are_not_text(tmp_path, capsys, caplog):
    """Bytes that are not UTF-8, as old archives and memory cards leave them."""
    root = tmp_path / "images"
    logs = tmp_path / "logs"
    latin = os.fsdecode(b"K\xe4tzchen")
    try:
        fill(root / latin, RED, 5)
    except OSError:
        # This file system takes no such names: then nobody can have them here.
        assert not (root / latin).exists()
        return
    fill(root / "green", GREEN, 5)
    (root / latin / "0.png").rename(root / latin / os.fsdecode(b"\xff\xfe.png"))
    for file, content in (
        (b"copy \xe9.png", (root / latin / "1.png").read_bytes()),
        (b"bad \xe9.png", b"no image"),
    ):
        (root / latin / os.fsdecode(file)).write_bytes(content)
    rows = learn_and_predict(root, logs, "--data.on_corrupt", "skip")
    assert {row["class"] for row in rows} == {latin, "green"}
    assert [row["class"] for row in rows] == [row["true_class"] for row in rows]
    # Lists show such bytes as codes, and tables keep them, so that the file is found.
    said = caplog.text + capsys.readouterr().out
    assert r"note: K\udce4tzchen/copy \udce9.png learned already" in said
    assert r"K\udce4tzchen (" in said
    assert r"/K\udce4tzchen/bad \udce9.png: no image of a known format" in said
    (table,) = logs.glob("default/version_*/duplicates.csv")
    assert (
        b"duplicate,K\xe4tzchen/copy \xe9.png,K\xe4tzchen/1.png" in table.read_bytes()
    )


# ---------------------------------------------------------------------- one unreadable image


def truncated_jpeg() -> bytes:
    file = io.BytesIO()
    image(RED, size=(200, 200)).save(file, "JPEG")
    return file.getvalue()[: len(file.getvalue()) // 2]


UNREADABLE = {
    "a\nb.jpg": (b"\xff\xd8\xff\xe0", ""),
    "truncated.jpg": (truncated_jpeg(), "image file is truncated"),
    "bomb.png": (bomb(), "more than 178 million pixels"),
}
"""Name → content and reason; the formats are those of tests/images."""


@pytest.mark.parametrize(
    ("name", "workers"), [("a\nb.jpg", "0"), ("truncated.jpg", "2"), ("bomb.png", "0")]
)
def test_unreadable_image(name, workers, tmp_path, capsys, caplog):
    """An error that names the file; or, if told so, it is left out and counted."""
    content, reason = UNREADABLE[name]
    root = class_tree(tmp_path / "images")
    (root / "blue" / name).write_bytes(content)
    options = ("--data.num_workers", workers, "--data.split_seed", "3")
    assert run(root, tmp_path / "logs", *options) == 1
    (error,) = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("cifnet: error:")
    ]
    shown = f"{root}/blue/{name}".replace("\n", "\\n")
    assert error.startswith(f"cifnet: error: cannot read image {shown}: {reason}")
    assert error.endswith("--data.on_corrupt skip")

    assert run(root, tmp_path / "skip", *options, "--data.on_corrupt", "skip") == 0
    assert f"unreadable images left out: 1, the first: {shown}" in caplog.text
    assert summary(tmp_path / "skip")["n_classes"] == 3


def test_a_folder_of_class_folders_one_level_too_deep_is_asked_about(tmp_path, caplog):
    root = class_tree(tmp_path / "pictures" / "images", 4)
    assert run(root.parent, tmp_path / "logs") == 0
    said = f"name the folder {root}"
    assert said in caplog.text
    mixed = ["a/1/x.png", "a/2/x.png", "a/x.png"]
    assert nesting_message(root, mixed, ["a"] * 3) is None
    assert nesting_message(root, ["a/1/x.png", "b/2/x.png"], ["a", "b"]) is None


@pytest.mark.parametrize("held", ["val", "test"])
@pytest.mark.parametrize("packed", [False, True])
def test_images_to_learn_and_to_test_with_are_told_apart(
    tmp_path: Path, held: str, packed: bool
) -> None:
    """By the source of ``fit`` as by what ``extend`` and ``evaluate`` read; images beside class
    folders are counted.
    """
    root = tmp_path / "images"
    class_tree(root / "train", 4)
    class_tree(root / held, 2)
    image(RED).save(root / "train" / "b.png")
    image(RED).save(root / "train" / "a.png")
    if packed:
        root = Path(shutil.make_archive(str(root), "zip", root))
    strays = (
        f"note: 2 images beside the class folders are passed over, the first is {root}/train/a.png:"
        " move each into"
    )
    source = build_source("folder", SourceOptions(root))
    assert (len(source.train), len(source.test)) == (12, 6)
    assert source.notes[0].startswith(strays)
    learned, tested = (
        LabelledImages.find(root, "--images", tested=tested) for tested in (False, True)
    )
    assert learned.class_names == tested.class_names == ["blue", "green", "red"]
    assert (len(learned.files), len(tested.files)) == (12, 6)
    assert learned.notes[0] == f"note: {root} has train and {held}: taking train"
    assert learned.notes[1].startswith(strays)
    assert len(tested.notes) == 1


# ---------------------------------------------------------------------- refused


def no_images(root: Path) -> None:
    for file in root.rglob("*.png"):
        file.unlink()


def no_folders(root: Path) -> None:
    for folder in list(root.iterdir()):
        for file in folder.iterdir():
            file.rename(root / f"{folder.name} {file.name}")
        folder.rmdir()


def no_root(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def into_train(root: Path) -> None:
    no_root(root)
    root.mkdir()
    root.with_name("elsewhere").rename(root / "train")


def unknown_class_in_val(root: Path) -> None:
    into_train(root)
    fill(root / "val" / "violet", RED, 2)


def train_is_empty(root: Path) -> None:
    (root / "train").mkdir()
    (root / "val").mkdir()


REFUSED: list[tuple[Callable[[Path], None], str]] = [
    (no_images, "no class folder in {root} holds an image: add images"),
    (no_folders, "{root} has no sub-folders"),
    (no_root, "no folder {root}: set --data.root"),
    (into_train, "{root} has train, expected train and test"),
    (
        unknown_class_in_val,
        "{root}: class 'violet' has no training sample",
    ),
    (train_is_empty, "{root}/train has no sub-folders"),
]


@pytest.mark.parametrize(
    ("spoil", "sentence"), REFUSED, ids=lambda value: getattr(value, "__name__", "")
)
def test_refused_in_one_sentence(spoil, sentence, tmp_path, capsys):
    root = class_tree(tmp_path / "images", 2)
    spoil(root)
    assert run(root, tmp_path / "logs") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"cifnet: error: {sentence.format(root=root)}")
    assert not (tmp_path / "logs").exists()


# ---------------------------------------------------------------------- the source itself


def test_own_images_stay_with_their_class_whatever_links_say(tmp_path: Path) -> None:
    root = class_tree(tmp_path / "images", 3)
    elsewhere = tmp_path / "disk" / "amber"
    fill(elsewhere / "2024", COLOURS["white"], 4)
    (root / "amber").symlink_to(elsewhere)  # a class folder elsewhere
    (root / "blue" / "again").symlink_to(root / "blue")  # a loop
    (root / "blue" / "up").symlink_to(root)  # a loop through all classes
    (root / "green" / "sub").mkdir()
    (root / "green" / "sub" / "back").symlink_to("..")
    source = build_source("folder", SourceOptions(root))
    assert source.class_names == ["amber", "blue", "green", "red"]
    names = [*source.train.names, *source.test.names]
    assert (
        sorted(name.split("/")[0] for name in names)
        == ["amber"] * 4 + ["blue"] * 3 + ["green"] * 3 + ["red"] * 3
    )
    assert "amber/2024/0.png" in names


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    root = class_tree(tmp_path, 3)
    (root / "copy").symlink_to(root / "gone")
    with pytest.raises(
        DataError, match=r"the link .*copy leads nowhere: repair or remove it"
    ):
        build_source("folder", SourceOptions(root))


def test_an_empty_folder_is_no_class(tmp_path: Path) -> None:
    root = class_tree(tmp_path, 3)
    (root / "amber").mkdir()
    (root / "copy").symlink_to(root)
    source = build_source("folder", SourceOptions(root))
    assert source.class_names == ["blue", "green", "red"]
    assert source.notes == (
        f"note: class folders without images left out: {root}/amber, {root}/copy",
    )


@pytest.mark.parametrize("packed", [False, True], ids=["folders", "archives"])
def test_folders_and_archives_with_a_split_in_their_names(packed, tmp_path):
    root = tmp_path / "set"
    for name in ("scans-train", "scans-val2017"):
        class_tree(root / name, 3)
        if packed:
            shutil.make_archive(str(root / name), "zip", root / name)
            shutil.rmtree(root / name)
    source = build_source("folder", SourceOptions(root))
    assert (len(source.class_names), len(source.train), len(source.test)) == (3, 9, 9)


@pytest.mark.parametrize(
    "names", [["toy train 1", "toy train 2"], ["toy train", "test tube", "red"]]
)
def test_classes_may_have_the_name_of_a_split_in_theirs(names, tmp_path):
    for seed, name in enumerate(names):
        fill(tmp_path / name / "monday", (seed, 60, 90), 3)
    source = build_source("folder", SourceOptions(tmp_path))
    assert source.class_names == sorted(names)
