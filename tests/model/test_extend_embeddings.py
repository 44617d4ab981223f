"""A model of embeddings takes in new classes from a file of embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cifnet_pl
from cifnet_pl.backbones import build_backbone
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.data.layouts import vectors


def empty() -> Classifier:
    return Classifier(build_backbone("none:4"), RidgeHead(4), None, [], 1)


def save(path: Path, keep: list[int], **more: np.ndarray) -> Path:
    z, y = vectors(60, classes=5)
    rows = np.isin(y, keep)
    np.savez(path, embeddings=z[rows], labels=y[rows], **more)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    """Three of five classes, each photo known by its hash."""
    return empty().extend(save(tmp_path / "a.npz", [0, 1, 2])).model


def test_in_two_steps_as_in_one(model: Classifier, tmp_path: Path):
    result = model.extend(save(tmp_path / "b.npz", [3, 4]), check=tmp_path / "a.npz")
    assert result.learned == {"3": 12, "4": 12}
    assert result.old_before.total == 36
    whole = empty().extend(save(tmp_path / "all.npz", [0, 1, 2, 3, 4])).model
    z, _ = vectors(20, classes=5, seed=7)

    torch.testing.assert_close(result.model.head(torch.from_numpy(z)), whole.head(torch.from_numpy(z)))
    result.model.save(tmp_path / "bundle")
    actual = list(cifnet_pl.load(tmp_path / "bundle").classify_embeddings(tmp_path / "b.npz"))
    assert [prediction.classes[0] for prediction in actual[:2]] == ["3", "4"]


def test_what_is_learned_already_is_left_out(model: Classifier, tmp_path: Path):
    with pytest.raises(UsageError, match="class '0' is already learned"):
        model.extend(tmp_path / "a.npz")
    with pytest.raises(DataError, match="is learned already: there is nothing to learn"):
        model.extend(tmp_path / "a.npz", more=True)


def test_what_does_not_fit(model: Classifier, tmp_path: Path):
    np.savez(tmp_path / "w.npz", embeddings=np.ones((4, 5), np.float32), labels=np.array([7, 7, 8, 8]))
    with pytest.raises(DataError, match="have 5 numbers, the model's 4"):
        model.extend(tmp_path / "w.npz")
    np.savez(tmp_path / "f.npz", embeddings=np.ones((2, 4), np.float32), labels=np.array([0.5, 1.5]))
    with pytest.raises(DataError, match=r"is 0\.5 \(float\)"):
        model.extend(tmp_path / "f.npz")
    broken = np.ones((3, 4), np.float32)
    broken[1, 2] = np.nan
    np.savez(tmp_path / "n.npz", embeddings=broken, labels=np.array([7, 7, 8]))
    with pytest.raises(DataError, match="NaN or infinity in row 1 of the embeddings"):
        model.extend(tmp_path / "n.npz")
