"""The seconds of a task that a run was stopped in."""

import time

import pytest
import torch

from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks import TaskCheckpoint, TaskMetrics
from tests.iterative.suite import data, install, learner
from tests.killing import Act
from tests.lightning_runs import digits, module, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*GPU available.*"
)
LONG = 5000.0
KINDS = {
    "trained": lambda: (learner(FinetuneModule, epochs=1), data()),
    "closed_form": lambda: (module(), digits(max_tasks=2, batch_size=32)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_count_only_where_the_run_goes_on_inside_the_task(
    kind, tmp_path, monkeypatch
):
    """From a checkpoint that was written inside the second task."""
    install(monkeypatch.setitem)
    path = tmp_path / "inside.ckpt"
    act = Act(
        "on_train_batch_end",
        1,
        lambda t: t.save_checkpoint(path, weights_only=False),
        batches=3,
    )
    learned, fed = KINDS[kind]()
    trainer(tmp_path, TaskMetrics(), act).fit(learned, datamodule=fed)
    content = torch.load(path, weights_only=True)
    assert 0 < content["callbacks"]["TaskMetrics"]["open_seconds"] < LONG
    content["callbacks"]["TaskMetrics"]["open_seconds"] = LONG
    torch.save(content, path)
    metrics, (learned, fed) = TaskMetrics(), KINDS[kind]()
    trainer(tmp_path, metrics, TaskCheckpoint()).fit(
        learned, datamodule=fed, ckpt_path=path
    )
    first, second = [row.train_seconds for row in metrics.record.rows]
    assert 0 < first < LONG
    assert (second > LONG) == (kind == "trained")
    assert metrics.state_dict()["open_seconds"] == 0  # between tasks


def test_slow_images_are_seen_as_waiting(tmp_path, monkeypatch):
    real = ImageLoader._read

    def slow(self, row, pixels):
        time.sleep(0.002)
        return real(self, row, pixels)

    monkeypatch.setattr(ImageLoader, "_read", slow)
    metrics = TaskMetrics()
    fed = digits(max_tasks=1, batch_size=32)
    trainer(tmp_path, metrics).fit(module(), datamodule=fed)
    (row,) = metrics.record.rows
    assert row.waiting_seconds > 0.5 * row.train_seconds
