"""Folders of images as people have them: learned, or refused in one sentence."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.streams import Domains
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.labelled_images import LabelledImages
from cifnet_pl.utilities.errors import DataError
from tests.command_line import FAST, make_images, rows
from tests.data.entrances import built
from tests.data.layouts import THREE
from tests.lightning_runs import digits, module, trainer

NAMES = [
    "γάτα 猫 🐈",
    "with spaces  and, commas; \"quotes\" and 'apostrophes'",
    "-starts with a dash",
    "100% $HOME `x` *?[a]#{b}",
    "null",
    "007",
]
LATIN = os.fsdecode(b"K\xe4tzchen")
"""Bytes that are not UTF-8, as old archives and memory cards leave them."""


def test_names_of_all_kinds_are_learned_and_predicted(tmp_path, capsys, caplog):
    root = tmp_path / "fotos à moi"
    logs = tmp_path / "logs"
    names = [*NAMES, LATIN]
    try:
        (root / LATIN).mkdir(parents=True)
    except OSError:  # this file system takes no such names: nobody can have them here
        names = NAMES
    for name in names:
        make_images(root / name / "nested", [name], 5)
    if LATIN in names:
        one = root / LATIN / "nested" / LATIN / "1.png"
        (root / LATIN / os.fsdecode(b"copy \xe9.png")).write_bytes(one.read_bytes())
        (root / LATIN / os.fsdecode(b"bad \xe9.png")).write_bytes(b"no image")
    options = ["--logs", str(logs), "--model.head", "RidgeHead", "--data.source"]
    options += ["folder", "--data.root", str(root), "--data.classes_per_task", "7"]
    options += ["--data.on_corrupt", "skip"]
    assert main(["fit", *FAST, *options]) == 0
    assert main(["predict", *FAST, *options, "--ckpt_path", "last"]) == 0
    (found,) = logs.glob("default/version_*/predictions.csv")
    table = rows(found)
    assert {row["true_class"] for row in table} == set(names)
    assert [row["class"] for row in table] == [row["true_class"] for row in table]
    assert all((root / row["file"]).is_file() for row in table)
    if LATIN in names:
        # Lists show such bytes as codes, and tables keep them, so that the file is found.
        said = caplog.text + capsys.readouterr().out
        assert r"K\udce4tzchen/1.png learned already" in said
        (few,) = re.findall("Fewer than .* test images: .*", said)
        assert r"K\udce4tzchen" in few
        assert r"/K\udce4tzchen/bad \udce9.png: no image of a known format" in said
        (file,) = logs.glob("default/version_*/duplicates.csv")
        assert b"K\xe4tzchen/1.png,K\xe4tzchen/copy \xe9.png" in file.read_bytes()


def test_domains_whose_names_are_not_utf_8(latin_name, tmp_path):
    make_images(tmp_path / latin_name, [latin_name], 3)
    for domain in (latin_name, "day"):
        make_images(tmp_path / domain, ["red"], 3)
    for order in ([latin_name, "day"], None):
        data = CIFNetDataModule("domains", root=str(tmp_path), stream=Domains(order))
        assert data.evaluated.categories.tolist() == (
            order or sorted([latin_name, "day"])
        )
        assert sorted(data.plan.classes) == sorted(["red", latin_name])
        assert len(data.source.test) == 3


def test_an_unreadable_image_is_named_or_left_out(tmp_path, caplog):
    root = make_images(tmp_path / "images", THREE, 5)
    for file in ("blue/a\nb.jpg", "red/c.jpg"):
        (root / file).write_bytes(b"\xff\xd8\xff\xe0" + file.encode())
    shown = f"{root}/blue/a\\nb.jpg: "
    given = {"source": "folder", "root": str(root), "classes_per_task": 3}
    model = module(head=RidgeHead, buffer=None)
    with pytest.raises(DataError, match=r"--data\.on_corrupt skip$") as caught:
        trainer(tmp_path).fit(model, datamodule=digits(**given, split_seed=3))
    assert f"{root}/red/c.jpg: " in str(caught.value)
    assert shown in str(caught.value)
    data = digits(**given, split_seed=3, on_corrupt="skip")
    trainer(tmp_path).fit(module(head=RidgeHead, buffer=None), datamodule=data)
    assert "2 unreadable images left out: " in caplog.text
    assert shown in caplog.text


@pytest.mark.parametrize(("held", "packed"), [("val", False), ("test", True)])
def test_images_to_learn_and_to_test_with_are_told_apart(tmp_path, held, packed):
    """By ``fit`` as by ``extend`` and ``evaluate``; images beside class folders are counted."""
    root = tmp_path / "images"
    make_images(root / "train", THREE, 4)
    make_images(root / held, THREE, 2)
    for name in ("b.png", "a.png"):
        shutil.copy(root / "train" / "red" / "0.png", root / "train" / name)
    if packed:
        root = Path(shutil.make_archive(str(root), "zip", root))
    strays = (
        "note: images beside the class folders are passed over, the first is"
        f" {root}/train/a.png: move each into"
    )
    source = built("folder", root)
    assert (len(source.train), len(source.test)) == (12, 6)
    assert source.notes[0].startswith(strays)
    learned = LabelledImages.find(root, "--images")
    tested = LabelledImages.find(root, "--images", tested=True)
    assert learned.class_names == tested.class_names == ["blue", "green", "red"]
    assert (len(learned.files), len(tested.files)) == (12, 6)
    assert learned.files.notes[0] == f"note: {root} has train and {held}: taking train"
    assert learned.files.notes[1].startswith(strays)
    assert len(tested.files.notes) == 1


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["ant/notes.txt"], "no class folder in {root} holds an image: add images"),
        (["ant 0.png"], "{root} has no sub-folders"),
        ([], "no folder {root}: set --data.root"),
        (["train/ant/0.png"], "{root} has train, expected train and test"),
        (["train/a/0.png", "val/bee/0.png"], "{root}: class 'bee' has no training"),
    ],
)
def test_refused_in_one_sentence(files, sentence, tmp_path):
    root = tmp_path / "images"
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    with pytest.raises(DataError) as caught:
        built("folder", root)
    assert str(caught.value).startswith(sentence.format(root=root))
    assert "\n" not in str(caught.value)


def test_own_images_stay_with_their_class_whatever_links_say(tmp_path: Path) -> None:
    root = make_images(tmp_path / "images", THREE, 3)
    elsewhere = tmp_path / "disk" / "amber"
    make_images(elsewhere, ["2024"], 4)
    (root / "amber").symlink_to(elsewhere)  # a class folder elsewhere
    (root / "blue" / "again").symlink_to(root / "blue")  # a loop
    (root / "blue" / "up").symlink_to(root)  # a loop through all classes
    (root / "green" / "sub").mkdir()
    (root / "green" / "sub" / "back").symlink_to("..")
    source = built("folder", root)
    assert source.class_names == ["amber", "blue", "green", "red"]
    names = [*source.train.names, *source.test.names]
    counts = Counter(name.split("/")[0] for name in names)
    assert counts == {"amber": 4, "blue": 3, "green": 3, "red": 3}
    assert "amber/2024/0.png" in names


def test_an_empty_folder_is_no_class(tmp_path: Path) -> None:
    root = make_images(tmp_path, THREE, 3)
    (root / "amber").mkdir()
    (root / "copy").symlink_to(root)
    source = built("folder", root)
    assert source.class_names == ["blue", "green", "red"]
    empty = f"{root}/amber, {root}/copy"
    assert source.notes == (f"note: class folders without images left out: {empty}",)
    (root / "gone").symlink_to(root / "nowhere")
    with pytest.raises(DataError, match=r"the link .*gone leads nowhere: repair or"):
        built("folder", root)


@pytest.mark.parametrize("packed", [False, True], ids=["folders", "archives"])
def test_folders_and_archives_with_a_split_in_their_names(packed, tmp_path):
    root = tmp_path / "set"
    for name in ("scans-train", "scans-val2017"):
        make_images(root / name, THREE, 3)
        if packed:
            shutil.make_archive(str(root / name), "zip", root / name)
            shutil.rmtree(root / name)
    source = built("folder", root)
    assert (len(source.class_names), len(source.train), len(source.test)) == (3, 9, 9)


@pytest.mark.parametrize(
    "names", [["toy train 1", "toy train 2"], ["toy train", "test tube", "red"]]
)
def test_classes_may_have_the_name_of_a_split_in_theirs(names, tmp_path):
    for name in names:
        make_images(tmp_path / name, ["monday"], 3)
    source = built("folder", tmp_path)
    assert source.class_names == sorted(names)
