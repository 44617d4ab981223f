"""The seconds of a task that a run was stopped in."""

import time

import pytest
import torch

from cifnet_pl import CIFNetModule
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


def pause(seconds, function):
    """Return a function that sleeps, and then does what another one does."""

    def paused(*arguments, **options):
        time.sleep(seconds)
        return function(*arguments, **options)

    return paused


@pytest.mark.parametrize(
    ("owner", "name", "seconds", "part"),
    [
        (ImageLoader, "_read", 0.02, "images"),
        (CIFNetModule, "_embed", 0.1, "backbone"),
        (CIFNetModule, "finish_task", 1.0, "after"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_part_that_limits_a_run_is_named(
    owner, name, seconds, part, threads, tmp_path, monkeypatch
):
    """Whether images are decoded beside the network or in turn with it."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(owner, name, pause(seconds, getattr(owner, name)))
    metrics = TaskMetrics()
    fed = digits(max_tasks=1, batch_size=32)
    trainer(tmp_path, metrics).fit(module(), datamodule=fed)
    (row,) = metrics.record.rows
    spent = {"images": row.waiting_seconds, "after": row.solve_seconds}
    spent["backbone"] = row.train_seconds - sum(spent.values())
    assert max(spent, key=spent.__getitem__) == part
    assert spent[part] > 0.6 * row.train_seconds
