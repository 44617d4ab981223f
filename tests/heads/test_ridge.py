"""RidgeHead against dense ridge regression and the equations of its rules; what it remembers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.probabilities import CalibrationSamples, calibrate
from cifnet_pl.heads.trial import learn, stream
from cifnet_pl.testing import QUERIES, TASKS, difference, halves
from cifnet_pl.utilities.errors import UsageError
from tests.heads import literal
from tests.heads.suite import normal, scans, teach


@given(
    tasks=literal.streams(),
    ridge=st.sampled_from([1e-2, 1.0, 100.0]),
    products=st.sampled_from([0.0, 1.5]),
)
def test_equals_a_dense_joint_ridge_over_all_data(tasks, ridge, products) -> None:
    """A product feature is that of two sums of all features, divided by the embedding's length."""
    width = tasks[0].z.shape[1]
    head = RidgeHead(width, ridge, literal.EPSILON, product_features=products)
    for task in tasks:
        z, y = torch.from_numpy(task.z), torch.from_numpy(task.y)
        teach(head, z, y, classes=task.classes)
    classes, z, y = literal.pooled(tasks)
    assert head.classes == classes
    p, q = np.split(head.directions.numpy(), 2)
    lengths = np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
    both = 0.5 * (z @ p.T) * (z @ q.T) / lengths / max(len(p), 1) ** 0.5
    _, expected = literal.dense_ridge(
        np.hstack([z, both]), literal.targets(classes, y), ridge
    )
    assert literal.distance(head.weights, expected) < 1e-9


COUNTS = [([400, 399, 900], 3.0), ([100, 199, 900], 1.0), (None, 0)]


@pytest.mark.parametrize(("counts", "expected"), COUNTS)
def test_auto_takes_products_where_a_class_has_many_samples_at_first(counts, expected):
    """It is settled then: a later task changes nothing, nor does a file."""
    head = RidgeHead(7, product_features="auto")
    z = torch.randn(30, 7)
    y = torch.arange(30) % 3
    head.begin_task([0, 1, 2], counts)
    head.observe(z, y)
    head.solve()
    assert head.settings()["product_features"] == head.product_features == expected
    again = RidgeHead(7, product_features="auto")
    again.load_state_dict(head.state_dict())
    for one in (head, again):
        one.begin_task([3], [1000])
        one.observe(z, torch.full((30,), 3))
        one.solve()
    assert (again.product_features, head.sums.width) == (expected, 8 + 7 * expected)
    assert torch.equal(again(z), head(z))


D = 6


def test_the_scatter_around_the_mean_of_a_removed_class_stays() -> None:
    """In a file too, in a merge, and until the class's samples are subtracted as well."""
    head = learn(RidgeHead(D, ridge=1.0, decision="discriminant"), TASKS)
    before = head(QUERIES)
    kept = [0, 2, 3, 5]
    head.remove_classes([-3, 0])
    head.solve()
    assert torch.allclose(head(QUERIES), before[:, kept], rtol=1e-9)
    again = RidgeHead(D, ridge=1.0, decision="discriminant")
    again.load_state_dict(head.state_dict())
    base = copy.deepcopy(again)
    more = learn(again.fresh(), stream([[50, 51]], seed=4))
    again.merge_(more)
    again.subtract_(base)
    again.remove_classes(base.classes)
    again.solve()
    assert again.removed_sums.shape == (0, D + 1)
    assert torch.allclose(again(QUERIES), more(QUERIES), rtol=1e-6, atol=1e-6)
    with pytest.raises(UsageError, match="classes that were removed"):
        again.subtract_(base)


def on_a_line(seed: int) -> tuple[Tensor, Tensor]:
    """Samples of four classes on a line, which regression on indicators masks."""
    y = torch.arange(4).repeat(60)
    z = normal(240, D, seed=seed)
    z[:, 0] = 4.0 * y + 0.5 * z[:, 0]
    return z, y


def calibrated(z: Tensor, y: Tensor) -> RidgeHead:
    head = teach(RidgeHead(z.shape[1], decision="auto"), z, y)
    calibrate(CalibrationSamples(head, z, y))
    return head


