"""CIFNetHead against the paper's equations, and golden vectors of the authors' released code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from cifnet_pl.heads import CIFNetHead
from tests.heads import literal
from tests.heads.suite import normal, scans, teach

Batch = tuple[literal.Array, literal.Ints]


SLOPES = {
    "derivative": lambda t: expit(t) * (1 - expit(t)),
    "released": lambda t: t * (1 - t),  # of the logit itself
}
"""Slope of the sigmoid at the logit t, in the paper and in the released code."""

variants = st.sampled_from(
    [("derivative", True), ("derivative", False), ("released", True)]
)
"""Weighting, and whether the classes of past tasks are updated."""


def literal_neuron(label, batches, ridge, weighting):
    """Weights of one class from the batches that it sees, by Algorithm 1 of the paper."""
    width = 1 + batches[0][0].shape[1]
    u = np.zeros((width, 0))
    s = np.zeros(0)
    m = np.zeros(width)
    for z, y in batches:
        x = np.concatenate([np.ones((1, len(z))), z.T])
        clipped = np.clip(
            (y == label).astype(float), literal.EPSILON, 1 - literal.EPSILON
        )
        target = np.log(clipped / (1 - clipped))
        f = np.diag(SLOPES[weighting](target))
        m = m + x @ f.T @ f @ target  # eq:moment_update
        both = np.concatenate([u * s, x @ f], axis=1)
        u, s, _ = np.linalg.svd(both, full_matrices=False)  # eq:svd_update
    return u @ np.diag(1 / (s**2 + ridge)) @ u.T @ m  # eq:weights_rrls


def pieces_of(task: literal.LiteralTask, count: int) -> list[Batch]:
    """Samples of a task in ``count`` pieces of random (possibly no) length."""
    rng = np.random.default_rng(count)
    cuts = np.sort(rng.integers(0, len(task.y) + 1, count - 1))
    return list(zip(np.split(task.z, cuts), np.split(task.y, cuts), strict=True))


def learn(tasks: list[literal.LiteralTask], **settings) -> CIFNetHead:
    head = CIFNetHead(tasks[0].z.shape[1], epsilon=literal.EPSILON, **settings)
    for task in tasks:
        head.begin_task(task.classes)
        for z, y in pieces_of(task, 2):
            head.observe(z, y)
        head.observe_past(task.past_z, task.past_y, task.past_weight)
        head.solve()
    return head


@given(
    literal.streams(), variants, st.integers(1, 5), st.sampled_from([0.01, 1.0, 10.0])
)
def test_agrees_with_a_literal_svd_per_class_and_batch(tasks, variant, pieces, ridge):
    weighting, update_past = variant
    head = learn(tasks, ridge=ridge, update_past=update_past, weighting=weighting)
    weights = []
    for j, task in enumerate(tasks):
        past = (task.past_z, task.past_y)
        copies = tuple(np.repeat(part, task.past_weight, axis=0) for part in past)
        batches = [*pieces_of(task, pieces), copies]
        if update_past:
            batches += [
                part for later in tasks[j + 1 :] for part in pieces_of(later, pieces)
            ]
        weights += [literal_neuron(c, batches, ridge, weighting) for c in task.classes]
    assert head.classes == [c for task in tasks for c in task.classes]
    assert literal.distance(head.weights(), np.stack(weights, axis=1)) < 1e-8


@given(literal.streams(most_features=4, least_samples=8), variants)
def test_gcv_is_a_search_with_the_hat_matrix(tasks, variant) -> None:
    weighting, update_past = variant
    # More samples than features: else the hat matrix leaves only rounding (see tests/statistics).
    head = learn(tasks, ridge="gcv", update_past=update_past, weighting=weighting)
    for j, task in enumerate(tasks):
        seen = tasks[j:] if update_past else [task]
        _, z, y = literal.pooled(seen)
        z = np.concatenate([task.past_z, z])
        weight = np.concatenate([task.past_weight, np.ones(len(y))])
        y = np.concatenate([task.past_y, y])
        groups = [task.classes]
        if weighting == "released":  # each class has a Gram matrix and ridge of its own
            groups = [[c] for c in task.classes]
        for group in groups:
            target = literal.targets(group, y)
            if np.ptp(target, axis=0).max() == 0:
                continue  # one class alone: nothing to fit, tested below
            omega = weight * SLOPES[weighting](target[:, 0]) ** 2
            columns = [head.classes.index(c) for c in group]
            ridges = torch.cat([cohort.ridge_used for cohort in head.cohorts])
            ridge = ridges[columns[0]].item()
            score, expected = literal.dense_ridge(z, target, ridge, omega)
            for factor in (0.77, 1.3):  # the search is as precise as it has to be
                other, _ = literal.dense_ridge(z, target, factor * ridge, omega)
                assert score <= 1.01 * other
            assert literal.distance(head.weights()[:, columns], expected) < 1e-8


@pytest.mark.parametrize("weighting", SLOPES)
@pytest.mark.parametrize("count", [1, 30])
def test_one_class_alone_scores_its_target_everywhere(count, weighting):
    z = normal(count, 50, seed=count)
    y = torch.full((count,), 3)
    for ridge in (1e-6, "gcv"):
        head = teach(CIFNetHead(50, ridge=ridge, weighting=weighting), z, y)
        limit = torch.full((count, 1), literal.LIMIT, dtype=torch.float64)
        assert torch.allclose(head(z), limit, rtol=1e-3)
    # The bias is free, so nothing is left for the features to explain.
    assert head.weights()[1:].norm() < 1e-8


GOLDEN = np.load(Path(__file__).parents[1] / "data" / "cifnet_digits.npz")
VARIANTS = {
    "paper_updated": {"weighting": "derivative", "update_past": True},
    "paper_locked": {"weighting": "derivative", "update_past": False},
    "released_code": {"weighting": "released", "update_past": True},
    "released_locked": {"weighting": "released", "update_past": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_and_accuracies_agree_with_the_golden_vectors(variant):
    # The released slopes (t(1 − t) is −5.7 and −11.6) make a normal matrix of condition 2·10⁸, at
    # which the file itself carries up to 1.34e-9 of rounding.
    tolerance = 1e-11 if variant.startswith("paper") else 1.4e-9
    x, y = scans()
    names = ("train_rows", "test_rows", "buffer_rows", "class_order")
    train, test, stored, order = (torch.from_numpy(GOLDEN[name]) for name in names)
    head = CIFNetHead(64, ridge=0.01, epsilon=literal.EPSILON, **VARIANTS[variant])
    for k in range(5):
        seen = order[: 2 * k + 2]
        classes = seen[-2:]
        head.begin_task(classes.tolist())
        own = train[torch.isin(y[train], classes)]
        for rows in own.split(37):
            head.observe(x[rows], y[rows])
        # Ten samples of each earlier digit, and eq:oversampling.
        past = stored[seen[:-2]].flatten()
        weight = int(y[own].bincount().max()) // 10
        head.observe_past(x[past], y[past], torch.full((len(past),), float(weight)))
        head.solve()
        golden = GOLDEN[f"{variant}_W{k + 1}"]
        assert literal.distance(head.weights(), golden) < tolerance
        rows = test[torch.isin(y[test], seen)]
        accuracy = 100 * (head.predict(x[rows]) == y[rows]).double().mean().item()
        assert accuracy == pytest.approx(GOLDEN[f"{variant}_acc"][k], abs=1e-9)
    triangles = 15 if head.weighting == "released" else 5  # of cohorts, of classes
    assert head.state_elements() == {
        "factors": triangles * 65 * 66 // 2,
        "moments": 10 * 65,
        "weights": 10 * 65,
    }
