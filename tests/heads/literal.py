"""Random streams for property tests, and what is computed of them by definition."""

from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

EPSILON = 0.05
LIMIT = np.log((1 - EPSILON) / EPSILON)


class LiteralTask(NamedTuple):
    """Samples in random order, and a buffer: two of each class before, with whole weights."""

    classes: list[int]
    z: Array
    y: Ints
    past_z: Array
    past_y: Ints
    past_weight: Ints


@st.composite
def streams(draw, most_features=8, least_samples=1):
    """One to three tasks of one to three classes with ``least_samples`` to eight more samples."""
    features = draw(st.integers(1, most_features))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.arange(-5, 12)).tolist()
    past_z = np.zeros((0, features))
    past_y = np.zeros(0, np.int64)
    tasks = []
    for size in sizes:
        classes = [labels.pop() for _ in range(size)]
        y = np.repeat(classes, least_samples + rng.integers(0, 9, size))
        scale = rng.choice([0.3, 1, 5], features)
        z = rng.normal(size=(len(y), features)) * scale + rng.normal(size=features)
        order = rng.permutation(len(y))
        z = z[order]
        y = y[order]
        weight = rng.integers(1, 5, len(past_y))
        tasks.append(LiteralTask(classes, z, y, past_z, past_y, weight))
        kept = np.concatenate([np.flatnonzero(y == c)[:2] for c in classes])
        past_z = np.concatenate([past_z, z[kept]])
        past_y = np.concatenate([past_y, y[kept]])
    return tasks


def pooled(tasks: list[LiteralTask]) -> tuple[list[int], Array, Ints]:
    """All classes in order, all embeddings, all labels."""
    classes = [c for task in tasks for c in task.classes]
    z = np.concatenate([task.z for task in tasks])
    return classes, z, np.concatenate([task.y for task in tasks])


def targets(classes: list[int], y: Ints) -> Array:
    """(n, C) ±L."""
    return np.stack([np.where(y == c, LIMIT, -LIMIT) for c in classes], axis=1)


def dense_ridge(z, target, ridge, omega=None):
    """GCV score, infinite for no candidate, and weights (d+1, C) of a ridge, by the hat matrix."""
    n = len(z)
    if omega is None:
        omega = np.ones(n)
    mean = omega @ z / omega.sum()
    target_mean = omega @ target / omega.sum()
    centred = z - mean
    gram = centred.T @ (omega[:, None] * centred)
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    hat = omega[None] / omega.sum() + centred @ inverse @ centred.T * omega[None]
    residual = target - hat @ target
    freedom = np.trace(hat)
    score = n * (omega[:, None] * residual**2).sum() / (n - freedom) ** 2
    if freedom > n / 2 + 1e-9 or ridge > 1.001 * np.trace(gram):
        score = np.inf
    slopes = inverse @ centred.T @ (omega[:, None] * (target - target_mean))
    bias = target_mean - mean @ slopes
    return score, np.concatenate([bias[None], slopes])


def nll(scores: Tensor, y: Tensor, temperature: float, power: float = 1.0) -> float:
    """By the definition: the odds p / (1 − p) of the largest probability become their power."""
    spread = 1 / (len(y) + 2)
    classes = scores.shape[1]
    smoothed = one_hot(y, classes) * (1 - spread) + spread / classes
    p = torch.softmax(scores / temperature, dim=1)
    largest, first = p.max(dim=1, keepdim=True)
    odds = (largest / (1 - largest)) ** power
    p = (p / (1 - largest) / (1 + odds)).scatter(1, first, odds / (1 + odds))
    return -(smoothed * p.log()).sum(1).mean().item()


def distance(ours: Any, theirs: Any) -> float:
    """‖ours − theirs‖ / ‖theirs‖; as weights may be zero, this norm counts as 1e-3 at least."""
    difference = np.linalg.norm(np.asarray(ours) - np.asarray(theirs))
    return float(difference / max(np.linalg.norm(theirs), 1e-3))
