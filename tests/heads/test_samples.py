"""Heads that learn from samples: the samples, nearest neighbours, logistic regression and SGD."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.nn.functional import nll_loss

from cifnet_pl.heads import Head, KNNHead, LogisticHead, SGDHead
from cifnet_pl.heads.samples import Samples
from cifnet_pl.testing import assert_same_state, snapshot
from tests.heads.suite import normal, scans, teach, teach_pairs

(Z, REST), (Y, TRUE) = (part.split([1000, 797]) for part in scans())
# Pixels have 17 values, so that distances are often equal; a little noise decides.
NOISY = REST + 1e-3 * normal(*REST.shape)


def test_sorting_forgets_order_and_batches() -> None:
    draw = torch.Generator().manual_seed(0)
    # Few distinct values, so that many rows are alike or alike at the start.
    z = torch.randint(-1, 2, (40, 3), generator=draw).double()
    y = torch.randint(-(2**62), 2**62, (40,), generator=draw)
    weight = torch.randint(1, 3, (40,), generator=draw).double()
    once, often, renamed, distinct = (Samples(3, torch.float64) for _ in range(4))
    once.add(z, y, weight)
    for rows in torch.randperm(40, generator=draw).split(7):
        often.add(z[rows], y[rows], weight[rows])
    # Labels count between equal embeddings only.
    apart = z + 3 * torch.arange(40)[:, None]
    distinct.add(apart, torch.arange(40), weight)
    renamed.add(apart, y, weight)
    for each in (once, often, distinct, renamed):
        each.sort()
    for name in ("z", "y", "weight"):
        assert torch.equal(getattr(once, name), getattr(often, name))
    assert sorted(z.tolist()) == sorted(once.z.tolist())
    assert torch.equal(y[distinct.y], renamed.y)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("neighbours", [1, 40])
def test_votes_of_scikit_learn(metric: str, neighbours: int) -> None:
    model = KNeighborsClassifier(
        neighbours, weights="distance", metric=metric, algorithm="brute"
    )
    model.fit(Z.numpy(), Y.numpy())
    expected = torch.from_numpy(model.predict_proba(NOISY.numpy()))
    head = KNNHead(64, neighbours=neighbours, metric=metric, dtype="float64")
    teach_pairs(head, Z, Y)
    share = ((neighbours + 1) * head(NOISY).exp() - 1 / 10) / neighbours
    assert torch.allclose(share, expected, rtol=1e-6, atol=1e-9)
    assert torch.allclose(head.probabilities(NOISY), head(NOISY).exp(), rtol=1e-12)
    assert torch.equal(head.predict(NOISY), expected.argmax(dim=1))


def buffer(labels: list[int], per_class: int = 10) -> tuple[Tensor, Tensor]:
    rows = torch.cat([Y.eq(c).nonzero().flatten()[:per_class] for c in labels])
    return Z[rows], Y[rows]


def learned(head: Head, tasks: int = 5, per_class: int = 10) -> Head:
    for k in range(tasks):
        rows = (Y // 2).eq(k)
        head.begin_task([2 * k, 2 * k + 1])
        head.observe(Z[rows], Y[rows])
        if k and per_class:
            z, y = buffer(list(range(2 * k)), per_class)
            head.observe_past(z, y, torch.full((len(y),), 7.0, dtype=torch.float64))
        head.solve()
    # What was observed is forgotten, and only weights are kept.
    assert head.state_elements() == {"weights": 2 * tasks * 65}
    assert all(not len(samples) for samples in head._samples())
    assert not any(value.requires_grad for value in head.state_dict().values())
    return head


def test_logistic_is_that_of_scikit_learn_on_task_and_buffer() -> None:
    task = Y // 2 == 4
    z, y = buffer(list(range(8)))
    x = torch.cat([Z[task], z]).numpy()
    labels = torch.cat([Y[task], y]).numpy()
    weight = np.where(labels < 8, 7.0, 1.0)
    model = LogisticRegression(C=0.3, max_iter=5000, tol=1e-8).fit(x, labels, weight)
    head = learned(LogisticHead(64, inverse_penalty=0.3))
    probabilities = torch.from_numpy(model.predict_proba(REST.numpy()))
    assert torch.allclose(head.probabilities(REST), probabilities, atol=0.02)


def test_logistic_never_predicts_a_class_that_the_fit_did_not_see() -> None:
    head = learned(LogisticHead(64), per_class=0)
    scores = head(REST)
    assert (scores[:, :8] == torch.finfo(torch.float32).min).all()
    assert set(head.predict(REST).tolist()) == {8, 9}
    probabilities = head.probabilities(REST)
    assert torch.isfinite(probabilities).all()
    assert (probabilities[:, :8] == 0).all()


def test_sgd_approaches_the_minimum_of_the_cross_entropy() -> None:
    draw = torch.Generator().manual_seed(0)
    z = normal(600, 5)
    truth = normal(5, 3, seed=1)
    y = torch.multinomial((z @ truth).softmax(dim=1), 1, generator=draw).flatten()
    weight = torch.where(y == 0, 4.0, 1.0).double()
    head = teach(SGDHead(5, epochs=50, learning_rate=0.05), z, y, weight)
    model = LogisticRegression(C=1e4, max_iter=5000)
    model.fit(z.numpy(), y.numpy(), weight.numpy())
    theirs = torch.from_numpy(model.predict_log_proba(z.numpy()))
    least, loss = (
        float(weight @ nll_loss(log, y, reduction="none") / weight.sum())
        for log in (theirs, head(z).log_softmax(dim=1))
    )
    assert 0.3 < least < 0.8
    assert least - 1e-6 <= loss < least + 0.005


def test_sgd_goes_on_from_the_weights_it_had() -> None:
    head = learned(SGDHead(64, epochs=1, learning_rate=1e-9), tasks=1)
    before = head.weights.clone()
    teach(head, Z[Y == 2], Y[Y == 2])
    assert torch.allclose(head.weights[:, :2], before, atol=1e-6)
    assert head.weights[:, 2].abs().max() < 1e-6


def test_a_past_without_news_changes_nothing() -> None:
    head = learned(LogisticHead(64), tasks=2)
    before = snapshot(head)
    head.observe_past(*buffer([0, 1]))
    head.solve()
    assert_same_state(head, before)
