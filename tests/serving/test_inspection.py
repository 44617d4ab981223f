"""What a model says of its own stored samples, and groups of photos that look alike."""

from __future__ import annotations

import pytest
import torch

from cifnet_pl.serving.inspection import groups_of, look, stored_accuracy
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


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_photos_are_one_group(count: int):
    assert groups_of(torch.eye(4)[:count]) == ([list(range(count))] if count else [])


def test_two_directions_are_two_groups():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.01], [0.99, 0.0], [0.01, 1.0]])
    assert sorted(map(sorted, groups_of(z))) == [[0, 2, 3], [1, 4]]
