"""The seconds of a task that a run was stopped in."""

import time

import pytest
import torch

from cifnet_pl import CIFNetModule
from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks import TaskCheckpoint
from tests.iterative.suite import data, install, learner, save_at
from tests.lightning_runs import digits, module, trainer

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
def test_the_part_that_limits_a_run_is_measured(name, part, tmp_path, monkeypatch):
    """An hour passes at each call."""
    clock = time.perf_counter
    function = getattr(CIFNetModule, name)
    hours = []

    def slow(*arguments, **options):
        hours.append(name)
        return function(*arguments, **options)

    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 3600 * len(hours))
    monkeypatch.setattr(CIFNetModule, name, slow)
    learned = module()
    trainer(tmp_path).fit(learned, datamodule=digits(max_tasks=1, batch_size=32))
    (row,) = learned.record.rows
    rest = row.train_seconds - row.solve_seconds - row.waiting_seconds
    spent = {"solving": row.solve_seconds, "backbone": rest}
    assert spent[part] > 0.6 * row.train_seconds
