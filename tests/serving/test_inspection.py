"""What a model says of its own stored samples, and groups of images that look alike."""

from functools import partial
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.probabilities import KnownScores
from cifnet_pl.model.calibration import Kind, estimated
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.inspection import (
    ACCURACY_MESSAGES,
    AccuracyEstimate,
    accuracy_of_classes,
    class_estimates,
)
from tests.models import learn_embeddings, learned


def test_stored_samples_are_answered_as_if_never_learned():
    model = learned("cifnet")
    accuracy, (low, high) = accuracy_of_classes(model, model.class_names)
    assert accuracy == pytest.approx(100, abs=20)
    assert low <= accuracy <= high
    assert accuracy_of_classes(learned("ncm"), ["ant"]) == (None, None)


def test_what_each_class_is_taken_for():
    """Nothing tells the third class from the first; of a class of five images nothing is said."""
    backbone = build_backbone("pixels:2")
    buffer = CalibrationBuffer(500)
    model = Classifier(backbone, RidgeHead(6), buffer, [], 2, calibrated=True)
    names = ["pear", "plum", "quince", "rare"]
    y = torch.tensor([0] * 30 + [1] * 30 + [2] * 30 + [3] * 5)
    means = 9 * torch.eye(6)[torch.tensor([0, 1, 0, 3])]
    noise = torch.randn(len(y), 6, generator=torch.Generator().manual_seed(0))
    learn_embeddings(model, names, means[y] + noise, y)
    pear, plum, quince, rare = class_estimates(model)
    assert (pear.confused_with, quince.confused_with) == (["quince"], ["pear"])
    assert (plum.confused_with, rare.confused_with) == ([], [])
    assert (plum.accuracy, plum.interval) == (100, pytest.approx((90, 100)))
    assert (rare.accuracy, rare.interval) == (None, None)
    assert 20 < pear.accuracy < 80
    assert not any(one.rarely_predicted for one in (pear, plum, quince, rare))
    assert AccuracyEstimate.from_model(model).new_group_accuracy is not None
    assert set(get_args(Kind)) == ACCURACY_MESSAGES.keys()


def test_the_margin_is_of_groups_and_not_of_images():
    """Of two classes with a hundred images half are right: an error of 3.5 points, twice that if
    four go together.

    What two hundred new images show has the same error once more.
    """
    columns = torch.arange(2).repeat_interleave(100)
    right = torch.arange(200) % 8 < 4
    predicted = torch.where(right, columns, 1 - columns)
    scores = torch.nn.functional.one_hot(predicted, 2).double()
    counted = torch.ones(200, dtype=torch.bool)
    known = partial(KnownScores, scores, columns, counted)
    samples = SimpleNamespace(known_scores=known, learned=True)
    for size, expected in ((1, 1.96 * 3.54), (4, 1.96 * 7.00)):
        samples.groups = torch.arange(200) // size
        low, high = estimated(samples).interval
        assert (high - low) / 2 == pytest.approx(2**0.5 * expected, abs=0.7)