def test_auto_is_the_discriminant_where_classes_lie_on_a_line() -> None:
    z, y = on_a_line(0)
    ridge = teach(RidgeHead(D, decision="ridge"), z, y)
    head = calibrated(z, y)
    accuracy = [(each.predict(z) == y).double().mean() for each in (head, ridge)]
    assert accuracy[0] > 0.95 > 0.8 > accuracy[1]
    assert head.rule_weights[1] == 0


def test_the_weights_of_the_rules_are_the_most_likely_ones() -> None:
    z, y = (part[:150] for part in scans())
    head = calibrated(z, y)
    alone = torch.arange(len(y))
    rules = torch.stack([rule(alone) for rule in head.rules_left_out(z, y)])
    power = head.odds_power.item()
    scores = torch.tensordot(head.rule_weights, rules, dims=1)
    assert torch.allclose(head.leave_one_out(z, y), scores, rtol=1e-9)
    for factors in ((0.9, 1.0), (1.1, 1.0), (1.0, 0.9), (1.0, 1.1)):
        other = head.rule_weights * torch.tensor(factors)
        logits = torch.tensordot(other, rules, dims=1)
        assert literal.nll(scores, y, 1.0, power) <= literal.nll(logits, y, 1.0, power)


@pytest.mark.parametrize("decision", ["discriminant", "auto"])
def test_rules_are_those_of_their_equations(decision: str) -> None:
    """For auto λ is added in proportion to the mean of 1 and the relative variance within classes,
    and each class's targets have one length."""
    z, y = on_a_line(1)
    z = z[20:] * torch.logspace(-1, 1, D, dtype=torch.float64)
    y = y[20:]  # uneven
    counts = y.bincount().double()
    head = teach(RidgeHead(D, ridge=2.0, decision=decision), z, y)
    means = torch.stack([z[y == c].mean(dim=0) for c in range(4)])
    scatter = (z - means[y]).T @ (z - means[y])
    penalty = torch.full((D,), 2.0, dtype=torch.float64)
    if decision == "auto":
        variance = scatter.diagonal()
        penalty *= (1 + variance / variance.mean()) / 2
        centred = z - z.mean(dim=0)
        share = counts / len(y)
        target = (one_hot(y, 4) - share) / share.sqrt()
        system = centred.T @ centred + penalty.diag()
        weights = torch.linalg.solve(system, centred.T @ target)
        head.weigh_rules([0.0, 1.0])
        assert torch.allclose(head(z), centred @ weights, rtol=1e-8, atol=1e-8)
        head.weigh_rules([1.0, 0.0])
    inverse = torch.linalg.inv(scatter + penalty.diag()) * len(y)
    freedom = (inverse @ scatter).trace() / len(y)
    away = z[:, None] - means
    expected = -(away @ inverse * away).sum(dim=2) / 2 + freedom / (2 * counts)
    assert difference(head(z).log_softmax(dim=1), expected.log_softmax(dim=1)) <= 1e-8


def forget(head: RidgeHead, classes: list[int]) -> RidgeHead:
    for label in classes:
        share = head.statistics_of_class(label)
        head.subtract_(share)
    head.remove_classes(classes)
    head.solve()
    return head


WIDE = {"decision": "discriminant", "product_features": 1.5}


@pytest.mark.parametrize("options", [{}, WIDE])
def test_forgetting_equals_never_having_learned(options) -> None:
    """After a merge, too."""
    head = learn(RidgeHead(D, remember=True, **options), TASKS, batch=4)
    parts = [halves(task) for task in TASKS]
    merged = learn(head.fresh(), [even for even, _ in parts])
    site = learn(head.fresh(), [odd for _, odd in parts])
    merged.merge_(site)
    merged.solve()
    never = learn(RidgeHead(D, **options), [TASKS[0], TASKS[2]])
    for each in (head, merged):
        forget(each, TASKS[1].classes)
        assert each.classes == never.classes
        assert difference(each(QUERIES), never(QUERIES)) <= 1e-8
        left = len(never.classes) * each.sums.packed_gram.numel()
        assert each.state_elements() == {**never.state_elements(), "remembered": left}
    assert never.statistics_of_class(never.classes[0]) is None
