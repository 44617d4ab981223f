"""A shop with its own photos, from a Zip archive to a corrected and extended model, on a cp1252 terminal."""

import csv
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command_line import environment, make_photos

GOODS = ["anchor", "bolt", "cup", "drill", "easel", "fan", "Gießkanne", "hammer", "猫砂", "jug → big"]
NEW = ["kettle", "lamp"]
PHOTOS = 15

SCRIPT = """
import json, sys
from cifnet_pl.__main__ import main
for args in json.load(open(sys.argv[1], encoding="utf-8")):
    print("###", args[0], flush=True)
    print("### code", main(args), flush=True)
"""


def tell(place: Path, *commands: list[str]) -> list[str]:
    """Run commands one after the other on a cp1252 terminal; what each printed. All must end well."""
    story = place / "story.json"
    story.write_text(json.dumps(commands), encoding="utf-8")
    words = [sys.executable, "-c", SCRIPT, str(story)]
    done = subprocess.run(
        words, env=environment(PYTHONIOENCODING="cp1252"), capture_output=True, encoding="cp1252", timeout=250
    )
    assert done.returncode == 0, done.stderr
    chapters = done.stdout.split("### code ")
    codes = [int(chapter.split("\n", 1)[0]) for chapter in chapters[1:]]
    assert codes == [0] * len(commands), done.stdout + done.stderr
    return chapters[:-1]


def shelf(root: Path) -> Path:
    """The shop's photos: a burst of one shelf, copies under other names, and one photo in the wrong folder."""
    photos = make_photos(root, [*GOODS, *NEW], PHOTOS)
    for i in range(6):
        with Image.open(photos / "bolt" / "0.png") as image:
            pixels = np.asarray(image).astype(int)
        Image.fromarray(np.clip(pixels + i, 0, 255).astype(np.uint8)).save(photos / "bolt" / f"burst {i}.png")
    for i in range(3):
        shutil.copy(photos / "cup" / f"{i}.png", photos / "cup" / f"copy of {i}.png")
    (photos / "fan" / "4.png").rename(photos / "drill" / "oops.png")
    return photos


def pack(photos: Path, names: list[str], target: Path) -> Path:
    """A Zip archive as a telephone's computer makes it: with one folder above all others."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            for path in sorted((photos / name).iterdir()):
                archive.write(path, f"My photos/{name}/{path.name}")
    return target


@pytest.mark.timeout(300)
def test_the_first_weeks_of_a_shop(tmp_path: Path):
    photos = shelf(tmp_path / "photos")
    goods, new = pack(photos, GOODS, tmp_path / "goods.zip"), pack(photos, NEW, tmp_path / "new.zip")
    other_day = make_photos(tmp_path / "other day", [*GOODS, *NEW], 6)
    cache, model = ["--cache_folder", str(tmp_path / "cache")], ["--model", str(tmp_path / "model")]
    fast = ["--model.backbone", "pixels:8", "--data.image_size", "8", "--energy.enabled", "false"]
    fast += ["--data.num_workers", "0", "--logs", str(tmp_path / "logs"), "--model.head", "RidgeHead"]
    run = str(tmp_path / "logs" / "default")

    learned, exported, audited = tell(
        tmp_path,
        ["fit", "--data.root", str(goods), "--data.classes_per_task", "5", *fast],
        ["export", "--model", run, "--output", str(tmp_path / "model")],
        ["audit", *model, "--images", str(goods), "--output", str(tmp_path / "audit"), *cache],
    )
    assert "named right among all 10 classes (A_K)" in learned
    assert f"next: cifnet export --model {run}" in learned
    assert "Untested, with fewer than 5 test photos" in learned
    assert "next: cifnet classify" in exported
    assert "the page: " in audited
    with (tmp_path / "audit" / "photos.csv").open(newline="", encoding="utf-8") as file:
        worst = next(csv.DictReader(file))
    assert Path(worst["file"]).name == "oops.png"
    assert (worst["class"], worst["looks_like"], worst["doubtful"]) == ("drill", "fan", "true")

    # The photo goes where it belongs, and the shop learns again, and then two goods more.
    (photos / "drill" / "oops.png").rename(photos / "fan" / "4.png")
    pack(photos, GOODS, goods)
    wider = ["--model", str(tmp_path / "wider")]
    _, _, extended, tested, named = tell(
        tmp_path,
        ["fit", "--data.root", str(goods), "--data.classes_per_task", "5", *fast],
        ["export", "--model", run, "--output", str(tmp_path / "model"), "--overwrite", "true"],
        ["extend", *model, "--images", str(new), "--output", str(tmp_path / "wider")],
        ["evaluate", *wider, "--images", str(other_day), "--against", str(tmp_path / "model")],
        ["classify", *wider, "--images", str(new), str(other_day / "猫砂"), "--output", str(tmp_path / "out.csv")],
    )
    assert "12 classes in" in extended
    assert "100.0 % of 72 photos of 12 classes are named right" in tested
    assert "12 photos of classes that" in tested  # those that the first model does not know
    assert "36 photos classified" in named
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        answers = [row["class"] for row in csv.DictReader(file)]
    assert answers == ["kettle"] * PHOTOS + ["lamp"] * PHOTOS + ["猫砂"] * 6
