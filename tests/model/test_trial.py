"""``extend`` scores a fifth of the new photos by a model that learned the others, and changes no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cifnet_pl.model import learn as learning
from cifnet_pl.model.class_photos import ClassPhotos
from tests.command_line import make_photos
from tests.models import learned, tensors_equal


@pytest.fixture
def photos(tmp_path: Path) -> ClassPhotos:
    """Twenty photos of each of two classes."""
    return ClassPhotos.find(make_photos(tmp_path, ["gnu", "hen"], 20), "--images")


def test_the_score_is_that_of_a_model_of_the_other_photos(photos: ClassPhotos):
    old, before = learned("ridge"), learned("ridge").tensors()
    lesson = learning.learn(old, photos)
    model, score = lesson.model, lesson.score
    assert model.counts["gnu"] == model.counts["hen"] == 20
    held = np.zeros(len(photos.files), dtype=bool)
    for rows in photos.files.rows_of.values():
        held[rows] = photos.held_back(rows, learning.HELD_BACK)
    assert held.sum() == score.total == 8
    other = old.clone()
    other.begin_task(photos.class_names, [16, 16])
    labels = torch.tensor(other.labels(photos.class_names))[photos.files.labels]
    embedded = list(photos.embedded(old, "", []))
    z = torch.cat([part for _, part in embedded])
    kept = torch.from_numpy(~held)
    other.observe(z[kept], labels[kept], torch.arange(32))
    other.finish_task()
    assert score.right == int((other.head.predict(z[~kept]) == labels[~kept]).sum())
    assert tensors_equal(old.tensors(), before)


def test_wide_heads_are_taught_one_after_the_other(photos: ClassPhotos, monkeypatch: pytest.MonkeyPatch):
    """They need much memory; the results are the same bits."""
    together = learning.learn(learned("ridge"), photos)
    monkeypatch.setattr(learning, "SOLVED_TOGETHER", 0)
    apart = learning.learn(learned("ridge"), photos)
    assert tensors_equal(apart.model.tensors(), together.model.tensors())
    assert apart.score == together.score
