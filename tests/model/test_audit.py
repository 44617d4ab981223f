"""The audit's numbers against refits, planted errors, a known curve."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cifnet_pl.heads import RidgeHead
from cifnet_pl.model import audit as module
from cifnet_pl.model.audit import audit, learning_curve
from cifnet_pl.statistics import groups
from tests.heads.suite import teach

CLASSES = 4
EACH = 12
WIDTH = 6
NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of four classes, one of them with a wrong label, one far from all."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), EACH)
    noise = draw.normal(0, 0.6, (len(labels), WIDTH))
    z = (4 * np.eye(CLASSES, WIDTH)[labels] + noise).astype(np.float32)
    planted = labels.copy()
    planted[5] = 2
    z[20, 5] += 9
    return z, planted


def test_wrong_labels_and_other_things_among_scans_of_digits_are_found():
    """5 % are planted; of as many least probable labels most are wrong, where chance finds 5 %."""
    images, right = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    images[:20] = draw.permuted(images[:20], axis=1)  # no digits any more
    planted = draw.choice(len(right), len(right) // 20, replace=False)
    labels = right.copy()
    labels[planted] = (right[planted] + draw.integers(1, 10, len(planted))) % 10
    found = audit((images / 16).astype(np.float32), labels, list("0123456789"))
    named = found.images["probability_of_class"].nsmallest(len(planted)).index
    assert np.isin(named, planted).mean() > 0.65
    assert np.isin(np.arange(20), found.outliers().index).mean() > 0.9
    assert len(found.outliers()) < 60


def test_classes_of_one_image_or_of_near_duplicates_are_not_judged(images, monkeypatch):
    """Nothing is said of them, and nothing of the others depends on them."""
    z, labels = with_bursts(images, monkeypatch)
    labels[0] = 4
    labels[48:51] = 5  # a burst of one bee in a folder of its own
    found = audit(z, labels, [*NAMES, "eel", "fly"])
    assert np.isfinite(found.images["probability_of_class"]).all()
    rows = [0, 48, 49, 50]
    judged = found.images["judged"]
    assert np.flatnonzero(~judged).tolist() == rows
    assert found.unjudged == {"eel": 1, "fly": 3}
    assert found.images["novelty"].isna().equals(~judged)
    assert not set(rows) & {*found.label_errors().index, *found.outliers().index}
    correct = found.images["class"] == found.images["predicted"]
    assert found.scored.accuracy == pytest.approx(100 * correct[judged].mean())
    pairs = found.scored.confused_pairs()
    assert not {pair.target for pair in pairs} & set(found.unjudged)
    assert found.images["near_duplicate"][48:51].all()
    assert found.label_errors().index[0] == 5
    assert found.outliers().index[0] == 20


def test_the_learning_curve_is_of_the_same_classes_at_every_size():
    """Small classes run out: their images, which nobody could name, do not change the curve."""
    draw = np.random.default_rng(4)
    labels = np.repeat(np.arange(10), [60] * 7 + [4] * 3)
    noise = draw.normal(0, 1.2, (len(labels), 20))
    z = (4 * np.eye(10, 20)[labels] + noise).astype(np.float32)
    large = labels < 7
    z[~large] = draw.normal(0, 1, z[~large].shape)
    curve = learning_curve(z, labels, 10)
    assert [size for size, _ in curve] == [3, 7, 15, 30, 60]
    found = audit(z, labels, list("abcdefghij"))
    correct = found.images["class"] == found.images["predicted"]
    means = [100 * correct[labels == label].mean() for label in range(10)]
    assert curve[-1].accuracy == pytest.approx(np.mean(means[:7]))
    assert np.mean(means[7:]) < 50


def with_bursts(images, monkeypatch, noise=0.01):
    """Three near-duplicates of each of three bees, of which one is like a dog, and of no others."""
    monkeypatch.setattr(groups, "NEAR_DUPLICATE", 0.999)
    z, labels = images
    draw = np.random.default_rng(1)
    first = np.repeat([12, 13, 47], 3)
    more = z[first] + noise * draw.normal(0, 1, (len(first), WIDTH)).astype(np.float32)
    return np.concatenate([z, more]), np.concatenate([labels, labels[first]])


def test_a_burst_is_left_out_together(images, monkeypatch):
    """Each image is judged by a classifier that learned none of its burst."""
    z, labels = with_bursts(images, monkeypatch)
    bursts = [[12, 48, 49, 50], [13, 51, 52, 53], [47, 54, 55, 56]]
    found = audit(z, labels, NAMES)
    copied = found.images["near_duplicate"]
    assert np.flatnonzero(copied).tolist() == sorted(np.ravel(bursts))
    ridge = module.fitted_head(z, labels, CLASSES).ridge_used.item()
    for rows in [*bursts, [0], [5], [20]]:
        others = np.setdiff1d(np.arange(len(labels)), rows)
        head = teach(
            RidgeHead(WIDTH, ridge=ridge),
            torch.from_numpy(z[others]),
            torch.from_numpy(labels[others]),
        )
        predicted = head.predict(torch.from_numpy(z[rows])).numpy()
        names = [NAMES[column] for column in predicted]
        assert names == found.images["predicted"][rows].tolist()


def test_the_learning_curve_leaves_bursts_out_together(monkeypatch):
    """Noise says nothing about classes drawn by chance, but each near-duplicate does."""
    draw = np.random.default_rng(2)
    z = np.repeat(draw.normal(0, 1, (40, 60)), 2, axis=0).astype(np.float32)
    z += 0.01 * draw.normal(0, 1, z.shape).astype(np.float32)
    labels = np.repeat(np.arange(CLASSES), 20)
    assert learning_curve(z, labels, CLASSES)[-1].accuracy <= 50
    monkeypatch.setattr(groups, "NEAR_DUPLICATE", 1.1)  # nothing is a near-duplicate
    assert learning_curve(z, labels, CLASSES)[-1].accuracy > 90
