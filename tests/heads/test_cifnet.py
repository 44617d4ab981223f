"""CIFNetHead against the paper's equations word by word, and against golden vectors of the authors'
released code.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cifnet_pl.heads import CIFNetHead
from tests.heads.literal import (
    EPSILON,
    Array,
    Ints,
    LiteralTask,
    dense_ridge,
    distance,
    pooled,
    streams,
    targets,
)
from tests.heads.suite import scans, teach

Batch = tuple[Array, Ints]


def paper_slope(target: Array) -> Array:
    """The sigmoid's derivative f(t)(1 − f(t)) at the logit t."""
    value = 1 / (1 + np.exp(-target))
    return value * (1 - value)


def released_slope(target: Array) -> Array:
    """What the released code computes: t(1 − t) of the logit itself."""
    return target * (1 - target)


SLOPES: dict[str, Callable[[Array], Array]] = {
    "derivative": paper_slope,
    "released": released_slope,
}


class Neuron:
    """Statistics (U, S, m) of one class."""

    def __init__(self, width: int):
        self.u = np.zeros((width, 0))
        self.s = np.zeros(0)
        self.m = np.zeros(width)

    def update(
        self,
        z: Array,
        positive: NDArray[np.bool_],
        epsilon: float,
        slope: Callable[[Array], Array],
    ) -> None:
        """Stages 1 and 2 for one batch, then eq:moment_update and eq:svd_update."""
        x = np.concatenate([np.ones((1, len(z))), z.T])
        clipped = np.clip(positive.astype(float), epsilon, 1 - epsilon)
        target = np.log(clipped / (1 - clipped))
        f = np.diag(slope(target))
        u, s, _ = np.linalg.svd(x @ f, full_matrices=False)
        self.m = self.m + x @ f.T @ f @ target
        self.u, self.s, _ = np.linalg.svd(
            np.concatenate([self.u * self.s, u * s], axis=1), full_matrices=False
        )

    def weights(self, ridge: float) -> Array:
        """Stage 3, eq:weights_rrls."""
        return self.u @ np.diag(1 / (self.s**2 + ridge)) @ self.u.T @ self.m


class LiteralCIFNet:
    """All neurons, and who sees what: Algorithm 1 of the paper."""

    def __init__(
        self,
        features: int,
        ridge: float,
        epsilon: float,
        update_past: bool,
        weighting: str,
    ):
        self.features = features
        self.ridge = ridge
        self.epsilon = epsilon
        self.update_past = update_past
        self.slope = SLOPES[weighting]
        self.neurons: dict[int, Neuron] = {}

    def learn_task(
        self,
        classes: Sequence[int],
        batches: Sequence[Batch],
        buffer: Batch,
        copies: Ints,
    ) -> None:
        """Learn one task; sample i of the buffer comes ``copies[i]`` times, to the new neurons
        only.
        """
        if self.update_past:
            self._show(list(self.neurons), batches)
        for label in classes:
            self.neurons[label] = Neuron(self.features + 1)
        oversampled = (
            np.repeat(buffer[0], copies, axis=0),
            np.repeat(buffer[1], copies),
        )
        self._show(classes, [*batches, oversampled])

    def _show(self, labels: Sequence[int], batches: Sequence[Batch]) -> None:
        for z, y in batches:
            for label in labels if len(z) else []:
                self.neurons[label].update(z, y == label, self.epsilon, self.slope)

    def weights(self) -> Array:
        """(d+1, C), columns in the order in which the classes were learned."""
        return np.stack(
            [neuron.weights(self.ridge) for neuron in self.neurons.values()], axis=1
        )


WEIGHTINGS = ["derivative", "released"]


def pieces_of(task: LiteralTask, count: int) -> list[Batch]:
    """Samples of a task in ``count`` pieces of random (possibly no) length."""
    rng = np.random.default_rng(count)
    cuts = np.sort(rng.integers(0, len(task.y) + 1, count - 1))
    return list(zip(np.split(task.z, cuts), np.split(task.y, cuts), strict=True))


