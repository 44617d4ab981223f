"""A run goes on inside a task in the same steps, or says why it cannot."""

from functools import cache

import pytest
import torch

from cifnet_pl.iterative import FinetuneModule, ReplayModule
from cifnet_pl.utilities.errors import CheckpointError
from tests.iterative.suite import data, learner, run
from tests.killing import Act
from tests.lightning_runs import trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*GPU available.*")
ADVICE = r"use the same --data\.batch_size, number of processes and images, or start a new experiment"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """method → (module that learned without a stop, checkpoint written inside its second task)."""

    @cache
    def make(method):
        folder = tmp_path_factory.mktemp("saved")
        save = Act("on_train_batch_end", 1, lambda t: t.save_checkpoint(folder / "mid.ckpt"), batches=5)
        return run(method, folder, save, epochs=1)[0], folder / "mid.ckpt"

    return make


@pytest.fixture(params=[FinetuneModule, ReplayModule], ids=lambda method: method.__name__)
def saved(request, made):
    """(method, module, checkpoint)."""
    return request.param, *made(request.param)


@pytest.mark.parametrize("batch_size", [16, 64, 1000])
def test_another_batch_size_is_refused(saved, batch_size, tmp_path):
    method, _, path = saved
    said = rf"inside a task with 32 images in a step, this run has {batch_size}: {ADVICE}"
    with pytest.raises(CheckpointError, match=said):
        trainer(tmp_path).fit(learner(method, epochs=1), datamodule=data(batch_size=batch_size), ckpt_path=path)


def test_another_number_of_steps_is_refused(saved, tmp_path):
    """Photos were added to the task, or removed."""
    method, _, path = saved
    content = torch.load(path, weights_only=True)
    content["position"]["steps"] += 1
    torch.save(content, tmp_path / "it.ckpt")
    with pytest.raises(CheckpointError, match=rf"with \d+ steps in the task, this run has \d+: {ADVICE}"):
        trainer(tmp_path).fit(learner(method, epochs=1), datamodule=data(), ckpt_path=tmp_path / "it.ckpt")


def test_between_tasks_another_batch_size_is_welcome(saved, tmp_path):
    method, _, _ = saved
    one, _ = run(method, tmp_path, given={"max_tasks": 1}, epochs=1)
    one.trainer.save_checkpoint(tmp_path / "it.ckpt")
    again = learner(method, epochs=1)
    trainer(tmp_path).fit(again, datamodule=data(batch_size=64), ckpt_path=tmp_path / "it.ckpt")
    assert again.tasks_finished == 2
