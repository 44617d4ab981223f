"""Patches: their features against literal NumPy, their dictionary, and a run that learns it."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

import cifnet_pl
from cifnet_pl.backbones import Backbone, build_backbone, patches
from cifnet_pl.utilities.errors import CifnetError, UsageError
from tests.command_line import assert_same_model, learned, measurements, summary_of

OPTIONS = ["--model.backbone", "patches:6", "--model.head", "RidgeHead"]
OPTIONS += ["--data.image_size", "8", "--data.max_tasks", "2", "--seed_everything", "5"]


@pytest.fixture(scope="module", autouse=True)
def fewer_patches():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(patches, "DRAWN_PATCHES", 2000)
        yield


def images(count: int = 30, side: int = 9, seed: int = 0) -> Tensor:
    """Smooth random images, (count, 3, side, side + 1) uint8."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator) * 255
    size = (side, side + 1)
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear").byte()


def with_dictionary(name="patches:5", seed=0, learned_from=None) -> Backbone:
    backbone = build_backbone(name)
    given = images() if learned_from is None else learned_from
    backbone.network.learn_from(given, seed)
    return backbone


@pytest.mark.parametrize("cells", [1, 3])
def test_the_features_are_those_of_the_papers_computed_patch_by_patch(cells):
    backbone = with_dictionary(f"patches:5x{cells}")
    net = backbone.network
    filters = net.filters.double().numpy()
    offset = net.offset.double().numpy()
    expected = []
    for image in images(4, seed=1).double().numpy():
        rows = image.shape[1] - 5
        columns = image.shape[2] - 5
        sums = np.zeros((2, cells, cells, 5))
        counts = np.zeros((cells, cells))
        for r in range(rows):
            for c in range(columns):
                patch = image[:, r : r + 6, c : c + 6].reshape(-1)
                patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
                response = patch @ filters - offset
                cell = r * cells // rows, c * cells // columns
                counts[cell] += 1
                sums[0][cell] += np.maximum(response - 0.25, 0)
                sums[1][cell] += np.maximum(-response - 0.25, 0)
        roots = np.sqrt(sums / counts[None, :, :, None]).reshape(-1)
        expected.append((roots - net.mean.numpy()) / net.deviation.numpy())
    z = backbone(images(4, seed=1))
    assert z.shape == (4, backbone.features) == (4, 10 * cells**2)
    np.testing.assert_allclose(z.numpy(), np.stack(expected), atol=2e-4)


def test_whitened_patches_have_variance_one_along_every_centre():
    """Less where a direction holds little more than what is added before whitening; unwhitened it
    would be up to 60.
    """
    learned_from = images(200, 12)
    net = with_dictionary("patches:40", learned_from=learned_from).network
    windows = torch.nn.functional.unfold(learned_from.float(), 6)
    drawn = patches.normalised(windows.mT.flatten(0, 1))
    variance, mean = torch.var_mean(drawn @ net.filters - net.offset, dim=0)
    assert mean.abs().max() < 0.15
    assert variance.max() < 1.2
    assert variance.median() > 0.5


def test_features_of_the_images_learned_from_are_standardised():
    z = with_dictionary()(images())
    assert torch.allclose(z.mean(dim=0), torch.zeros(40), atol=1e-4)
    spread = z.std(dim=0, correction=0)
    assert (torch.isclose(spread, torch.ones(40), atol=1e-3) | (spread == 0)).all()


def test_the_seed_decides_the_dictionary():
    one, same, other = (with_dictionary(seed=seed) for seed in (3, 3, 4))
    assert one.sha256 == same.sha256 != other.sha256
    assert torch.equal(one(images()), same(images()))
    assert one.parameters_count == 108 * 5 + 5 + 2 * 40


@pytest.mark.parametrize("shape", [(0, 3, 9, 9), (3, 3, 6, 9)])
def test_nothing_can_be_learned_from(shape):
    with pytest.raises(CifnetError, match="7 pixels"):
        with_dictionary(learned_from=torch.full(shape, 7).byte())


def test_it_embeds_nothing_before_it_has_learned():
    with pytest.raises(UsageError, match="patches:5"):
        build_backbone("patches:5")(images())
    for engine in ("auto", "onnxruntime"):  # no graph is made of it, either
        assert build_backbone("patches:5", engine=engine).engine() == "torch"


# ---------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def cached(tmp_path_factory) -> list[str]:
    """Options of runs that share a cache of embeddings."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return [*OPTIONS, "--data.cache", "true", "--data.cache_folder", cache]


@pytest.fixture(scope="module")
def run(tmp_path_factory, cached):
    every_task = ["--checkpoint.every_task", "true"]
    return learned(tmp_path_factory.mktemp("run"), *cached, *every_task)


def test_a_run_goes_on_with_its_dictionary_and_ends_with_the_same_bits(
    run, tmp_path, monkeypatch
):
    twice = Mock(side_effect=AssertionError("learned twice"))
    monkeypatch.setattr(patches.Patches, "learn_from", twice)
    first = run / "checkpoints" / "task_1.ckpt"
    again = learned(tmp_path, *OPTIONS, "--ckpt_path", str(first))
    assert_same_model(again, run)
    assert measurements(again) == measurements(run)


def test_each_dictionary_has_embeddings_of_its_own_in_the_cache(run, cached, tmp_path):
    other = learned(tmp_path, *cached, "--seed_everything", "6")
    assert summary_of(other)["cached_images"] == 0
    assert len(list(Path(cached[-1]).rglob("train"))) == 2
    assert measurements(run) != measurements(other)


def test_a_bundle_holds_the_dictionary(run, tmp_path):
    model = cifnet_pl.load(run)
    model.save(tmp_path / "bundle")
    again = cifnet_pl.load(tmp_path / "bundle")
    squares = images(5, 8)[..., :8]
    assert again.backbone.describe() == model.backbone.describe()
    assert torch.equal(again.probabilities(squares), model.probabilities(squares))


@pytest.mark.soak  # torch's exporter takes many seconds
def test_a_learned_model_is_exported(run):
    content, check = cifnet_pl.load(run).to_onnx()
    assert content
    assert check.probability < 1e-4
