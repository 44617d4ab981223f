"""The trial learns the same, whenever it becomes known which photos are held back."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cifnet_pl.data import groups as similar_photos
from cifnet_pl.model import learn as extend
from cifnet_pl.model import learn as trial_module
from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.learn import Lesson, Score, Trial
from tests.command_line import make_photos
from tests.models import learned, tensors_equal


class Late(Executor):
    """Runs what it was given once a result is asked for, or ``run`` is called."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        executor = self

        class Lazy(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                executor.run()
                return super().result(timeout)

        future = Lazy()
        self.work.append(lambda: future.set_result(function(*arguments, **named)))
        return future

    def run(self) -> None:
        work, self.work = self.work, []
        for one in work:
            one()


def observed(photos: ClassPhotos, known_after: int) -> tuple[Trial, list[int]]:
    """A trial that has taken in all photos, and the number of batches that waited after each of them."""
    background, waiting = Late(), []
    model = learned("ridge")
    trial = Trial(model, photos, background)
    for rows, z in photos.embedded(model, "", []):
        for part in np.array_split(np.arange(len(rows)), 4):
            if len(waiting) == known_after:
                background.run()
            trial.observe(rows[part], z[torch.from_numpy(part)])
            waiting.append(len(trial._waiting))
    return trial, waiting


@pytest.mark.parametrize(
    ("known_after", "limit", "waited"),
    [(0, 2**24, [0, 0, 0, 0]), (2, 2**24, [1, 2, 0, 0]), (9, 2**24, [1, 2, 3, 4]), (9, 0, [0, 0, 0, 0])],
)
def test_embeddings_wait_until_it_is_known_who_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_after: int, limit: int, waited: list[int]
):
    """No more of them than ``WAITING`` numbers, and what is learned does not depend on it."""
    photos = ClassPhotos.find(str(make_photos(tmp_path, ["gnu", "hen"], 20)), "--images")
    direct, _ = observed(photos, 0)
    reference = direct.finish()
    monkeypatch.setattr(trial_module, "WAITING", limit)
    trial, waiting = observed(photos, known_after)
    assert waiting == waited
    score = trial.finish()
    assert (score.right, score.total) == (reference.right, 8)
    assert tensors_equal(trial.model.tensors(), direct.model.tensors())


def test_it_learns_what_a_lesson_of_the_other_photos_does_and_changes_no_model(tmp_path: Path):
    photos = ClassPhotos.find(str(make_photos(tmp_path, ["gnu", "hen"], 20)), "--images")
    model, before = learned("ridge"), learned("ridge").tensors()
    trial, _ = observed(photos, 0)
    trial.finish()
    kept = np.ones(len(photos.files), dtype=bool)
    for rows in photos.files.rows_of.values():
        kept[rows] = ~photos.held_back(rows, trial_module.HELD_BACK, threading.Event())
    assert kept.sum() == 32
    lesson = Lesson(model.clone(), photos, [16, 16])
    for rows, z in photos.embedded(model, "", []):
        lesson.observe(rows[kept[rows]], z[torch.from_numpy(kept[rows])])
    lesson.finish()
    z = torch.randn(20, model.head.in_features, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(lesson.model.head(z), trial.model.head(z), rtol=1e-9, atol=1e-12)
    assert tensors_equal(model.tensors(), before)


def test_wide_heads_and_their_trial_are_solved_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They need much memory; the results are the same bits."""
    photos = ClassPhotos.find(str(make_photos(tmp_path, ["gnu", "hen"], 20)), "--images")
    together, score = extend.learn(learned("ridge"), photos)
    order: list[str] = []
    finish_lesson, finish_trial = Lesson.finish, Trial.finish

    def lesson_begins(lesson: Lesson) -> None:
        order.append("lesson begins")
        finish_lesson(lesson)

    def trial_ends(trial: Trial) -> Score:
        result = finish_trial(trial)
        order.append("trial ends")
        return result

    monkeypatch.setattr(Lesson, "finish", lesson_begins)
    monkeypatch.setattr(Trial, "finish", trial_ends)
    monkeypatch.setattr(extend, "SOLVED_TOGETHER", 0)
    model, other = extend.learn(learned("ridge"), photos)
    assert order == ["lesson begins", "lesson begins", "trial ends"]
    assert tensors_equal(model.tensors(), together.tensors())
    assert (other.right, other.total) == (score.right, score.total)


def test_an_error_ends_what_takes_place_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever stops the program need not wait until all photos of a large class are read."""
    photos = ClassPhotos.find(str(make_photos(tmp_path, ["gnu", "hen"], 40)), "--images")
    begun, parts = threading.Event(), []

    def read(files: Sequence[Path]) -> list[None]:
        parts.append(len(files))
        begun.set()
        time.sleep(0.1)
        return [None] * len(files)

    def embedded(*arguments: object) -> None:
        begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(similar_photos, "PART", 1)
    monkeypatch.setattr(similar_photos, "_read", read)
    monkeypatch.setattr(ClassPhotos, "embedded", embedded)
    with pytest.raises(KeyboardInterrupt):
        extend.learn(learned("ridge"), photos)
    assert 1 <= len(parts) < 40
    assert "trial_0" not in [thread.name for thread in threading.enumerate()]
