"""The course of a task: every image once in each pass, and the rate at each step."""

import hashlib
import inspect
import math

import numpy as np
import pytest

from cifnet_pl.iterative.descent import Phase, Regime, plan_steps
from cifnet_pl.iterative.trainer import IterativeModule
from cifnet_pl.utilities.errors import UsageError

DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(IterativeModule).parameters.items()
} | {"milestones": [0.7, 0.9]}
PHASES = [Phase("learn", 2, 0.1, 0.0), Phase("compress", 1, 0.1, 0.0)]


@pytest.mark.parametrize(
    ("new", "old"),
    [(100, 40), (37, 0), (5, 400), (1, 2000), (64, 64), (1, 3), (333, 77)],
)
def test_steps(new, old):
    rows = np.arange(1000, 1000 + new)
    steps = plan_steps(rows, old, PHASES, 16, np.random.default_rng(0))
    assert [(s.phase, s.epoch) for s in steps] == sorted(
        (s.phase, s.epoch) for s in steps
    )
    orders = []
    for phase, epoch in ((0, 0), (0, 1), (1, 0)):
        steps_of_pass = [s for s in steps if (s.phase, s.epoch) == (phase, epoch)]
        assert len(steps_of_pass) == math.ceil((new + old) / 16)
        assert sorted(np.concatenate([s.rows for s in steps_of_pass])) == rows.tolist()
        assert sorted(np.concatenate([s.exemplars for s in steps_of_pass])) == list(
            range(old)
        )
        sizes = [len(s.rows) + len(s.exemplars) for s in steps_of_pass]
        assert (
            len(steps_of_pass[0].rows) > 0
        )  # the others may be taken with a step before them
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= 16
        orders.append(tuple(np.concatenate([s.rows for s in steps_of_pass])))
    assert len(set(orders)) == 3 or new < 4


@pytest.mark.parametrize(
    ("new", "old", "batch_size", "digest"),
    [
        (100, 40, 16, "ac76f0622546"),
        (5000, 0, 128, "caf3fc5d6b7b"),
        (5000, 2000, 128, "31a980a67431"),
    ],
)
def test_the_plans_of_published_numbers_stay(new, old, batch_size, digest):
    phases = [Phase("learn", 2, 0.1, 0.0), Phase("c", 1, 0.1, 0.0)]
    found = hashlib.sha256()
    for s in plan_steps(
        np.arange(1000, 1000 + new), old, phases, batch_size, np.random.default_rng(0)
    ):
        found.update(
            f"{s.phase} {s.epoch} {s.rows.tolist()} {s.exemplars.tolist()}".encode()
        )
    assert found.hexdigest()[:12] == digest


def test_cosine():
    regime = Regime({**DEFAULTS, "schedule": "cosine"})
    assert [regime.factor(p, True) for p in (0, 0.5, 1)] == pytest.approx(
        [1, 0.5, 0], abs=1e-12
    )


def test_step_has_milestones_of_the_first_task_and_of_others():
    regime = Regime(
        {
            **DEFAULTS,
            "schedule": "step",
            "milestones": [[0.3, 0.6], [0.5]],
            "decay": 0.1,
        }
    )
    assert [regime.factor(p, True) for p in (0, 0.29, 0.3, 0.7)] == pytest.approx(
        [1, 1, 0.1, 0.01]
    )
    assert [regime.factor(p, False) for p in (0.3, 0.5)] == pytest.approx([1, 0.1])


@pytest.mark.parametrize(
    ("milestones", "decay", "said"),
    [
        ([60.0, 120.0], 0.1, "expected rising shares of the epochs"),
        ([0.6, 0.3], 0.1, "expected rising shares"),
        ([0.5, 0.5], 0.1, "expected rising shares"),
        ([0.5], 1.5, "decay is 1.5"),
        ([0.5], 0.0, "decay is 0"),
    ],
)
def test_what_does_not_fit(milestones, decay, said):
    with pytest.raises(UsageError, match=said):
        Regime(
            {**DEFAULTS, "schedule": "step", "milestones": milestones, "decay": decay}
        )
