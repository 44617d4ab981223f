"""A shop with its own images, from a Zip archive to answers about another day, on a cp1252
terminal.
"""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command_line import call_in_turn, make_images, rows

GOODS = [
    "anchor",
    "bolt",
    "cup",
    "drill",
    "easel",
    "fan",
    "Gießkanne",
    "hammer",
    "猫砂",
    "jug → big",
]
NEW = ["kettle", "lamp"]
IMAGES = 15


def tell(*commands: list[str]) -> tuple[list[str], str]:
    """Run commands one after the other on a cp1252 terminal; what each printed, and the errors. All
    must end well.
    """
    chapters = call_in_turn(*commands, timeout=500, PYTHONIOENCODING="cp1252")
    errors = "".join(chapter.stderr for chapter in chapters)
    assert [chapter.returncode for chapter in chapters] == [0] * len(commands), errors
    return [chapter.stdout for chapter in chapters], errors


def shelf(root: Path) -> Path:
    """The shop's images: a burst of one shelf, copies under other names, and one image in the wrong
    folder.
    """
    images = make_images(root, [*GOODS, *NEW], IMAGES)
    for i in range(6):
        with Image.open(images / "bolt" / "0.png") as image:
            pixels = np.asarray(image).astype(int)
        Image.fromarray(np.clip(pixels + i, 0, 255).astype(np.uint8)).save(
            images / "bolt" / f"burst {i}.png"
        )
    for i in range(3):
        shutil.copy(images / "cup" / f"{i}.png", images / "cup" / f"copy of {i}.png")
    (images / "fan" / "4.png").rename(images / "drill" / "oops.png")
    return images


def pack(images: Path, names: list[str], target: Path) -> Path:
    """A Zip archive as a telephone's computer makes it: with one folder above all others."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            for path in sorted((images / name).iterdir()):
                archive.write(path, f"My images/{name}/{path.name}")
    return target


@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_first_weeks_of_a_shop(tmp_path: Path):
    images = shelf(tmp_path / "images")
    goods = pack(images, GOODS, tmp_path / "goods.zip")
    new = pack(images, NEW, tmp_path / "new.zip")
    other_day = make_images(tmp_path / "other day", [*GOODS, *NEW], 6)
    cache = ["--cache_folder", str(tmp_path / "cache")]
    model = ["--model", str(tmp_path / "model")]
    fast = [
        "--model.backbone",
        "pixels:8",
        "--data.image_size",
        "8",
        "--energy.enabled",
        "false",
    ]
    fast += [
        "--data.num_workers",
        "0",
        "--logs",
        str(tmp_path / "logs"),
        "--model.head",
        "RidgeHead",
    ]
    run = str(tmp_path / "logs" / "default")

    (learned, exported, audited), sentence = tell(
        ["fit", "--data.root", str(goods), "--data.classes_per_task", "5", *fast],
        ["export", "--model", run, "--output", str(tmp_path / "model")],
        [
            "audit",
            *model,
            "--images",
            str(goods),
            "--output",
            str(tmp_path / "audit"),
            *cache,
        ],
    )
    assert "Final accuracy A_K" in learned
    assert f"next: cifnet export --model {run}" in learned
    assert "Fewer than 5 test images" in learned
    assert "next: cifnet classify" in exported
    assert "cup/copy of 0.png learned already" in sentence
    assert "cup/1.png (learned as cup/copy of 1.png)" in sentence
    assert "Page " in audited
    worst = rows(tmp_path / "audit" / "images.csv")[0]
    assert Path(worst["file"]).name == "oops.png"
    assert (worst["class"], worst["predicted"], worst["label_error"]) == (
        "drill",
        "fan",
        "true",
    )

    # The image goes where it belongs, and the shop learns again, and then two goods more.
    (images / "drill" / "oops.png").rename(images / "fan" / "4.png")
    pack(images, GOODS, goods)
    wider = ["--model", str(tmp_path / "wider")]
    (_, _, extended, tested, named), _ = tell(
        ["fit", "--data.root", str(goods), "--data.classes_per_task", "5", *fast],
        [
            "export",
            "--model",
            run,
            "--output",
            str(tmp_path / "model"),
            "--overwrite",
            "true",
        ],
        ["extend", *model, "--images", str(new), "--output", str(tmp_path / "wider")],
        ["evaluate", *wider, "--images", str(other_day)],
        [
            "classify",
            *wider,
            "--images",
            str(new),
            str(other_day / "猫砂"),
            "--output",
            str(tmp_path / "out.csv"),
        ],
    )
    assert "12 classes in" in extended
    assert "Accuracy 100.0 % (72 images, 12 classes" in tested
    assert "36 images classified" in named
    answers = [row["class"] for row in rows(tmp_path / "out.csv")]
    assert answers == ["kettle"] * IMAGES + ["lamp"] * IMAGES + ["猫砂"] * 6
