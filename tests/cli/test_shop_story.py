"""Two shops with their own images, from a Zip archive to a merged model that forgot a good, on a
cp1252 terminal.
"""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cifnet_pl
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
    two_shops(tmp_path, images, other_day)


def two_shops(place: Path, images: Path, other_day: Path) -> None:
    """Each shop adds one new good to the model; put together, more images of one, which is then
    forgotten.
    """
    model, merged, more = (
        str(place / "model"),
        str(place / "merged"),
        str(place / "merged 2"),
    )
    for shop, name in (("north", "kettle"), ("south", "lamp")):
        shutil.copytree(images / name, place / shop / name)
    later = place / "later" / "bolt"
    shutil.copytree(make_images(place / "made", ["bolt"], 40) / "bolt", later)
    for i in range(IMAGES + 6):
        (later / f"{i}.png").unlink()  # as those that were learned or are tested with
    shutil.copy(images / "bolt" / "7.png", later / "again.png")
    everything = place / "everything"
    shutil.copytree(images / "bolt", everything / "bolt")
    shutil.copytree(later, everything / "bolt later")
    commands = [
        [
            "extend",
            "--model",
            model,
            "--images",
            str(place / shop),
            "--output",
            str(place / f"model {shop}"),
        ]
        for shop in ("north", "south")
    ]
    shops = [str(place / "model north"), str(place / "model south")]
    commands.append(["merge", *shops, "--base", model, "--output", merged])
    commands.append(
        [
            "extend",
            "--model",
            merged,
            "--images",
            str(place / "later"),
            "--more",
            "--output",
            more,
        ]
    )
    commands.append(["info", "--model", more])
    less = str(place / "merged 3")
    bolts = ["--class", "bolt", "--images", str(everything)]
    commands.append(["forget", "--model", more, *bolts, "--output", less])
    commands.append(["evaluate", "--model", less, "--images", str(other_day)])
    (_, _, put_together, _, known, forgotten, tested), errors = tell(*commands)
    assert f"{merged}" in put_together
    assert (
        "have in common" in errors + put_together
        or "has in common" in errors + put_together
    )
    assert "bolt/again.png learned already" in errors
    for step in ("Step 5, merge: Gießkanne", "Step 6, extend: bolt; from model "):
        assert step in known
    model_of = {
        name: cifnet_pl.load(place / name).counts
        for name in ("model", "merged", "merged 2", "merged 3")
    }
    assert (
        sum(model_of["merged"].values()) == sum(model_of["model"].values()) + 2 * IMAGES
    )
    assert model_of["merged 2"]["bolt"] == model_of["merged"]["bolt"] + 40 - IMAGES - 6
    bolts_learned = model_of["merged 2"]["bolt"]
    assert f"'bolt' forgotten exactly: {bolts_learned} images" in forgotten
    assert set(model_of["merged 3"]) == {*GOODS, *NEW} - {"bolt"}
    assert "Accuracy 100.0 % (66 images, 11 classes" in tested
