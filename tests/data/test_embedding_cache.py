"""The embedding cache: identical results, each image once, never a stale or damaged hit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cifnet_pl.backbones import Backbone, Preprocessing
from cifnet_pl.data.embedding_cache import EmbeddingCache, pipeline_folder
from cifnet_pl.data.samples import SampleTable, Source
from tests.command_line import make_images
from tests.data.entrances import built
from tests.lightning_runs import digits, module, trainer
from tests.models import tensors_equal


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", ["ant", "bee"])


def test_results_with_and_without_are_identical(tmp_path, image_folder, watch):
    """With a duplicate; also of a run that takes up what a shorter one has stored."""
    for name in ("x.png", "y.png"):  # two of the three are on one side of the split
        shutil.copy(image_folder / "bee" / "4.png", image_folder / "bee" / name)
    embedded: list[int] = watch(Backbone, "forward", lambda _, images: len(images))
    read: list[int] = watch(SampleTable, "given", lambda _, row: row)

    def run(**options):
        places = {"root": str(image_folder), "cache_folder": str(tmp_path / "cache")}
        data = digits(source="folder", classes_per_task=1, **places, **options)
        learner = module()
        trainer(tmp_path, max_epochs=data.n_tasks).fit(learner, datamodule=data)
        return learner

    without = run()
    images = sum(embedded)
    run(cache=True, max_tasks=1)
    building = run(cache=True)
    assert sum(embedded) == 2 * images
    read.clear()
    hit = run(cache=True)
    assert sum(embedded) == 2 * images, "the last run embedded images again"
    assert read == []
    for other in (building, hit):
        assert tensors_equal(other.state_dict(), without.state_dict())
        known = other.evaluation.task_accuracy
        assert known == without.evaluation.task_accuracy


def test_a_network_whose_code_changed_is_another_cache(tmp_path):
    """Its weights are the same."""
    folders = []
    for output in (nn.Identity(), nn.Sigmoid(), nn.Identity()):
        network = nn.Sequential(nn.Flatten(), output)
        backbone = Backbone("mine", network, 192, Preprocessing(8), engine="torch")
        folders.append(pipeline_folder(tmp_path, backbone, 8, 1.0, "32-true", "cpu"))
    first, second, third = folders
    assert first == third != second


def opened(root: Path, folder: Path) -> tuple[Source, EmbeddingCache]:
    """Return a source without held-out images, and a new cache of them."""
    source = built("folder", root, val_fraction=0.0)
    return source, EmbeddingCache(source.train, source.class_names, folder)


def collect(cache: EmbeddingCache, rows: np.ndarray) -> None:
    hashes = torch.from_numpy(cache.samples.hashes(rows))
    cache.collect(torch.from_numpy(rows), hashes, hashes[:, None].expand(-1, 4).float())


@pytest.fixture
def filled(image_folder: Path, tmp_path: Path) -> Path:
    """Return the folder of a cache that has all images."""
    source, cache = opened(image_folder, tmp_path / "cache")
    collect(cache, np.arange(len(source.train)))
    return tmp_path / "cache"


def known(root: Path, folder: Path) -> list[bool]:
    """Return of which classes a new cache has all embeddings, and check those."""
    source, cache = opened(root, folder)
    result = []
    for rows in source.train.rows_of.values():
        is_known = bool(cache.known(rows).all())
        assert is_known == bool(cache.known(rows).any())
        if is_known:
            expected = torch.from_numpy(source.train.hashes(rows)).float()
            assert torch.equal(cache.get(rows)[:, 0], expected)
        result.append(is_known)
    return result


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    ],
)
def test_a_damaged_file_is_rebuilt(damaged, image_folder, filled):
    path = next(filled.rglob("*.safetensors"))
    path.write_bytes(damaged(path.read_bytes()))
    assert sorted(known(image_folder, filled)) == [False, True]
    source, cache = opened(image_folder, filled)
    collect(cache, np.arange(len(source.train)))
    assert known(image_folder, filled) == [True, True]


def test_a_changed_image_is_no_hit_and_a_copied_folder_is(
    image_folder, filled, tmp_path
):
    copy = Path(shutil.copytree(image_folder, tmp_path / "copy"))
    assert known(copy, filled) == [True, True]
    shutil.copy(copy / "ant" / "1.png", copy / "bee" / "3.png")
    assert known(copy, filled) == [True, False]


def test_images_that_are_replaced_between_two_runs_are_no_hit(image_folder, tmp_path):
    places = {"root": str(image_folder), "cache_folder": str(tmp_path / "cache")}
    data = digits(source="folder", cache=True, **places)
    heads = []
    for _ in range(2):
        learner = module()
        trainer(tmp_path, max_epochs=1).fit(learner, datamodule=data)
        heads.append(learner.images.content.tolist())
        for name in data.source.train.names:
            path = image_folder / name
            path.write_bytes(path.read_bytes() + b"x")
    assert not set(heads[0]) & set(heads[1])


def test_a_cache_that_cannot_be_written_ends_no_run(image_folder, filled, caplog):
    """A shared cache of someone else, or a full disk: said once, and nothing is embedded again."""
    for path in filled.rglob("*.safetensors"):
        path.unlink()
        path.mkdir()
    source, cache = opened(image_folder, filled)
    collect(cache, np.arange(len(source.train)))
    assert caplog.text.count("no more embeddings are cached") == 1
    assert cache.known(np.arange(len(source.train))).all()


@pytest.mark.parametrize("place", [0, -1])
def test_a_class_is_stored_without_its_unreadable_image(place, tmp_path, image_folder):
    """Wherever it stands among the others; a file that has all others is not written anew."""
    source, cache = opened(image_folder, tmp_path / "cache")
    rows = source.train.rows_of[0]
    for row in rows:
        if row == rows[place]:
            cache.leave_out(rows[[place]])
        else:
            collect(cache, rows[rows == row])
    (path,) = (tmp_path / "cache").iterdir()
    written = path.stat()
    _, cache = opened(image_folder, tmp_path / "cache")
    assert cache.known(rows).sum() == len(rows) - 1
    cache.leave_out(rows[[place]])
    assert path.stat() == written


def test_two_processes_store_a_class_that_both_then_read(tmp_path, image_folder):
    caches = [opened(image_folder, tmp_path / "cache")[1] for _ in range(2)]
    rows = caches[0].samples.rows_of[0]
    shares = rows[:2], rows[2:-1]
    for cache, share in zip(caches, shares, strict=True):
        assert not cache.known(share).any()
        collect(cache, share)
    parts = [part for cache in caches for part in cache.take_incomplete()]
    caches[0].leave_out(rows[-1:])
    for part in parts:
        caches[0].collect(*part)
    for cache, share in zip(caches, shares, strict=True):
        assert cache.known(share).all()


def test_a_run_that_skips_an_unreadable_image_stores_its_class(tmp_path, image_folder):
    source, _ = opened(image_folder, tmp_path / "cache")
    (image_folder / source.train.names[2]).write_bytes(b"no image")
    places = {"root": str(image_folder), "cache_folder": str(tmp_path / "cache")}
    data = digits(source="folder", cache=True, on_corrupt="skip", **places)
    trainer(tmp_path, max_epochs=1).fit(module(), datamodule=data)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 4


def test_images_that_change_while_they_are_read_are_not_cached(tmp_path, image_folder):
    """An image is replaced after it was embedded, before the last one of its class is."""
    source, cache = opened(image_folder, tmp_path / "cache")
    rows = source.train.rows_of[0]
    assert not cache.known(rows).any()
    collect(cache, rows[:-1])
    shutil.copy(image_folder / "ant" / "1.png", image_folder / "ant" / "0.png")
    collect(cache, rows[-1:])
    assert known(image_folder, tmp_path / "cache") == [False, False]
    # As they are now, they are cached.
    source, cache = opened(image_folder, tmp_path / "cache")
    collect(cache, rows)
    assert known(image_folder, tmp_path / "cache") == [True, False]
