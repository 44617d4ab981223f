"""RidgeHead against one dense ridge regression over everything ever seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.heads import RidgeHead
from cifnet_pl.statistics import GCV_GRID
from cifnet_pl.utilities.errors import UnsupportedError, UsageError
from tests.heads.literal import Array, Ints

EPSILON = 0.05
Tasks = list[tuple[list[int], Array, Ints]]


@st.composite
def tasks(draw: st.DrawFn, most_features: int = 8, least_samples: int = 1) -> Tasks:
    """One to four tasks of one to three classes with ``least_samples`` to eight more samples each."""
    features = draw(st.integers(1, most_features))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.arange(-5, 12)).tolist()
    stream = []
    for size in sizes:
        classes = [labels.pop() for _ in range(size)]
        counts = least_samples + rng.integers(0, 9, size)
        z = rng.normal(size=(counts.sum(), features)) * rng.choice([0.3, 1, 5], features) + rng.normal(size=features)
        y = np.repeat(classes, counts)
        order = rng.permutation(len(y))
        stream.append((classes, z[order], y[order]))
    return stream


def observe(head: RidgeHead, z: Array, y: Ints, weight: Array | None = None) -> None:
    head.observe(torch.from_numpy(z), torch.from_numpy(y), None if weight is None else torch.from_numpy(weight))


def learn(stream: Tasks, **settings: Any) -> RidgeHead:
    head = RidgeHead(stream[0][1].shape[1], epsilon=EPSILON, **settings)
    for classes, z, y in stream:
        head.begin_task(classes, [int((y == c).sum()) for c in classes])
        observe(head, z, y)
        head.solve()
    return head


def pooled(stream: Tasks) -> tuple[list[int], Array, Ints]:
    """All classes in order, all embeddings, all labels."""
    classes = [c for task_classes, _, _ in stream for c in task_classes]
    return classes, np.concatenate([z for _, z, _ in stream]), np.concatenate([y for _, _, y in stream])


def targets(classes: list[int], y: Ints) -> Array:
    """(n, C) ±L."""
    limit = np.log((1 - EPSILON) / EPSILON)
    return np.stack([np.where(y == c, limit, -limit) for c in classes], axis=1)


def dense_ridge(z: Array, target: Array, ridge: float, weight: Array | None = None) -> Array:
    """Weights (d+1, C) that minimise Σ ω‖t − b − Wᵀz‖² + λ‖W‖², bias free, by least squares on stacked rows."""
    root = np.sqrt(np.ones(len(z)) if weight is None else weight)[:, None]
    features = z.shape[1]
    rows = np.concatenate([root, root * z], axis=1)
    penalty = np.concatenate([np.zeros((features, 1)), np.sqrt(ridge) * np.eye(features)], axis=1)
    stacked = np.concatenate([rows, penalty])
    wanted = np.concatenate([root * target, np.zeros((features, target.shape[1]))])
    return np.linalg.lstsq(stacked, wanted, rcond=None)[0]


def sqrt_l2(z: Array) -> Array:
    root = np.sign(z) * np.sqrt(np.abs(z))
    return root / np.linalg.norm(root, axis=1, keepdims=True)


def distance(ours: Any, theirs: Any) -> float:
    """‖ours − theirs‖ / ‖theirs‖ in the Frobenius norm; by symmetry the weights may be zero, so not below 1e-3."""
    return float(np.linalg.norm(np.asarray(ours) - np.asarray(theirs)) / max(np.linalg.norm(np.asarray(theirs)), 1e-3))


@given(stream=tasks(), ridge=st.sampled_from([1e-2, 1.0, 100.0]))
def test_equals_a_dense_joint_ridge_over_all_data(stream: Tasks, ridge: float) -> None:
    head = learn(stream, ridge=ridge)
    classes, z, y = pooled(stream)
    assert head.classes == classes
    assert distance(head.weights, dense_ridge(z, targets(classes, y), ridge)) < 1e-9


@given(stream=tasks(), ridge=st.sampled_from([1e-2, 1.0]))
def test_transform_is_applied_to_every_embedding(stream: Tasks, ridge: float) -> None:
    head = learn(stream, ridge=ridge, transform="sqrt_l2")
    classes, z, y = pooled(stream)
    expected = dense_ridge(sqrt_l2(z), targets(classes, y), ridge)
    assert distance(head.weights, expected) < 1e-9
    scores = sqrt_l2(z) @ expected[1:] + expected[0]
    assert distance(head(torch.from_numpy(z)), scores) < 1e-9


@given(stream=tasks(), ridge=st.sampled_from([1e-2, 1.0]))
def test_balanced_weighs_every_class_alike(stream: Tasks, ridge: float) -> None:
    head = learn(stream, ridge=ridge, balanced=True)
    classes, z, y = pooled(stream)
    counts = np.array([(y == c).sum() for c in classes])
    weight = (counts.mean() / counts)[[classes.index(c) for c in y]]
    assert distance(head.weights, dense_ridge(z, targets(classes, y), ridge, weight)) < 1e-9


@given(stream=tasks(), seed=st.integers(0, 999))
def test_sample_weights_are_weights_of_the_least_squares(stream: Tasks, seed: int) -> None:
    classes, z, y = pooled(stream)
    weight = np.random.default_rng(seed).uniform(0.1, 3, len(y))
    head = RidgeHead(z.shape[1], ridge=0.5, epsilon=EPSILON)
    head.begin_task(classes)
    observe(head, z, y, weight)
    head.solve()
    assert distance(head.weights, dense_ridge(z, targets(classes, y), 0.5, weight)) < 1e-9


@given(stream=tasks(), pieces=st.integers(1, 6), seed=st.integers(0, 999), ridge=st.sampled_from([1e-2, "gcv"]))
def test_any_order_and_split_gives_the_same_weights(stream: Tasks, pieces: int, seed: int, ridge: float | str) -> None:
    rng = np.random.default_rng(seed)
    head = RidgeHead(stream[0][1].shape[1], ridge=ridge)
    for classes, z, y in stream:
        head.begin_task(classes)
        order = rng.permutation(len(y))
        for rows in np.split(order, np.sort(rng.integers(0, len(y) + 1, pieces - 1))):
            observe(head, z[rows], y[rows])
        head.solve()
    assert distance(head.weights, learn(stream, ridge=ridge).weights) < 1e-8


@given(stream=tasks(), seed=st.integers(0, 999), ridge=st.sampled_from([1e-2, "gcv"]))
def test_merge_of_any_two_parts_equals_the_whole(stream: Tasks, seed: int, ridge: float | str) -> None:
    classes, z, y = pooled(stream)
    here = np.random.default_rng(seed).random(len(y)) < 0.5
    sites = []
    for part in (here, ~here):
        # A site knows only the classes that it has samples of, in an order of its own.
        site = RidgeHead(z.shape[1], ridge=ridge)
        own = sorted(set(y[part].tolist()), reverse=bool(part is here))
        if own:
            site.begin_task(own)
            observe(site, z[part], y[part])
            if seed % 2:  # solved or not makes no difference
                site.solve()
        sites.append(site)
    merged, other = sites
    merged.merge_(other)
    merged.solve()
    whole = learn(stream, ridge=ridge)
    assert merged.class_counts() == whole.class_counts()
    columns = [merged.classes.index(c) for c in classes]
    assert distance(merged.weights[:, columns], whole.weights) < 1e-8


@given(stream=tasks(), seed=st.integers(0, 999))
def test_subtract_of_any_samples_equals_never_having_seen_them(stream: Tasks, seed: int) -> None:
    classes, z, y = pooled(stream)
    firsts = np.unique(y, return_index=True)[1]
    gone = np.random.default_rng(seed).random(len(y)) < 0.3
    gone[firsts] = False  # every class keeps a sample
    if not gone.any():
        return
    head, part, rest = (RidgeHead(z.shape[1], ridge=1.0) for _ in range(3))
    for each, rows in ((head, gone | ~gone), (part, gone), (rest, ~gone)):
        each.begin_task([c for c in classes if c in y[rows]])
        observe(each, z[rows], y[rows])
        each.solve()
    head.subtract_(part)
    head.solve()
    assert head.class_counts() == rest.class_counts()
    assert distance(head.weights, rest.weights) < 1e-8


@given(stream=tasks(most_features=4, least_samples=8))
def test_gcv_is_a_search_with_the_hat_matrix(stream: Tasks) -> None:
    head = learn(stream)
    classes, z, y = pooled(stream)
    target = targets(classes, y)
    n = len(z)
    if len(classes) == 1:
        return  # nothing to fit
    centred = z - z.mean(axis=0)
    gram = centred.T @ centred
    scores = []
    for ridge in GCV_GRID.numpy() * np.trace(gram) / len(gram):
        hat = np.full((n, n), 1 / n) + centred @ np.linalg.inv(gram + ridge * np.eye(len(gram))) @ centred.T
        rss = np.square(target - hat @ target).sum()
        if np.trace(hat) <= n / 2:
            scores.append((n * rss / (n - np.trace(hat)) ** 2, ridge))
    best = min(score for score, _ in scores)
    # Where candidates are equally good to rounding, any of them is right.
    ours = head.ridge_used.item()
    assert any(abs(ours / ridge - 1) < 1e-9 for score, ridge in scores if score <= best * (1 + 1e-9))
    assert distance(head.weights, dense_ridge(z, target, ours)) < 1e-9


def test_one_ridge_of_all_classes_follows_the_data() -> None:
    # Pure noise wants the largest ridge, a noiseless linear rule the smallest.
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    noise, rule = RidgeHead(5), RidgeHead(5)
    for head, y in ((noise, torch.arange(400) % 2), (rule, (z[:, 0] > 0).long())):
        head.begin_task([0, 1])
        head.observe(z, y)
        head.solve()
    assert noise.ridge_used > 100 * rule.ridge_used


def test_state_elements_follow_the_design() -> None:
    head = RidgeHead(4)
    for k in range(3):
        head.begin_task([2 * k, 2 * k + 1])
        head.observe(torch.randn(4, 4), torch.tensor([2 * k, 2 * k + 1] * 2))
        head.solve()
    assert head.state_elements() == {"factors": 15, "moments": 30, "weights": 30}


def test_balanced_needs_counts_and_leaves_nothing_behind_without() -> None:
    head = RidgeHead(3, balanced=True)
    with pytest.raises(UsageError, match="class counts"):
        head.begin_task([1, 2])
    assert head.classes == []
    head.begin_task([1, 2], [1, 1])
    head.observe(torch.randn(2, 3), torch.tensor([1, 2]))
    head.solve()
    for combine in (head.merge_, head.subtract_):
        with pytest.raises(UnsupportedError, match="balanced=True"):
            combine(head)


def test_classes_may_be_removed_between_merge_and_solve() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    here, there = RidgeHead(3), RidgeHead(3)
    for head, labels in ((here, [0, 1]), (there, [2, 3])):
        head.begin_task(labels)
        head.observe(z, torch.tensor(labels * 6))
        head.solve()
    here.merge_(there)
    here.remove_classes([0])
    here.solve()
    assert here.classes == [1, 2, 3]
    assert here(z).shape == (12, 3)


def test_unknown_transform_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean sqrt_l2"):
        RidgeHead(3, transform="sqrt_l1")
