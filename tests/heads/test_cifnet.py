"""CIFNetHead against the paper's equations word by word, on random streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cifnet_pl.heads import CIFNetHead
from cifnet_pl.heads.cifnet import common_weights, joined_weights
from cifnet_pl.statistics import GCV_GRID
from cifnet_pl.utilities.errors import UsageError
from tests.heads.literal import SLOPES, Array, Ints, LiteralCIFNet

EPSILON = 0.05
WEIGHTINGS = ["derivative", "released"]


@dataclass(frozen=True)
class Stream:
    """Random tasks: classes, samples and the calibration samples with their weights, all float64."""

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
    """Streams of one to three tasks with one to three classes of ``least_samples`` to eight more samples."""
    features = draw(st.integers(1, most_features))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.permutation(np.arange(-3, 9))[: sum(sizes)].tolist()
    classes, z, y, past = [], [], [], []
    for size in sizes:
        own = [labels.pop() for _ in range(size)]
        counts = least_samples + rng.integers(0, 9, size)
        samples = rng.normal(size=(counts.sum(), features)) * rng.choice([0.3, 1, 5], features) + rng.normal(
            size=features
        )
        kept = [(a[b == c][:2], b[b == c][:2]) for a, b in zip(z, y, strict=True) for c in np.unique(b)]
        past_z = np.concatenate([np.zeros((0, features)), *(a for a, _ in kept)])
        past_y = np.concatenate([np.zeros(0, np.int64), *(b for _, b in kept)])
        past.append((past_z, past_y, rng.integers(1, 5, len(past_y))))
        classes.append(own)
        z.append(samples)
        y.append(np.repeat(own, counts))
    return Stream(features, classes, z, y, past)


def learn(stream: Stream, pieces: int = 1, seed: int = 0, copies: bool = False, **settings: Any) -> CIFNetHead:
    head = CIFNetHead(stream.features, epsilon=EPSILON, **settings)
    for k, classes in enumerate(stream.classes):
        head.begin_task(classes)
        for z, y in stream.batches(k, pieces, seed):
            head.observe(torch.from_numpy(z), torch.from_numpy(y))
        z, y, weight = stream.past[k]
        if copies:
            head.observe_past(torch.from_numpy(np.repeat(z, weight, axis=0)), torch.from_numpy(np.repeat(y, weight)))
        else:
            head.observe_past(torch.from_numpy(z), torch.from_numpy(y), torch.from_numpy(weight))
        head.solve()
    return head


def distance(ours: Any, theirs: Any) -> float:
    """‖ours − theirs‖ / ‖theirs‖ in the Frobenius norm."""
    return float(np.linalg.norm(np.asarray(ours) - np.asarray(theirs)) / np.linalg.norm(np.asarray(theirs)))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@given(stream=streams(), pieces=st.integers(1, 5), ridge=st.sampled_from([0.01, 1.0, 10.0]))
def test_agrees_with_a_literal_svd_per_class_and_batch(
    stream: Stream, pieces: int, ridge: float, update_past: bool, weighting: str
) -> None:
    literal = LiteralCIFNet(stream.features, ridge, EPSILON, update_past, weighting)
    for k, classes in enumerate(stream.classes):
        z, y, copies = stream.past[k]
        literal.learn_task(classes, stream.batches(k, pieces, seed=1), (z, y), copies)
    head = learn(stream, pieces=2, ridge=ridge, update_past=update_past, weighting=weighting)
    assert head.classes == list(literal.neurons)
    assert distance(head.weights(), literal.weights()) < 1e-8


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@pytest.mark.parametrize("ridge", [0.01, "gcv"])
@given(stream=streams(), pieces=st.integers(1, 6), seed=st.integers(0, 999))
def test_any_order_and_split_gives_the_same_weights(
    stream: Stream, pieces: int, seed: int, ridge: float | str, update_past: bool, weighting: str
) -> None:
    settings: dict[str, Any] = {"ridge": ridge, "update_past": update_past, "weighting": weighting}
    whole, split = learn(stream, **settings), learn(stream, pieces, seed, **settings)
    assert distance(split.weights(), whole.weights()) < 1e-8


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@given(stream=streams())
def test_oversampling_by_weight_equals_copies(stream: Stream, weighting: str) -> None:
    weighted, copied = learn(stream, weighting=weighting), learn(stream, weighting=weighting, copies=True)
    assert distance(weighted.weights(), copied.weights()) < 1e-9


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@given(stream=streams(), seed=st.integers(0, 999))
def test_shards_of_every_task_merge_to_the_whole(stream: Stream, seed: int, weighting: str) -> None:
    head = CIFNetHead(stream.features, weighting=weighting)
    for k, classes in enumerate(stream.classes):
        head.begin_task(classes)
        shard = CIFNetHead(stream.features, weighting=weighting)
        shard.load_state_dict(head.state_dict())
        for each, (z, y) in zip((head, shard), stream.batches(k, 2, seed), strict=True):
            each.observe(torch.from_numpy(z), torch.from_numpy(y))
            each.observe_past(*(torch.from_numpy(part) for part in stream.past[k]))
        head.merge_(shard)
        head.solve()
    assert distance(head.weights(), learn(stream, weighting=weighting).weights()) < 1e-9


@given(stream=streams(), seed=st.integers(0, 999))
def test_uncalibrated_sequences_merge_to_the_whole(stream: Stream, seed: int) -> None:
    bare = Stream(
        stream.features, stream.classes, stream.z, stream.y, [(z[:0], y[:0], w[:0]) for z, y, w in stream.past]
    )
    sites = [CIFNetHead(stream.features) for _ in range(2)]
    for k, classes in enumerate(bare.classes):
        # Every site needs a sample of every class to be solved: give both the first one, and count it twice below.
        firsts = np.unique(bare.y[k], return_index=True)[1]
        for site, (z, y) in zip(sites, bare.batches(k, 2, seed), strict=True):
            site.begin_task(classes)
            site.observe(torch.from_numpy(z), torch.from_numpy(y))
            site.observe(torch.from_numpy(bare.z[k][firsts]), torch.from_numpy(bare.y[k][firsts]))
            site.solve()
    sites[0].merge_(sites[1])
    sites[0].solve()
    whole = CIFNetHead(stream.features)
    for k, classes in enumerate(bare.classes):
        firsts = np.unique(bare.y[k], return_index=True)[1]
        rows = np.concatenate([np.arange(len(bare.y[k])), firsts, firsts])
        whole.begin_task(classes)
        whole.observe(torch.from_numpy(bare.z[k][rows]), torch.from_numpy(bare.y[k][rows]))
        whole.solve()
    assert sites[0].class_counts() == whole.class_counts()
    assert distance(sites[0].weights(), whole.weights()) < 1e-9


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("ridge", [0.01, "gcv"])
@given(stream=streams())
def test_locked_neurons_never_change(stream: Stream, ridge: float | str, weighting: str) -> None:
    head = CIFNetHead(stream.features, ridge=ridge, update_past=False, weighting=weighting)
    before = torch.zeros(stream.features + 1, 0, dtype=torch.float64)
    for k, classes in enumerate(stream.classes):
        head.begin_task(classes)
        head.observe(torch.from_numpy(stream.z[k]), torch.from_numpy(stream.y[k]))
        head.observe_past(*(torch.from_numpy(part) for part in stream.past[k]))
        head.solve()
        assert torch.equal(head.weights()[:, : before.shape[1]], before)
        before = head.weights()


def samples_of_cohort(stream: Stream, j: int, update_past: bool) -> tuple[Array, Ints, Array]:
    """Embeddings, labels and weights of all that the neurons of task j have seen."""
    later = range(j, len(stream.classes)) if update_past else [j]
    z = np.concatenate([stream.past[j][0], *(stream.z[k] for k in later)])
    y = np.concatenate([stream.past[j][1], *(stream.y[k] for k in later)])
    weight = np.ones(len(y))
    weight[: len(stream.past[j][1])] = stream.past[j][2]
    return z, y, weight


def hat_matrix_gcv(z: Array, target: Array, omega: Array) -> list[tuple[float, Array]]:
    """GCV score and weights (d+1, C) of every candidate ridge, from the data matrix and its hat matrix."""
    n = len(z)
    mean, target_mean = omega @ z / omega.sum(), omega @ target / omega.sum()
    centred = z - mean
    gram = centred.T @ (omega[:, None] * centred)
    candidates = []
    for ridge in GCV_GRID.numpy() * np.trace(gram) / len(gram):
        inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
        hat = omega[None] / omega.sum() + centred @ inverse @ centred.T * omega[None]
        residual = target - hat @ target
        freedom = np.trace(hat)
        score = n * (omega[:, None] * residual**2).sum() / (n - freedom) ** 2 if freedom <= n / 2 else np.inf
        slopes = inverse @ centred.T @ (omega[:, None] * (target - target_mean))
        candidates.append((score, np.concatenate([(target_mean - mean @ slopes)[None], slopes])))
    return candidates


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("update_past", [True, False])
@given(stream=streams(most_features=4, least_samples=8))
def test_gcv_is_a_search_with_the_hat_matrix(stream: Stream, update_past: bool, weighting: str) -> None:
    # More samples than features: else the hat matrix itself leaves only rounding (see test_statistics for that case).
    head = learn(stream, ridge="gcv", update_past=update_past, weighting=weighting)
    limit = np.log((1 - EPSILON) / EPSILON)
    for j, classes in enumerate(stream.classes):
        z, y, weight = samples_of_cohort(stream, j, update_past)
        # One ridge for a cohort; with the released slopes every class has a Gram matrix, and so a ridge, of its own.
        groups = [classes] if weighting == "derivative" else [[c] for c in classes]
        for group in groups:
            target = np.stack([np.where(y == c, limit, -limit) for c in group], axis=1)
            if np.ptp(target, axis=0).max() == 0:
                continue  # one class alone: nothing to fit, tested below
            omega = weight * SLOPES[weighting](target[:, 0]) ** 2
            candidates = hat_matrix_gcv(z, target, omega)
            best = min(score for score, _ in candidates)
            ours = head.weights()[:, [head.classes.index(c) for c in group]]
            # Where candidates are equally good to rounding, any of them is right.
            assert min(distance(ours, w) for score, w in candidates if score <= best * (1 + 1e-9)) < 1e-8


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("ridge", [1e-6, "gcv"])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_one_class_alone_scores_its_target_everywhere(count: int, ridge: float | str, weighting: str) -> None:
    head = CIFNetHead(50, ridge=ridge, weighting=weighting)
    z = torch.randn(count, 50, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    head.begin_task([3])
    head.observe(z, torch.full((count,), 3))
    head.solve()
    assert torch.allclose(head(z), torch.full((count, 1), head.limit, dtype=torch.float64), rtol=1e-3)
    if ridge == "gcv":  # the bias is free, so nothing is left for the features to explain
        assert head.weights()[1:].norm() < 1e-8


def test_merge_refuses_what_would_count_the_buffer_twice() -> None:
    rng = torch.Generator().manual_seed(0)
    z, y = torch.randn(8, 3, generator=rng), torch.tensor([0, 1] * 4)
    sites = [CIFNetHead(3) for _ in range(2)]
    for site in sites:
        site.begin_task([0, 1])
        site.observe(z, y)
        site.solve()
        site.begin_task([2, 3])
        site.observe(z, y + 2)
        site.observe_past(z[:2], y[:2])
        site.solve()
    with pytest.raises(UsageError, match="buffer's samples would count twice"):
        sites[0].merge_(sites[1])


def test_merge_refuses_shards_with_other_calibration_samples_and_other_sequences() -> None:
    z, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)
    first = CIFNetHead(3)
    first.begin_task([0, 1])
    first.observe(z, y)
    first.solve()
    shards = []
    for rows in (slice(0, 2), slice(2, 4), slice(0, 0)):
        shard = CIFNetHead(3)
        shard.load_state_dict(first.state_dict())
        shard.begin_task([2, 3])
        shard.observe(z, y + 2)
        shard.observe_past(z[rows], y[rows])
        shards.append(shard)
    for other in shards[1:]:
        with pytest.raises(UsageError, match="different calibration samples"):
            shards[0].merge_(other)
    with pytest.raises(UsageError, match="same task sequence"):
        shards[0].merge_(first)


def test_state_elements_follow_the_design() -> None:
    width, tasks, per_task = 4, 3, 2
    for weighting, grams in (("derivative", tasks), ("released", tasks + tasks * per_task)):
        head = CIFNetHead(width, weighting=weighting)
        for k in range(tasks):
            head.begin_task([2 * k, 2 * k + 1])
            head.observe(torch.randn(4, width), torch.tensor([2 * k, 2 * k + 1] * 2))
            head.solve()
        rows = tasks * per_task * (width + 1)
        triangle = (width + 1) * (width + 2) // 2
        assert head.state_elements() == {"factors": grams * triangle, "moments": rows, "weights": rows}


@pytest.mark.parametrize("epsilon", [0, 0.5, -0.1, 1.0, float("nan")])
def test_an_impossible_clip_is_refused(epsilon: float) -> None:
    with pytest.raises(UsageError, match="epsilon"):
        CIFNetHead(3, epsilon=epsilon)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean derivative"):
        CIFNetHead(3, weighting="derivate")
    with pytest.raises(UsageError, match="float16"):
        CIFNetHead(3, dtype="float16")


@pytest.mark.parametrize(("update_past", "solved"), [(True, [[0], [0, 1], [0, 1, 2]]), (False, [[0], [1], [2]])])
def test_only_neurons_with_news_are_solved_again(
    update_past: bool, solved: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    solve = CIFNetHead._solve_cohort
    monkeypatch.setattr(CIFNetHead, "_solve_cohort", lambda head, cohort: (calls.append(cohort), solve(head, cohort)))
    head = CIFNetHead(3, update_past=update_past)
    for k, expected in enumerate(solved):
        head.begin_task([k])
        head.observe(torch.randn(4, 3), torch.full((4,), k))
        head.solve()
        assert calls == []  # only a prediction needs the weights
        for _ in range(2):
            head(torch.randn(2, 3))
        assert calls == [head.cohorts[j] for j in expected]
        calls.clear()


CLASSES = 3
rows = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.sampled_from([1.0, 2.0, 5.0])), max_size=8)


def split(samples: list[tuple[int, float]]) -> tuple[Tensor, Tensor]:
    columns, weights = [column for column, _ in samples], [weight for _, weight in samples]
    return torch.tensor(columns, dtype=torch.int64), torch.tensor(weights, dtype=torch.float64)


@given(rows)
def test_common_weights(samples: list[tuple[int, float]]) -> None:
    result = common_weights(*split(samples), CLASSES).tolist()
    for column in range(CLASSES):
        weights = {weight for label, weight in samples if label == column}
        assert result[column] == (0 if not weights else weights.pop() if len(weights) == 1 else -1)


@given(rows, rows)
def test_of_two_batches_as_of_one(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> None:
    joined = joined_weights(*(common_weights(*split(samples), CLASSES) for samples in (first, second)))
    assert torch.equal(joined, common_weights(*split(first + second), CLASSES))
