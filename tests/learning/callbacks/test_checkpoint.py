"""When checkpoints are saved inside a task, and the seconds of a task that a run was stopped in."""

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl import CIFNetModule
from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks import checkpoint
from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint
from cifnet_pl.utilities.errors import CheckpointError
from tests.iterative.suite import data, install, learner, save_at
from tests.lightning_runs import digits, fitted, module, trainer
from tests.models import tensors_equal


def test_minutes_lie_between_checkpoints(tmp_path, monkeypatch):
    clock = SimpleNamespace(seconds=0)
    seconds = SimpleNamespace(monotonic=lambda: clock.seconds)
    monkeypatch.setattr(checkpoint, "time", seconds)
    saved = []
    run = Mock(loggers=["a logger"], log_dir=tmp_path)
    run.strategy.broadcast = lambda due: due
    run.save_checkpoint = lambda path, weights_only: saved.append(clock.seconds)
    saves = SimpleNamespace(can_resume_inside_task=True)
    callback = TaskCheckpoint(every_minutes=2)
    for second in range(300):  # a batch each second
        clock.seconds = second
        callback.on_train_batch_end(run, saves, None, None, 0)
    assert saved == [120, 240]


LONG = 5000.0
KINDS = {
    "trained": lambda: (learner(FinetuneModule, epochs=1), data()),
    "closed_form": lambda: (module(), digits(max_tasks=2, batch_size=32)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_count_only_where_a_run_goes_on_inside_a_task(kind, tmp_path, monkeypatch):
    """From a checkpoint that was written inside the second task."""
    install(monkeypatch.setitem)
    path = tmp_path / "inside.ckpt"
    learned, fed = KINDS[kind]()
    trainer(tmp_path, save_at(path, task=1, batches=3)).fit(learned, datamodule=fed)
    content = torch.load(path, weights_only=True)
    assert 0 < content["cifnet"]["record"]["open_seconds"] < LONG
    content["cifnet"]["record"]["open_seconds"] = LONG
    torch.save(content, path)
    learned, fed = KINDS[kind]()
    trainer(tmp_path, TaskCheckpoint()).fit(learned, datamodule=fed, ckpt_path=path)
    first, second = [row.train_seconds for row in learned.record.rows]
    assert 0 < first < LONG
    assert (second > LONG) == (kind == "trained")
    assert learned.record.open_seconds == 0  # between tasks


@pytest.mark.parametrize(
    ("name", "part"), [("_embed", "backbone"), ("finish_task", "solving")]
)
def test_what_limits_a_run_is_measured(name, part, tmp_path, monkeypatch, watch):
    """An hour passes at each call."""
    clock = time.perf_counter
    hours = watch(CIFNetModule, name, lambda *_, **options: 1)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 3600 * len(hours))
    learned = fitted(tmp_path, digits(max_tasks=1, batch_size=32))
    (row,) = learned.record.rows
    rest = row.train_seconds - row.solve_seconds - row.waiting_seconds
    spent = {"solving": row.solve_seconds, "backbone": rest}
    assert spent[part] > 0.6 * row.train_seconds


class StopInside(Callback):
    """Stops the Trainer inside the second task, as ``max_time`` does."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.current_epoch == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_the_trainer_stops_in_is_not_learned(kind, tmp_path, monkeypatch):
    """The run goes on from its checkpoint, and ends as one that nobody stopped."""
    install(monkeypatch.setitem)
    stopped, fed = KINDS[kind]()
    board = TensorBoardLogger(tmp_path, name="", version="")
    callbacks = [StopInside(), TaskCheckpoint(every_task=True)]
    trainer(tmp_path, *callbacks, logger=board).fit(stopped, datamodule=fed)
    assert stopped.tasks_finished == len(stopped.record.rows) == 1
    folder = tmp_path / "checkpoints"
    assert not (folder / "task_2.ckpt").exists()
    whole, fed = KINDS[kind]()
    trainer(tmp_path).fit(whole, datamodule=fed)
    resumed, fed = KINDS[kind]()
    path = folder / "last.ckpt"
    trainer(tmp_path, TaskCheckpoint()).fit(resumed, datamodule=fed, ckpt_path=path)
    assert tensors_equal(resumed.state_dict(), whole.state_dict())
    assert resumed.record.matrix == whole.record.matrix


def test_each_start_may_take_all_of_max_time(tmp_path):
    path = tmp_path / "checkpoints" / "last.ckpt"
    board = TensorBoardLogger(tmp_path, name="", version="")
    for tasks in (1, 2):
        callbacks = (Timer(duration={"hours": 1}), TaskCheckpoint())
        learned = module()
        made = trainer(tmp_path, *callbacks, logger=board)
        start = str(path) if path.exists() else None
        made.fit(learned, datamodule=digits(max_tasks=tasks), ckpt_path=start)
        assert learned.tasks_finished == tasks
        saved = torch.load(path, weights_only=False)
        saved["callbacks"]["Timer"]["time_elapsed"]["train"] = 7200.0
        torch.save(saved, path)


def test_a_task_that_was_never_evaluated_is_said(tmp_path):
    """As where an unreadable test image ended the run in a notebook."""
    learner = fitted(tmp_path, digits(max_tasks=1))
    learner.record.rows.clear()
    with pytest.raises(CheckpointError, match="0 of 1 tasks learned are evaluated"):
        trainer(tmp_path).fit(learner, datamodule=digits(max_tasks=2))
