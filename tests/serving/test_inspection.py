"""What a model says of its own stored samples, and groups of photos that look alike."""

from __future__ import annotations

import pytest
import torch

from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.inspection import Promise, class_answers, groups_of, look, stored_accuracy
from tests.models import learned


def test_stored_samples_are_answered_as_if_never_learned():
    model = learned("cifnet")
    assert stored_accuracy(model, model.class_names) == pytest.approx(100, abs=20)
    assert stored_accuracy(learned("ncm"), ["ant"]) is None


def test_look_names_what_is_kept():
    state = look(learned("cifnet"), "digits", 3, False)
    assert (state.name, state.version, state.classes) == ("digits", 3, 6)
    assert state.state_mb > 0
    assert len(state.history) == 3


def test_what_each_class_is_taken_for():
    """Nothing tells the third class from the first; of a class of five photos nothing is said."""
    draw = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 30 + [1] * 30 + [2] * 30 + [3] * 5)
    z = torch.randn(95, 6, generator=draw) + 9 * torch.eye(6)[torch.tensor([0, 1, 0, 3])[y]]
    model = Classifier(build_backbone("pixels:2"), RidgeHead(6), CalibrationBuffer(200), [], 2, calibrated=True)
    model.begin_task(["pear", "plum", "quince", "rare"], [30, 30, 30, 5])
    model.observe(z, y, torch.arange(95))
    model.finish_task()
    pear, plum, quince, rare = class_answers(model)
    assert (pear.taken_for, plum.taken_for, quince.taken_for, rare.taken_for) == (["quince"], [], ["pear"], [])
    assert (plum.right, rare.right) == (100, None)
    assert pear.right is not None
    assert 20 < pear.right < 80
    assert not any(one.seldom for one in (pear, plum, quince, rare))
    assert Promise.of(model).another_day is not None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_photos_are_one_group(count: int):
    assert groups_of(torch.eye(4)[:count]) == ([list(range(count))] if count else [])


def test_two_directions_are_two_groups():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.01], [0.99, 0.0], [0.01, 1.0]])
    assert sorted(map(sorted, groups_of(z))) == [[0, 2, 3], [1, 4]]
