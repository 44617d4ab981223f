"""The audit's numbers: leave-one-out answers against refits, planted errors, and the forecast of a known curve."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from cifnet_pl.heads import RidgeHead
from cifnet_pl.model import audit as module
from cifnet_pl.model.audit import LearningCurve, audit, learning_curve, top_label_error

CLASSES, EACH, WIDTH = 4, 12, 6
NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def photos() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of four classes, one of them with a wrong label, one far from all."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), EACH)
    z = (4 * np.eye(CLASSES, WIDTH)[labels] + draw.normal(0, 0.6, (len(labels), WIDTH))).astype(np.float32)
    planted = labels.copy()
    planted[5] = 2
    z[20, 5] += 9
    return z, planted


def test_each_photo_is_judged_by_all_others(photos):
    z, labels = photos
    found = audit(z, labels, NAMES)
    for row in (0, 5, 20, 47):
        others = np.arange(len(labels)) != row
        head = RidgeHead(WIDTH, ridge=module._learned(z, labels, CLASSES).ridge_used.item())
        head.begin_task(range(CLASSES))
        head.observe(torch.from_numpy(z[others]), torch.from_numpy(labels[others]))
        head.solve()
        assert head.predict(torch.from_numpy(z[row : row + 1])).item() == found.evaluation.predicted[row]
    assert found.doubtful()[0] == 5
    assert found.farthest()[0] == 20
    assert found.evaluation.predicted[5] == 0
    assert np.median(found.distance[labels == 1]) == pytest.approx(1)


def test_batches_do_not_matter(photos, monkeypatch):
    z, labels = photos
    whole = audit(z, labels, NAMES)
    monkeypatch.setattr(module, "AT_ONCE", 7)
    parts = audit(z, labels, NAMES)
    assert np.allclose(parts.own, whole.own)
    assert np.allclose(parts.distance, whole.distance)


def test_calibration_error_is_that_of_all_probabilities():
    draw = torch.Generator().manual_seed(0)
    p = torch.softmax(2 * torch.randn(200, 5, generator=draw), dim=1)
    y = torch.randint(0, 5, (200,), generator=draw)
    expected = 100 * float(multiclass_calibration_error(p, y, 5, n_bins=15))
    best = p.max(dim=1)
    assert top_label_error(best.values.numpy(), (best.indices == y).numpy()) == pytest.approx(expected, abs=1e-4)


def test_the_forecast_of_a_known_curve():
    points = [(n, 95 - 60 * n**-0.8) for n in (3, 6, 12, 24, 48)]
    curve = LearningCurve(points, module._fit(points))
    assert curve.forecast(96) == pytest.approx(95 - 60 * 96**-0.8, abs=0.2)
    assert LearningCurve(points[:3], module._fit(points[:3])).forecast(96) is None


def test_the_learning_curve_ends_with_all_photos(photos):
    z, labels = photos[0], np.repeat(np.arange(CLASSES), EACH)
    curve = learning_curve(z, labels, CLASSES)
    assert [size for size, _ in curve.points] == [3, 6, EACH]
    assert curve.points[-1][1] == pytest.approx(audit(z, labels, NAMES).evaluation.accuracy)


def test_a_class_of_one_photo(photos):
    z, labels = photos
    labels = labels.copy()
    labels[0] = 4
    found = audit(z, labels, [*NAMES, "eel"])
    assert np.isfinite(found.own).all()
    assert np.isfinite(found.distance).all()


def test_near_copies_are_known_and_the_others_scored_apart(photos, monkeypatch):
    z, labels = photos
    draw = np.random.default_rng(1)
    twins = z[12:16] + 0.01 * draw.normal(0, 1, (4, WIDTH)).astype(np.float32)
    both, own = np.concatenate([z, twins]), np.concatenate([labels, labels[12:16]])
    monkeypatch.setattr(module, "NEAR", 0.9999)
    assert not module.near_copies(z, labels).any()
    close = audit(both, own, NAMES)
    assert np.flatnonzero(close.copied).tolist() == [12, 13, 14, 15, 48, 49, 50, 51]
    assert close.accuracy_without_copies == pytest.approx(100 * close.evaluation.right[~close.copied].mean())
    monkeypatch.setattr(module, "AT_ONCE", 5)
    assert np.array_equal(module.near_copies(both, own), close.copied)
    other_class = own.copy()
    other_class[48:] = (own[48:] + 1) % CLASSES
    assert not module.near_copies(both, other_class).any()
