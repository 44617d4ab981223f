"""The seconds of a task that a run was stopped in."""

import time
from threading import Condition

import pytest
import torch

from cifnet_pl import CIFNetModule
from cifnet_pl.data import loading
from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks import TaskCheckpoint
from tests.iterative.suite import data, install, learner
from tests.killing import Act
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
    act = Act(
        "on_train_batch_end",
        1,
        lambda t: t.save_checkpoint(path, weights_only=False),
        batches=3,
    )
    learned, fed = KINDS[kind]()
    trainer(tmp_path, act).fit(learned, datamodule=fed)
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


class Clock:
    """A clock that passes the hours it is told, beside the seconds that really pass."""

    def __init__(self):
        self._real = time.perf_counter
        self._hours = 0
        self._is_waited = False
        self._changed = Condition()

    def __call__(self):
        return self._real() + 3600 * self._hours

    def takes_an_hour(self, function):
        """Return a function that takes an hour more than another one."""

        def slow(*arguments, **options):
            self._hours += 1
            return function(*arguments, **options)

        return slow

    def takes_an_hour_of_waiting(self, function):
        """The same, where the hour passes while the next batch is waited for."""

        def slow(*arguments, **options):
            with self._changed:
                assert self._changed.wait_for(lambda: self._is_waited, 60)
                self._hours += 1
            return function(*arguments, **options)

        return slow

    def waits(self, decode):
        """Return a `decode` that notes when the next batch is waited for."""

        def noted(loader, batches):
            made = decode(loader, batches)
            for _ in batches:
                self._set_waited(True)
                batch = next(made)
                self._set_waited(False)
                yield batch

        return noted

    def _set_waited(self, is_waited):
        with self._changed:
            self._is_waited = is_waited
            self._changed.notify_all()


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (loading, "read_image", "images"),
        (CIFNetModule, "_embed", "backbone"),
        (CIFNetModule, "finish_task", "after"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_part_that_limits_a_run_is_named(
    owner, name, part, threads, tmp_path, monkeypatch
):
    """Whether images are decoded beside the network or in turn with it."""
    clock = Clock()
    slower = clock.takes_an_hour_of_waiting if part == "images" else clock.takes_an_hour
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(owner, name, slower(getattr(owner, name)))
    monkeypatch.setattr(ImageLoader, "decode", clock.waits(ImageLoader.decode))
    learned = module()
    fed = digits(max_tasks=1, batch_size=32)
    trainer(tmp_path).fit(learned, datamodule=fed)
    (row,) = learned.record.rows
    spent = {"images": row.waiting_seconds, "after": row.solve_seconds}
    spent["backbone"] = row.train_seconds - sum(spent.values())
    assert max(spent, key=spent.__getitem__) == part
    assert spent[part] > 0.6 * row.train_seconds
