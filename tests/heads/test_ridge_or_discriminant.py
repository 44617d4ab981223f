"""RidgeHead's discriminant against scikit-learn's LDA, and the choice between it and ridge regression."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads import ridge as module
from cifnet_pl.heads.confidence import near_copies
from cifnet_pl.heads.ridge import is_better
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.statistics import Discriminant, within_scatter
from cifnet_pl.utilities.errors import UsageError
from tests.heads.suite import learn, queries, stream
from tests.models import learned

D = 6
TASKS = stream([[3], [1, 4], [0, 2, 9]])
QUERIES = queries(TASKS)


class Ridged(EmpiricalCovariance):  # type: ignore[misc]
    """What scikit-learn takes for the covariance of a class: that of the head, whatever the class."""

    covariance: np.ndarray

    def fit(self, x: np.ndarray, y: None = None) -> Ridged:
        self.covariance_ = self.covariance
        return self


def scikit_scores(ridge: float) -> Tensor:
    """Decision values (n, 6) of the queries, with equal priors and ``(S + λI)/n`` for a covariance."""
    z, y = (torch.cat([getattr(task, name) for task in TASKS]).numpy() for name in ("z", "y"))
    centred = np.concatenate([z[y == c] - z[y == c].mean(axis=0) for c in np.unique(y)])
    estimator = Ridged()
    estimator.covariance = (centred.T @ centred + ridge * np.eye(D)) / len(z)
    model = LinearDiscriminantAnalysis("lsqr", covariance_estimator=estimator, priors=np.full(6, 1 / 6))
    return torch.from_numpy(model.fit(z, y).decision_function(QUERIES.numpy()))


@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_scores_are_those_of_linear_discriminant_analysis(ridge: float) -> None:
    head = learn(RidgeHead(D, ridge=ridge, decision="discriminant"), TASKS)
    ours = head(QUERIES)[:, torch.tensor(head.classes).argsort()]
    constant = np.log(1 / 6)  # the prior
    assert torch.allclose(ours + constant, scikit_scores(ridge), rtol=1e-9, atol=1e-8)


def test_the_ridge_is_the_one_of_ridge_regression() -> None:
    ridge, discriminant = (learn(RidgeHead(D, decision=kind), TASKS) for kind in ("ridge", "discriminant"))
    assert ridge.ridge_used == discriminant.ridge_used
    assert not torch.equal(ridge(QUERIES), discriminant(QUERIES))


def test_the_scatter_around_the_mean_of_a_removed_class_stays() -> None:
    """In a file too, in a merge, and until the class's samples are subtracted as well."""
    head = learn(RidgeHead(D, ridge=1.0, decision="discriminant"), TASKS)
    before, kept = head(QUERIES), [0, 2, 3, 5]
    head.remove_classes([1, 2])
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
    with pytest.raises(UsageError, match="a class was removed"):
        again.subtract_(base)


def two_kinds(seed: int, elongated: bool) -> tuple[Tensor, Tensor]:
    """Samples of four classes on a line, which regression on indicators masks, or of noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(4).repeat(60)
    z = torch.randn(240, D, generator=generator, dtype=torch.float64)
    if elongated:
        z[:, 0] = 4.0 * y + 0.5 * z[:, 0]
    return z, y


def test_auto_takes_the_discriminant_where_classes_lie_on_a_line() -> None:
    z, y = two_kinds(0, elongated=True)
    head, ridge = RidgeHead(D, decision="auto"), RidgeHead(D)
    for each in (head, ridge):
        each.begin_task([0, 1, 2, 3])
        each.observe(z, y)
        each.solve()
    assert torch.equal(head(z), ridge(z))  # without stored samples there is nothing to decide by
    head.decide(z, y)
    accuracy = [(each.predict(z) == y).double().mean() for each in (head, ridge)]
    assert accuracy[0] > 0.95 > 0.8 > accuracy[1]
    assert torch.allclose(head.leave_one_out(z, y), head(z), atol=5)
    loaded = RidgeHead(D, decision="auto")
    loaded.load_state_dict(head.state_dict())
    assert torch.equal(loaded(z), head(z))
    before = head(z)
    head.decide(z, y)
    assert torch.equal(head(z), before)


def test_bursts_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each photo's twins vouch for it under the rule that fits them: what counts is how photos without them are named.

    The samples of a group are handed to both rules together.
    """
    generator = torch.Generator().manual_seed(0)
    single, y = two_kinds(0, elongated=True)
    z = single.repeat_interleave(3, dim=0) + 0.01 * torch.randn(720, D, generator=generator, dtype=torch.float64)
    y = y.repeat_interleave(3)
    head = RidgeHead(D, decision="auto")
    head.begin_task([0, 1, 2, 3])
    head.observe(z, y)
    head.solve()
    groups = near_copies(z, y)
    assert groups is not None
    expected = [left_out(z, y)(groups) for left_out in (head._regression_leaving_out, head._discriminant_leaving_out)]
    seen: list[Tensor] = []
    monkeypatch.setattr(module, "is_better", lambda other, current, columns: bool(seen.extend([current, other])))
    head.decide(z, y, groups)
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert not torch.allclose(seen[0], head._regression_leaving_out(z, y)(None))


