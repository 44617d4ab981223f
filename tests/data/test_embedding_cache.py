"""The embedding cache: identical results, no second pass of the backbone, and never a stale or
damaged hit.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.embedding_cache import (
    EmbeddingCache,
)
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from tests.command_line import (
    BUFFER,
    assert_same_model,
    checkpoint,
    learned,
    make_images,
    measurements,
)

FOLDER = ["--data.source", "folder", "--data.classes_per_task", "2", *BUFFER]


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", ["ant", "bee", "cow", "dog"])


@pytest.fixture
def embedded(watch) -> list[int]:
    """Sizes of the batches that the backbone has embedded."""
    return watch(Backbone, "forward", lambda backbone, images: len(images))


def run(tmp_path: Path, image_folder: Path, name: str, *options: str) -> Path:
    cache = ["--data.cache", "true", "--data.cache_folder", str(tmp_path / "cache")]
    return learned(
        tmp_path / name, *FOLDER, "--data.root", str(image_folder), *cache, *options
    )


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.safetensors"))


def test_results_with_and_without_are_identical(
    tmp_path: Path, image_folder: Path, embedded: list[int]
) -> None:
    without = learned(tmp_path / "without", *FOLDER, "--data.root", str(image_folder))
    images = sum(embedded)
    building = run(tmp_path, image_folder, "building")
    assert sum(embedded) == 2 * images
    hit = run(tmp_path, image_folder, "hit")
    assert sum(embedded) == 2 * images, "the second run embedded images again"
    for other in (building, hit):
        assert_same_model(other, without)
        assert measurements(other) == measurements(without)


NETWORK = """
import torch

class {}(torch.nn.Module):
    features, image_size, mean, std = 12, 8, (0, 0, 0), (1, 1, 1)

    def forward(self, x):
        return {}
"""


@pytest.mark.parametrize(
    ("name", "edited"),
    [("Net", "torch.relu(pooled - 0.5)"), ("Other", "pooled[:, [0] * 12]")],
)
def test_a_network_whose_code_changed_is_another_cache(
    tmp_path, image_folder, embedded, monkeypatch, name, edited
):
    """Its weights are the same, as are those of two classes without any; the model is that of a run
    without a cache.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    pooled = "torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)"
    counts = []
    runs = []
    used = ["--model.engine", "torch", "--data.image_size", "8", "--model.backbone"]
    for number, (network, output) in enumerate(
        (("Net", "pooled"), (name, edited), ("Net", "pooled"))
    ):
        code = NETWORK.format(network, output.replace("pooled", pooled))
        (tmp_path / "my_net.py").write_text(code)
        sys.modules.pop("my_net", None)
        importlib.invalidate_caches()
        embedded.clear()
        options = [*used, f"import:my_net.{network}"]
        runs.append(run(tmp_path, image_folder, f"with{number}", *options))
        counts.append(sum(embedded))
        if number == 1:
            plain = [*FOLDER, "--data.root", str(image_folder), *options]
            assert_same_model(runs[1], learned(tmp_path / "without", *plain))
    assert counts[0] == counts[1] > 0
    assert counts[2] == 0  # what the first network embedded is still there
    assert_same_model(runs[2], runs[0])


def test_a_changed_image_is_never_a_hit(
    tmp_path: Path, image_folder: Path, embedded: list[int]
) -> None:
    same_split = [
        "--data.group",
        "single",
    ]  # an image that looks unlike the others would change what is held out
    run(tmp_path, image_folder, "first", *same_split)
    before = sum(embedded)
    changed = image_folder / "bee" / "3.png"
    other = make_images(tmp_path / "others", ["emu"], 1) / "emu" / "0.png"
    changed.write_bytes(other.read_bytes())
    second = run(tmp_path, image_folder, "second", *same_split)
    assert sum(embedded) - before in (
        2,
        16,
    ), "its class's test images, or the training batch that it is in"
    fresh = learned(
        tmp_path / "fresh", *FOLDER, "--data.root", str(image_folder), *same_split
    )
    assert_same_model(second, fresh)


def test_a_copied_folder_hits_by_content(
    tmp_path: Path, image_folder: Path, embedded: list[int]
) -> None:
    run(tmp_path, image_folder, "first")
    before = sum(embedded)
    copy = make_images(tmp_path / "copy", ["ant", "bee", "cow", "dog"])
    run(tmp_path, copy, "second")
    assert sum(embedded) == before


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_file_is_rebuilt(
    tmp_path: Path, image_folder: Path, embedded: list[int], damage: str
) -> None:
    first = run(tmp_path, image_folder, "first")
    before = sum(embedded)
    victim = files(tmp_path)[0]
    whole = victim.read_bytes()
    spoiled = whole[: len(whole) // 2]
    if damage == "flipped":
        spoiled = whole[:-1] + bytes([whole[-1] ^ 1])
    victim.write_bytes(spoiled)
    second = run(tmp_path, image_folder, "second")
    assert sum(embedded) - before in (
        2,
        16,
    ), "its class's test images, or the training batch that it is in"
    assert victim.read_bytes()[-200:] == whole[-200:]
    assert_same_model(second, first)


def test_a_cache_that_cannot_be_written_ends_no_run(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shared cache of someone else, or a full disk: said once."""
    first = run(tmp_path, image_folder, "first")
    for path in files(tmp_path):
        path.unlink()
        path.mkdir()
    second = run(tmp_path, image_folder, "second")
    assert_same_model(second, first)
    told = capsys.readouterr().err.count("no more embeddings are cached")
    assert 1 <= told <= 2  # one for the training images, one for the test images


def test_a_killed_build_goes_on(
    tmp_path: Path, image_folder: Path, embedded: list[int]
) -> None:
    run(tmp_path, image_folder, "first", "--data.max_tasks", "1")
    before = sum(embedded)
    run(tmp_path, image_folder, "second")
    assert sum(embedded) == 2 * before, (
        "the classes that were stored before are not embedded again"
    )
    whole = learned(tmp_path / "whole", *FOLDER, "--data.root", str(image_folder))
    state = checkpoint(tmp_path / "second" / "default" / "version_0")["state_dict"]
    assert all(
        torch.equal(state[k], v) for k, v in checkpoint(whole)["state_dict"].items()
    )


def collect(cache: EmbeddingCache, rows: np.ndarray) -> None:
    cache.collect(
        torch.from_numpy(rows),
        torch.from_numpy(cache.images.hashes(rows)),
        torch.zeros(len(rows), 4),
    )


def test_images_that_change_while_they_are_read_are_not_cached(
    tmp_path: Path, image_folder: Path
) -> None:
    """An image is replaced after it was embedded, before the last one of its class is."""
    source = build_source("folder", SourceOptions(image_folder))
    images = source.train
    rows = source.train.rows_of[0]
    cache = EmbeddingCache(images, source.class_names, tmp_path / "cache")
    assert not cache.known(rows).any()
    collect(cache, rows[:-1])
    (image_folder / images.names[rows[0]]).write_bytes(
        (image_folder / images.names[rows[1]]).read_bytes()
    )
    collect(cache, rows[-1:])
    assert (
        not EmbeddingCache(images, source.class_names, tmp_path / "cache")
        .known(rows)
        .any()
    )
    # As they are now, they are cached.
    assert not cache.known(rows).any()
    collect(cache, rows)
    assert (
        EmbeddingCache(images, source.class_names, tmp_path / "cache").known(rows).all()
    )