def learn(tasks: list[LiteralTask], **settings: Any) -> CIFNetHead:
    head = CIFNetHead(tasks[0].z.shape[1], epsilon=EPSILON, **settings)
    for task in tasks:
        head.begin_task(task.classes)
        for z, y in pieces_of(task, 2):
            head.observe(z, y)
        head.observe_past(task.past_z, task.past_y, task.past_weight)
        head.solve()
    return head


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@given(
    tasks=streams(), pieces=st.integers(1, 5), ridge=st.sampled_from([0.01, 1.0, 10.0])
)
def test_agrees_with_a_literal_svd_per_class_and_batch(
    tasks, pieces, ridge, update_past, weighting
):
    features = tasks[0].z.shape[1]
    literal = LiteralCIFNet(features, ridge, EPSILON, update_past, weighting)
    for task in tasks:
        buffer = (task.past_z, task.past_y)
        batches = pieces_of(task, pieces)
        literal.learn_task(task.classes, batches, buffer, task.past_weight)
    head = learn(tasks, ridge=ridge, update_past=update_past, weighting=weighting)
    assert head.classes == list(literal.neurons)
    assert distance(head.weights(), literal.weights()) < 1e-8


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@given(tasks=streams(most_features=4, least_samples=8))
def test_gcv_is_a_search_with_the_hat_matrix(tasks, update_past, weighting) -> None:
    # More samples than features: else the hat matrix itself leaves only rounding (see
    # tests/statistics for that case).
    head = learn(tasks, ridge="gcv", update_past=update_past, weighting=weighting)
    for j, task in enumerate(tasks):
        seen = tasks[j:] if update_past else [task]
        _, z, y = pooled(seen)
        z = np.concatenate([task.past_z, z])
        weight = np.concatenate([task.past_weight, np.ones(len(y))])
        y = np.concatenate([task.past_y, y])
        # One ridge for a cohort; with the released slopes every class has a Gram matrix, and so a
        # ridge, of its own.
        groups = [[c] for c in task.classes]
        if weighting == "derivative":
            groups = [task.classes]
        for group in groups:
            target = targets(group, y)
            if np.ptp(target, axis=0).max() == 0:
                continue  # one class alone: nothing to fit, tested below
            omega = weight * SLOPES[weighting](target[:, 0]) ** 2
            columns = [head.classes.index(c) for c in group]
            ridges = torch.cat([cohort.ridge_used for cohort in head.cohorts])
            ridge = ridges[columns[0]].item()
            score, expected = dense_ridge(z, target, ridge, omega)
            for factor in (0.77, 1.3):  # the search is as precise as it has to be
                other, _ = dense_ridge(z, target, factor * ridge, omega)
                assert score <= 1.01 * other
            assert distance(head.weights()[:, columns], expected) < 1e-8


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("ridge", [1e-6, "gcv"])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_one_class_alone_scores_its_target_everywhere(
    count: int, ridge: float | str, weighting: str
) -> None:
    z = torch.randn(
        count, 50, generator=torch.Generator().manual_seed(count), dtype=torch.float64
    )
    head = teach(
        CIFNetHead(50, ridge=ridge, weighting=weighting), z, torch.full((count,), 3)
    )
    assert torch.allclose(
        head(z), torch.full((count, 1), head.limit, dtype=torch.float64), rtol=1e-3
    )
    # The bias is free, so nothing is left for the features to explain.
    if ridge == "gcv":
        assert head.weights()[1:].norm() < 1e-8


# ---------------------------------------------------------------------- golden vectors of the
# released code

GOLDEN: dict[str, Any] = dict(
    np.load(Path(__file__).parents[1] / "data" / "cifnet_digits.npz")
)
TASKS = [[int(c) for c in GOLDEN["class_order"][2 * k : 2 * k + 2]] for k in range(5)]
SEEN = [torch.tensor(TASKS[: k + 1]).flatten() for k in range(5)]
RIDGE = 0.01

VARIANTS = {
    "paper_updated": {"weighting": "derivative", "update_past": True},
    "paper_locked": {"weighting": "derivative", "update_past": False},
    "released_code": {"weighting": "released", "update_past": True},
    "released_locked": {"weighting": "released", "update_past": False},
}

X, Y = scans()


def task_rows(k: int) -> NDArray[np.int64]:
    rows = GOLDEN["train_rows"]
    return rows[np.isin(Y[rows], TASKS[k])]


def buffer_rows(k: int) -> tuple[NDArray[np.int64], float]:
    """Rows of all digits before task k, and their weight ⌊n_max/10⌋."""
    earlier = [c for task in TASKS[:k] for c in task]
    if earlier:
        rows = np.concatenate([GOLDEN["buffer_rows"][c] for c in earlier])
    else:
        rows = np.zeros(0)
    n_max = max(int((Y[task_rows(k)] == c).sum()) for c in TASKS[k])
    return rows.astype(np.int64), float(n_max // 10)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", [10, 10_000])
def test_weights_scores_and_accuracies_agree_with_the_golden_vectors(
    variant: str, batch: int
) -> None:
    # The released slopes (t(1 − t) is −5.7 and −11.6) make a normal matrix of condition 2·10⁸, at
    # which the file itself carries up to 1.34e-9 of rounding.
    tolerance = 1e-11 if variant.startswith("paper") else 1.4e-9
    head = CIFNetHead(64, ridge=RIDGE, epsilon=EPSILON, **VARIANTS[variant])
    test = torch.from_numpy(GOLDEN["test_rows"]).long()
    for k, classes in enumerate(TASKS):
        head.begin_task(classes)
        for rows in torch.from_numpy(task_rows(k)).split(batch):
            head.observe(X[rows], Y[rows])
        past, weight = buffer_rows(k)
        head.observe_past(X[past], Y[past], torch.full((len(past),), weight))
        head.solve()
        golden = GOLDEN[f"{variant}_W{k + 1}"]
        assert distance(head.weights(), golden) < tolerance
        held_out = test[torch.isin(Y[test], SEEN[k])]
        scores = head(X[held_out])
        golden_scores = X[held_out].numpy() @ golden[1:] + golden[0]
        assert distance(scores, golden_scores) < 1e-9
        predicted = SEEN[k][scores.argmax(dim=1)]
        accuracy = 100 * (predicted == Y[held_out]).double().mean().item()
        assert accuracy == pytest.approx(GOLDEN[f"{variant}_acc"][k], abs=1e-9)
    triangles = 15 if head.weighting == "released" else 5  # of cohorts, of classes
    assert head.state_elements() == {
        "factors": triangles * 65 * 66 // 2,
        "moments": 10 * 65,
        "weights": 10 * 65,
    }
