"""CIFNetHead against the paper's equations word by word, and against golden vectors of the authors'
released code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from cifnet_pl.heads import CIFNetHead
from tests.heads.suite import teach

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
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


EPSILON = 0.05
WEIGHTINGS = ["derivative", "released"]


@dataclass(frozen=True)
class Stream:
    """Random tasks: classes, samples and the calibration samples with their weights, all
    float64.
    """

    features: int
    classes: list[list[int]]
    z: list[Array]
    y: list[Ints]
    past: list[tuple[Array, Ints, Ints]]

    def batches(self, k: int, pieces: int, seed: int) -> list[tuple[Array, Ints]]:
        """Samples of task k, shuffled, in ``pieces`` pieces of random (possibly no) length."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.y[k]))
        cuts = np.sort(rng.integers(0, len(order) + 1, pieces - 1))
        return [(self.z[k][rows], self.y[k][rows]) for rows in np.split(order, cuts)]


@st.composite
def streams(draw: st.DrawFn, most_features: int = 8, least_samples: int = 1) -> Stream:
    """Streams of one to three tasks with one to three classes of ``least_samples`` to eight more
    samples.
    """
    features = draw(st.integers(1, most_features))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.arange(-3, 9))[: sum(sizes)].tolist()
    classes = []
    z = []
    y = []
    past = []
    for size in sizes:
        own = [labels.pop() for _ in range(size)]
        counts = least_samples + rng.integers(0, 9, size)
        samples = rng.normal(size=(counts.sum(), features)) * rng.choice(
            [0.3, 1, 5], features
        ) + rng.normal(size=features)
        kept = [
            (a[b == c][:2], b[b == c][:2])
            for a, b in zip(z, y, strict=True)
            for c in np.unique(b)
        ]
        past_z = np.concatenate([np.zeros((0, features)), *(a for a, _ in kept)])
        past_y = np.concatenate([np.zeros(0, np.int64), *(b for _, b in kept)])
        past.append((past_z, past_y, rng.integers(1, 5, len(past_y))))
        classes.append(own)
        z.append(samples)
        y.append(np.repeat(own, counts))
    return Stream(features, classes, z, y, past)


def learn(
    stream: Stream, pieces: int = 1, seed: int = 0, **settings: Any
) -> CIFNetHead:
    head = CIFNetHead(stream.features, epsilon=EPSILON, **settings)
    for k, classes in enumerate(stream.classes):
        head.begin_task(classes)
        for z, y in stream.batches(k, pieces, seed):
            head.observe(torch.from_numpy(z), torch.from_numpy(y))
        head.observe_past(*(torch.from_numpy(part) for part in stream.past[k]))
        head.solve()
    return head


def distance(ours: Any, theirs: Any) -> float:
    """‖ours − theirs‖ / ‖theirs‖ in the Frobenius norm, over the whole matrix."""
    return float(
        np.linalg.norm(np.asarray(ours) - np.asarray(theirs))
        / np.linalg.norm(np.asarray(theirs))
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@given(
    stream=streams(), pieces=st.integers(1, 5), ridge=st.sampled_from([0.01, 1.0, 10.0])
)
def test_agrees_with_a_literal_svd_per_class_and_batch(
    stream, pieces, ridge, update_past, weighting
):
    literal = LiteralCIFNet(stream.features, ridge, EPSILON, update_past, weighting)
    for k, classes in enumerate(stream.classes):
        z, y, copies = stream.past[k]
        literal.learn_task(classes, stream.batches(k, pieces, seed=1), (z, y), copies)
    head = learn(
        stream, pieces=2, ridge=ridge, update_past=update_past, weighting=weighting
    )
    assert head.classes == list(literal.neurons)
    assert distance(head.weights(), literal.weights()) < 1e-8


def samples_of_cohort(
    stream: Stream, j: int, update_past: bool
) -> tuple[Array, Ints, Array]:
    """Embeddings, labels and weights of all that the neurons of task j have seen."""
    later = range(j, len(stream.classes)) if update_past else [j]
    z = np.concatenate([stream.past[j][0], *(stream.z[k] for k in later)])
    y = np.concatenate([stream.past[j][1], *(stream.y[k] for k in later)])
    weight = np.ones(len(y))
    weight[: len(stream.past[j][1])] = stream.past[j][2]
    return z, y, weight


def hat_matrix_gcv(
    z: Array, target: Array, omega: Array, ridge: float
) -> tuple[float, Array]:
    """GCV score and weights (d+1, C) of a ridge, from the data matrix and its hat matrix."""
    n = len(z)
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
        score = np.inf  # no candidate
    slopes = inverse @ centred.T @ (omega[:, None] * (target - target_mean))
    bias = target_mean - mean @ slopes
    return score, np.concatenate([bias[None], slopes])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@given(stream=streams(most_features=4, least_samples=8))
def test_gcv_is_a_search_with_the_hat_matrix(
    stream: Stream, update_past: bool, weighting: str
) -> None:
    # More samples than features: else the hat matrix itself leaves only rounding (see
    # test_statistics for that case).
    head = learn(stream, ridge="gcv", update_past=update_past, weighting=weighting)
    limit = np.log((1 - EPSILON) / EPSILON)
    for j, classes in enumerate(stream.classes):
        z, y, weight = samples_of_cohort(stream, j, update_past)
        # One ridge for a cohort; with the released slopes every class has a Gram matrix, and so a
        # ridge, of its own.
        if weighting == "derivative":
            groups = [classes]
        else:
            groups = [[c] for c in classes]
        for group in groups:
            target = np.stack([np.where(y == c, limit, -limit) for c in group], axis=1)
            if np.ptp(target, axis=0).max() == 0:
                continue  # one class alone: nothing to fit, tested below
            omega = weight * SLOPES[weighting](target[:, 0]) ** 2
            columns = [head.classes.index(c) for c in group]
            ridges = torch.cat([cohort.ridge_used for cohort in head.cohorts])
            ridge = ridges[columns[0]].item()
            score, expected = hat_matrix_gcv(z, target, omega, ridge)
            for factor in (0.77, 1.3):  # the search is as precise as it has to be
                other, _ = hat_matrix_gcv(z, target, omega, factor * ridge)
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

images, targets = load_digits(return_X_y=True)
X = torch.from_numpy(images / 16)
Y = torch.from_numpy(targets).long()


def task_rows(k: int) -> NDArray[np.int64]:
    rows = GOLDEN["train_rows"]
    return rows[np.isin(targets[rows], TASKS[k])]


def buffer_rows(k: int) -> tuple[NDArray[np.int64], float]:
    """Rows of all digits before task k, and their weight ⌊n_max/10⌋."""
    earlier = [c for task in TASKS[:k] for c in task]
    if earlier:
        rows = np.concatenate([GOLDEN["buffer_rows"][c] for c in earlier])
    else:
        rows = np.zeros(0)
    n_max = max(int((targets[task_rows(k)] == c).sum()) for c in TASKS[k])
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
