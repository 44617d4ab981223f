"""The course of a task: every image once in each pass, and the rate at each step."""

import hashlib
import math

import numpy as np
import pytest

from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.iterative.descent import Phase, plan_steps
from tests.iterative.suite import learner

PHASES = [Phase("learn", 2, 0.1, 0.0), Phase("compress", 1, 0.1, 0.0)]


def planned(new, old, batch_size):
    rows = np.arange(1000, 1000 + new)
    return plan_steps(rows, old, PHASES, batch_size, [0])


@pytest.mark.parametrize(("new", "old"), [(37, 0), (1, 2000), (1, 3), (333, 77)])
def test_steps(new, old):
    steps = planned(new, old, 16)
    places = [(step.phase, step.epoch) for step in steps]
    assert places == sorted(places)
    orders = set()
    for place in ((0, 0), (0, 1), (1, 0)):
        of_pass = [s for s in steps if (s.phase, s.epoch) == place]
        order = np.concatenate([s.rows for s in of_pass])
        exemplars = np.concatenate([s.exemplars for s in of_pass])
        sizes = [len(s.rows) + len(s.exemplars) for s in of_pass]
        assert len(of_pass) == math.ceil((new + old) / 16)
        assert sorted(order) == list(range(1000, 1000 + new))
        assert sorted(exemplars) == list(range(old))
        assert len(of_pass[0].rows)  # the others may be taken with a step before them
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= 16
        orders.add(tuple(order))
    assert len(orders) == 3 or new < 4


@pytest.mark.parametrize(
    ("old", "digest"), [(0, "caf3fc5d6b7b"), (2000, "31a980a67431")]
)
def test_the_plans_of_published_numbers_stay(old, digest):
    found = hashlib.sha256()
    for s in planned(5000, old, 128):
        text = f"{s.phase} {s.epoch} {s.rows.tolist()} {s.exemplars.tolist()}"
        found.update(text.encode())
    assert found.hexdigest()[:12] == digest


STEPS = {"schedule": "step", "milestones": [[0.3, 0.6], [0.5]], "decay": 0.1}


@pytest.mark.parametrize(
    ("options", "first", "expected"),
    [
        ({"schedule": "cosine"}, True, {0: 1, 0.5: 0.5, 1: 0}),
        (STEPS, True, {0: 1, 0.29: 1, 0.3: 0.1, 0.7: 0.01}),
        (STEPS, False, {0.3: 1, 0.5: 0.1}),
    ],
)
def test_rate(options, first, expected):
    regime = learner(FinetuneModule, **options).regime
    found = {progress: regime.factor(progress, first) for progress in expected}
    assert found == pytest.approx(expected, abs=1e-12)