def test_a_difference_that_may_be_an_accident_changes_nothing() -> None:
    columns = torch.zeros(100, dtype=torch.int64)
    right, wrong = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])

    def scores(hits: slice) -> Tensor:
        found = wrong.repeat(100, 1)
        found[hits] = right
        return found

    few, many = scores(slice(0, 50)), scores(slice(0, 55))
    assert is_better(many, few, columns)  # 5 gained, none lost: more than 4.5 is no accident
    assert not is_better(few, many, columns)
    shifted = scores(slice(10, 65))  # 15 gained, 10 lost
    assert not is_better(shifted, few, columns)
    assert not is_better(few, shifted, columns)
    many[:52] = torch.nan  # nothing is known of them
    assert not is_better(many, few, columns)


def test_noise_keeps_the_decision_along_a_stream() -> None:
    """Twenty tasks of classes that no rule can tell apart: a choice by the larger accuracy would go back and forth."""
    head, kept, changes = RidgeHead(D, decision="auto"), [], 0
    for task in range(20):
        z, y = two_kinds(task, elongated=False)
        head.begin_task(range(4 * task, 4 * task + 4))
        head.observe(z, y + 4 * task)
        head.solve()
        kept.append((z, y + 4 * task))
        before = bool(head.discriminates)
        head.decide(torch.cat([z for z, _ in kept]), torch.cat([y for _, y in kept]))
        changes += before != bool(head.discriminates)
    assert changes <= 2


def test_an_unknown_decision_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean discriminant"):
        RidgeHead(3, decision="diskriminant")  # type: ignore[arg-type]


def test_a_class_of_one_sample_is_unknown_without_it() -> None:
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = torch.stack([torch.cat([torch.tensor([float(len(rows))]), rows.sum(0)]) for rows in (z[:4], z[4:])])
    x = torch.cat([torch.ones(5, 1, dtype=torch.float64), z], dim=1)
    rule = Discriminant.from_sums(within_scatter(x.T @ x, sums), sums, torch.tensor(5.0), 1.0)
    columns, ones = torch.tensor([0, 0, 0, 0, 1]), torch.ones(5, dtype=torch.float64)
    scores = rule.leaving_out(z, columns, ones)(None)
    assert scores[4, 1].isnan()
    assert scores[4, 0].isfinite()
    assert scores[:4].isfinite().all()


def test_a_model_decides_by_its_buffer_and_a_run_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def automatic(width: int) -> RidgeHead:
        return RidgeHead(width, decision="auto")

    with pytest.raises(UsageError, match="decision: auto needs stored samples"):
        CIFNetModule("pixels:2", head=automatic)
    assert CIFNetModule("pixels:2", head=automatic, buffer=CalibrationBuffer(12)).buffer is not None
    asked = []
    monkeypatch.setattr(RidgeHead, "decide", lambda head, z, y, groups: asked.append(len(y)))
    learned("ridge-auto")
    assert asked == [12, 12, 12]
