"""Near-copies are counted from the embeddings of a run, and tested photos that resemble learned ones are told apart."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.model.metrics import NearCopyScore, about_near_copies
from tests.command_line import learned
from tests.photos.test_copies import scene

OPTIONS = ["--data.source", "folder", "--data.classes_per_task", "2", "--model.head", "RidgeHead"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 15 scenes each; of the 5 tested ones of the first, two are shots of a learned scene."""
    root = tmp_path_factory.mktemp("photos")
    for label, name in enumerate(("cup", "jug", "lid", "mug")):
        for i in range(15):
            path = root / ("val" if i >= 10 else "train") / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            scene(100 * label + i).save(path)
    for i in range(2):
        bright = np.asarray(scene(i)).astype(int) + 2
        pixels = np.clip(bright, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / "val" / "cup" / f"{13 + i}.png")
        Image.fromarray(np.clip(bright + 2, 0, 255).astype(np.uint8)).save(root / "train" / "cup" / f"again {i}.png")
    return root


def test_a_run_says_what_flatters_its_score(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learned(tmp_path, *OPTIONS, "--data.root", str(photos))
    output = capsys.readouterr().out
    assert "2 of these 20 photos are near-copies of learned ones and flatter the score: of the 18 others" in output
    assert "4 of 42 learned photos are near-copies of others" in output


def test_a_run_that_goes_on_says_the_same(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cache = ["--data.cache", "true", "--data.cache_folder", str(tmp_path / "cache")]
    learned(tmp_path, *OPTIONS, *cache, "--data.root", str(photos), "--data.max_tasks", "1")
    capsys.readouterr()
    learned(tmp_path, *OPTIONS, *cache, "--data.root", str(photos), "--ckpt_path", "last")
    output = capsys.readouterr().out
    assert "2 of these 20 photos are near-copies of learned ones" in output
    assert "4 of 42 learned photos are near-copies of others" in output


def test_extend_says_it_beside_its_score(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Two classes, one of turned shots of one scene, which thumbnails cannot join to one group."""
    run = learned(tmp_path, *OPTIONS, "--data.root", str(photos), "--data.max_tasks", "1")
    new = tmp_path / "new"
    for i in range(10):
        for name in ("pan", "pot"):
            (new / name).mkdir(parents=True, exist_ok=True)
        scene(400 + i).save(new / "pan" / f"{i}.png")
        scene(300).rotate(3 * i).save(new / "pot" / f"{i}.png")
    capsys.readouterr()
    assert main(["extend", "--model", str(run), "--images", str(new), "--output", str(tmp_path / "wider")]) == 0
    output = capsys.readouterr().out
    assert "of these 4 photos are near-copies of learned ones and flatter the score" in output
    assert "of 20 learned photos are near-copies of others" in output
    assert "The model was kept from fitting these too closely" in output
    assert cifnet_pl.load(tmp_path / "wider").counts["pot"] == 10


def test_counts_add_up():
    near, right = np.array([True, False, False]), np.array([True, True, False])
    whole = NearCopyScore.of(near, right) + NearCopyScore.of(near[:1], right[:1])
    assert whole == NearCopyScore(2, 2, 1)
    assert "4 photos are near-copies of learned ones and flatter the score: with 2 others" in str(whole.sentence())
    assert str(NearCopyScore(3, 8, 6).sentence()) == (
        "3 of these 11 photos are near-copies of learned ones and flatter the score: of the 8 others 75.0 % are right"
    )
    assert NearCopyScore(0, 5, 3).sentence() is None
    assert str(NearCopyScore(4, 0, 0, 4).sentence()).startswith(
        "all 4 photos were learned already and flatter the score"
    )
    only = (
        "the only photo is a near-copy of learned ones and flatters the score: it says nothing of photos of another day"
    )
    assert NearCopyScore(1, 0, 0).sentence() == only


def test_photos_that_were_learned_themselves_are_told_from_near_copies():
    assert "2 of these 12 photos were learned already and flatter" in str(NearCopyScore(2, 10, 9, 2).sentence())
    assert "1 of these 11 photos was learned already and flatters" in str(NearCopyScore(1, 10, 9, 1).sentence())
    mixed = NearCopyScore(3, 10, 9, 2).sentence()
    assert "3 of these 13 photos are near-copies of learned ones (2 of them the very same files) and" in str(mixed)


def test_a_ridge_at_its_cap_is_told_only_where_near_copies_are_many():
    assert about_near_copies(0, 100, True) is None
    assert "too closely" not in str(about_near_copies(9, 100, True))
    assert "too closely" not in str(about_near_copies(50, 100, False))
    assert "photos of other days would teach it more" in str(about_near_copies(10, 100, True))
