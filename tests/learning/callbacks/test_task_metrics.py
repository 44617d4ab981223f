"""The seconds of a task that a run was stopped in."""

import pytest
import torch

from cifnet_pl.learning.callbacks import TaskCheckpoint, TaskMetrics
from tests.iterative.suite import data, install, learner
from tests.killing import Act
from tests.lightning_runs import digits, module, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*GPU available.*")
LONG = 5000.0


@pytest.fixture(params=["trained", "closed_form"])
def kind(request, monkeypatch):
    """Functions that make a module and its data."""
    install(monkeypatch.setitem)
    if request.param == "trained":
        from cifnet_pl.iterative import FinetuneModule

        return lambda: learner(FinetuneModule, epochs=1), data
    return module, lambda: digits(max_tasks=2, batch_size=32)


def stopped(kind, folder):
    """The content of a checkpoint that was written inside the second task."""
    make, feed = kind

    def save(t):
        t.lightning_module.between_batches = True
        t.save_checkpoint(folder / "mid.ckpt", weights_only=False)
        t.lightning_module.between_batches = False

    act = Act("on_train_batch_end", 1, save, batches=3)
    trainer(folder, TaskMetrics(), act).fit(make(), datamodule=feed())
    return torch.load(folder / "mid.ckpt", weights_only=True)


def seconds_of_tasks(kind, folder, content):
    """Of a run that goes on from ``content``."""
    make, feed = kind
    torch.save(content, folder / "it.ckpt")
    metrics = TaskMetrics()
    trainer(folder, metrics, TaskCheckpoint()).fit(make(), datamodule=feed(), ckpt_path=folder / "it.ckpt")
    return [row.train_seconds for row in metrics.record.rows]


def test_they_count_where_the_run_goes_on(kind, tmp_path):
    content = stopped(kind, tmp_path)
    assert 0 < content["callbacks"]["TaskMetrics"]["open_seconds"] < LONG
    content["callbacks"]["TaskMetrics"]["open_seconds"] = LONG
    first, second = seconds_of_tasks(kind, tmp_path, content)
    assert 0 < first < LONG < second


def test_they_do_not_where_the_task_is_learned_again(kind, tmp_path):
    content = stopped(kind, tmp_path)
    content["callbacks"]["TaskMetrics"]["open_seconds"] = LONG
    del content["position"]
    assert max(seconds_of_tasks(kind, tmp_path, content)) < LONG


def test_older_checkpoints_load(kind, tmp_path):
    content = stopped(kind, tmp_path)
    del content["callbacks"]["TaskMetrics"]["open_seconds"]
    assert min(seconds_of_tasks(kind, tmp_path, content)) > 0


def test_between_tasks_there_are_none(kind, tmp_path):
    make, feed = kind
    metrics = TaskMetrics()
    trainer(tmp_path, metrics).fit(make(), datamodule=feed())
    assert metrics.state_dict()["open_seconds"] == 0
