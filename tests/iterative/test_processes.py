"""Two processes learn what one learns on the same global batches: losses, weights, exemplars."""

import logging
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from cifnet_pl.iterative import METHODS, CREATEModule, ReplayModule, TagFexModule
from cifnet_pl.iterative.descent import Descent
from cifnet_pl.learning.strategy import StatisticsDDPStrategy
from tests.command_line import make_images
from tests.iterative.suite import NAMES, data, install, learner, save_at
from tests.learning.test_strategy import several
from tests.lightning_runs import trainer

pytestmark = pytest.mark.system

BATCH = 32
"""Over all processes."""


def losses_of(method, folder, processes):
    """Loss at each step of a run of two tasks, and the module."""
    values: list[float] = []
    real = Descent._average

    def average(self, loss):
        values.append(real(self, loss))
        return values[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Descent, "_average", average)
        # Batch statistics are those of each process, as everywhere; fixed ones are the same in all.
        settings = {"batch_statistics": "fixed", "weight_decay": 1e-4}
        made = learner(method, epochs=1, learning_rate=0.01, **settings)
        options = {}
        if processes > 1:
            options = {"devices": processes, "strategy": StatisticsDDPStrategy()}
        fed = data(batch_size=BATCH // processes)
        trainer(folder, **options).fit(made, datamodule=fed)
    return values, made


LEFT_OUT = {ReplayModule: 0, CREATEModule: 2, TagFexModule: 2}
"""Steps that methods leave out where one process has no image; contrastive losses need all."""


def make_unreadable() -> None:
    """Have none of this process's images in the second step of a task."""
    real = Descent.step

    def step(self, batch, progress):
        if self._module.steps_done == 1:
            none = {
                name: getattr(batch, name)[:0] for name in ("images", "labels", "keys")
            }
            batch = replace(batch, **none)
        real(self, batch, progress)

    Descent.step = step


def learn(method, folder, name):
    """Store the losses of a run in two processes, and the weights of the module."""
    losses, made = losses_of(method, folder, 2)
    torch.save((losses, made.state_dict()), folder / name)


def go_on(folder):
    """Stop in a task with a class of one image, which one process has learned, and go on."""
    given = {"source": "folder", "root": str(folder / "images"), "max_tasks": 1}
    inside = folder / "inside.ckpt"
    for callbacks, start in (([save_at(inside, 0, 4)], None), ([], inside)):
        made = learner(ReplayModule, epochs=1)
        options = {"devices": 2, "strategy": StatisticsDDPStrategy()}
        fed = data(batch_size=4, **given)
        run = trainer(folder, *callbacks, **options)
        run.fit(made, datamodule=fed, ckpt_path=start)


def rank(number, count, port, given):
    """One of two processes: learns with every method, one after the other."""
    (folder,) = given
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK="0")
    os.environ.update(WORLD_SIZE=str(count), LOCAL_RANK=str(number))
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    install()
    for method in METHODS:
        learn(method, folder, f"{method.__name__}_{number}")
    go_on(folder)
    if number == 1:
        make_unreadable()
    for method in LEFT_OUT:
        learn(method, folder, f"unreadable_{method.__name__}_{number}")
    torch.distributed.destroy_process_group()
    return 0


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    make_images(folder / "images", ["ant"], 30)
    make_images(folder / "images", ["bee"], 2)  # one is held out
    several(2, folder, folder, work=rank)
    return folder


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_the_same_as_one(method, pair, tmp_path):
    wanted, alone = losses_of(method, tmp_path, 1)
    ours, state = torch.load(pair / f"{method.__name__}_0")
    theirs, other_state = torch.load(pair / f"{method.__name__}_1")
    assert ours == pytest.approx(wanted, rel=1e-4)
    assert theirs == pytest.approx(wanted, rel=1e-4)
    torch.testing.assert_close(state, other_state, rtol=0, atol=0)
    for key, value in alone.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(state[key], value, rtol=1e-2, atol=1e-4), key
        else:
            assert state[key].shape == value.shape


@pytest.mark.parametrize("method", LEFT_OUT)
def test_one_without_readable_images_in_a_step(method, pair):
    """It takes part with zero, and does not keep the other waiting."""
    ours, state = torch.load(pair / f"unreadable_{method.__name__}_0")
    theirs, other_state = torch.load(pair / f"unreadable_{method.__name__}_1")
    assert ours == theirs
    assert np.isfinite(ours).all()
    all_steps, _ = torch.load(pair / f"{method.__name__}_0")
    assert len(ours) == len(all_steps) - LEFT_OUT[method]
    assert ours[0] == all_steps[0]
    assert ours[1:] != all_steps[1:]
    torch.testing.assert_close(state, other_state, rtol=0, atol=0)
