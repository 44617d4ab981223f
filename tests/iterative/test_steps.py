"""A task's steps: going on in the same ones, steps of few images, and of another precision."""

from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cifnet_pl.iterative import METHODS, ReplayModule, WAModule
from cifnet_pl.iterative.descent import Descent, Phase
from cifnet_pl.iterative.trainer import IterativeModule
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.iterative.suite import NAMES, assert_goes_on, data, learner, run, save_at
from tests.killing import Killed
from tests.lightning_runs import trainer

pytestmark = pytest.mark.system


def test_another_batch_size_is_welcome_between_tasks_alone(tmp_path):
    inside = tmp_path / "inside.ckpt"
    between = tmp_path / "between.ckpt"
    run(ReplayModule, tmp_path, save_at(inside, task=1, batches=5), epochs=1)
    one, _ = run(ReplayModule, tmp_path, given={"max_tasks": 1}, epochs=1)
    one.trainer.save_checkpoint(between)
    for path in (inside, between):
        made = learner(ReplayModule, epochs=1)
        fit = partial(trainer(tmp_path).fit, made, data(batch_size=64), ckpt_path=path)
        if path == inside:
            with pytest.raises(CheckpointError, match=r"\d+ steps, .*data\.batch_size"):
                fit()
        else:
            fit()
            assert made.tasks_finished == 2


# ---------------------------------------------------------------------- steps of few images


@pytest.fixture
def sizes(watch):
    """(task, images) of each step, new images and exemplars together."""
    return watch(
        Descent,
        "step",
        lambda self, batch, _: (len(self._module.learned_tasks), len(batch.labels)),
    )


def test_one_image_is_normalised_by_running_statistics(sizes, tmp_path, monkeypatch):
    """ResNet-18 ends in a map of one pixel here, of which one image has no variance."""

    def three(self, rows, task):
        labels = self.data.source.train.labels[rows]
        first = rows[labels == labels.min()][:2]
        return np.concatenate([first, rows[labels == labels.max()][:1]])

    monkeypatch.setattr(IterativeModule, "select_rows", three)
    network = {"backbone": "random:resnet18_cifar", "learning_rate": 1e-8}
    given = {"batch_size": 2, "max_tasks": 1}
    made, _ = run(WAModule, tmp_path, given=given, epochs=1, **network)
    assert sizes == [(1, 2), (1, 1)]
    assert all(torch.isfinite(p).all() for p in made.parameters())


@pytest.mark.parametrize(("images", "fits"), [(4, True), (0, True), (3, False)])
def test_fewer_images_than_processes(images, fits):
    """None at all is the task after the last, which Lightning asks for."""
    four = Mock(processes=Mock(count=4), data=Mock(batch_size=2))
    phases = [Phase("learn", 1, 0.1, 0.0)]
    plan = (np.arange(images), 0, phases, 1, [0])
    if fits:
        (step,) = IterativeModule._planned(four, *plan)
        assert len(step.rows) == images
        return
    with pytest.raises(UsageError, match=r"task 2 .* 3 images for 4 .*devices"):
        IterativeModule._planned(four, *plan)


def test_steps_without_new_images(sizes, tmp_path, monkeypatch):
    """A second task of few images, which 60 exemplars are learned with; a run goes on there."""

    def few(self, rows, task):
        return rows[:: 100 if task else 1]

    monkeypatch.setattr(IterativeModule, "select_rows", few)
    small = {"batch_size": 8}
    made = assert_goes_on(ReplayModule, tmp_path, 4, given=small, epochs=2)
    of_the_second = [size for task, size in sizes if task == 2][: made.steps_done]
    assert max(of_the_second) <= 8
    new = sum(of_the_second) - 2 * 60
    assert 0 < new < len(of_the_second)  # so that some steps had none


# ---------------------------------------------------------------------- precision


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_one_step_in_bf16(method, tmp_path, watch):
    """From the same weights on the same batch; after many steps nothing is alike."""
    seen = []

    def twice(self, batch, _):
        module = self._module
        if not module.old_classes:
            return
        for rounded in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                loss = module.loss(batch)
            parts = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            flat = [part.flatten() for part in parts if part is not None]
            seen.append((loss.detach(), torch.cat(flat)))
        raise Killed

    watch(Descent, "step", twice)
    with pytest.raises(Killed):
        run(method, tmp_path, epochs=1)
    (loss, gradient), (rounded_loss, rounded_gradient) = seen
    assert rounded_loss.dtype == rounded_gradient.dtype == torch.float32
    assert float(rounded_loss) == pytest.approx(float(loss), rel=0.005)
    assert not torch.equal(rounded_gradient, gradient)
    assert torch.cosine_similarity(rounded_gradient, gradient, dim=0) > 0.998
