from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.covariance import oas
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from cifnet_pl.heads import NCMHead, RidgeHead, SLDAHead
from cifnet_pl.heads.prototypes import oas_shrinkage
from cifnet_pl.utilities.errors import CheckpointError, UsageError

_images, _targets = load_digits(return_X_y=True)
# Forty of each digit, so that equal priors and pooled covariances mean the same to scikit-learn and to us.
ROWS = np.concatenate([np.flatnonzero(_targets == c)[:40] for c in range(10)])
Z, Y = torch.from_numpy(_images[ROWS] / 16), torch.from_numpy(_targets[ROWS]).long()
REST = torch.from_numpy(np.delete(_images, ROWS, axis=0) / 16)


def learned(head: NCMHead | SLDAHead | RidgeHead, weight: Tensor | None = None) -> NCMHead | SLDAHead | RidgeHead:
    """The head after five tasks of two digits."""
    for k in range(5):
        rows = (Y // 2).eq(k).nonzero().flatten()
        head.begin_task([2 * k, 2 * k + 1])
        head.observe(Z[rows], Y[rows], weight if weight is None else weight[rows])
        head.solve()
    return head


# ---------------------------------------------------------------------- nearest class mean


def test_ncm_scores() -> None:
    means = torch.stack([Z[Y.eq(c)].mean(dim=0) for c in range(10)])
    euclidean = learned(NCMHead(64, metric="euclidean"))(REST)
    assert torch.allclose(euclidean, -(REST[:, None] - means).square().sum(dim=2), rtol=1e-12, atol=1e-12)
    cosine = learned(NCMHead(64))(REST)
    assert torch.allclose(cosine, torch.cosine_similarity(REST[:, None], means, dim=2), rtol=1e-12)


def test_ncm_keeps_one_vector_a_class_and_no_gram_matrix() -> None:
    head = learned(NCMHead(64))
    assert head.state_elements() == {"moments": 10 * 65}
    assert "sums.products" not in head.state_dict()


def test_ncm_weights_are_copies() -> None:
    weight = 1 + (torch.arange(len(Y)) % 3).double()
    head = learned(NCMHead(64), weight)
    assert isinstance(head, NCMHead)
    mean = (weight[Y == 4, None] * Z[Y == 4]).sum(dim=0) / weight[Y == 4].sum()
    assert torch.allclose(head.means[4], mean, rtol=1e-12)


def test_ncm_refuses_another_metric_and_another_width() -> None:
    with pytest.raises(UsageError, match="did you mean cosine"):
        NCMHead(4, metric="cosinus")
    with pytest.raises(CheckpointError, match="another width"):
        NCMHead(63).load_state_dict(learned(NCMHead(64)).state_dict())


# ---------------------------------------------------------------------- linear discriminant analysis


@pytest.mark.parametrize("shrinkage", [0.05, 0.5, 1.0])
def test_slda_is_linear_discriminant_analysis(shrinkage: float) -> None:
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage, priors=np.full(10, 0.1))
    reference.fit(Z.numpy(), Y.numpy())
    head = learned(SLDAHead(64, shrinkage=shrinkage))
    ours, theirs = head(REST), torch.from_numpy(reference.decision_function(REST.numpy()))
    # Scores are fixed up to what is common to all classes.
    ours, theirs = (s - s.mean(dim=1, keepdim=True) for s in (ours, theirs + np.log(10)))
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    posterior = torch.from_numpy(reference.predict_proba(REST.numpy()))
    assert torch.allclose(head.probabilities(REST), posterior, rtol=1e-7, atol=1e-12)


def test_oas_is_that_of_scikit_learn_on_samples_centred_by_class() -> None:
    centred = Z - torch.stack([Z[Y.eq(c)].mean(dim=0) for c in range(10)])[Y]
    head = learned(SLDAHead(64, shrinkage="oas"))
    assert isinstance(head, SLDAHead)
    assert head.shrinkage_used.item() == pytest.approx(oas(centred.numpy(), assume_centered=True)[1], rel=1e-9)
    assert oas_shrinkage(torch.eye(5, dtype=torch.float64), 10) == 1.0


def test_gcv_gives_the_directions_of_the_ridge_regression_it_was_chosen_for() -> None:
    slda, ridge = learned(SLDAHead(64)), learned(RidgeHead(64))
    assert isinstance(slda, SLDAHead)
    assert isinstance(ridge, RidgeHead)
    alpha, scatter = slda.shrinkage_used.item(), slda.within_scatter()
    # α of S/n is the ridge λ of the sums.
    assert alpha / (1 - alpha) * scatter.trace().item() / 64 == pytest.approx(ridge.ridge_used.item(), rel=1e-9)
    # Both weights span the same space once what is common to all classes is taken out.
    ours = slda.weights[1:] - slda.weights[1:].mean(dim=1, keepdim=True)
    theirs = ridge.weights[1:]
    residual = ours - theirs @ torch.linalg.lstsq(theirs, ours, driver="gelsd").solution
    assert residual.norm() < 1e-8 * ours.norm()


def test_slda_of_classes_of_one_sample_is_the_nearest_mean() -> None:
    head, nearest = SLDAHead(64), NCMHead(64, metric="euclidean")
    for each in (head, nearest):
        each.begin_task([3, 5])
        each.observe(Z[[0, 80]], torch.tensor([3, 5]))
        each.solve()
    assert torch.equal(head.predict(REST), nearest.predict(REST))


def test_a_removed_class_leaves_only_its_scatter() -> None:
    head = learned(SLDAHead(64, shrinkage=0.1))
    assert isinstance(head, SLDAHead)
    scatter, scores = head.within_scatter(), head(REST)
    head.remove_classes([2, 9])
    assert torch.allclose(head.within_scatter(), scatter, rtol=0, atol=1e-9 * scatter.abs().max().item())
    kept = [0, 1, 3, 4, 5, 6, 7, 8]
    assert torch.equal(head(REST), scores[:, kept])
    head.solve()
    assert torch.allclose(head(REST), scores[:, kept], rtol=1e-8, atol=1e-8)


def test_gcv_leaves_the_targets_of_removed_classes_out() -> None:
    """By the score of the literal hat matrix: of what is removed, deviations from the mean stay, without target."""
    head = learned(SLDAHead(64))
    assert isinstance(head, SLDAHead)
    head.remove_classes(list(range(3, 10)))
    head.solve()
    mean = torch.stack([Z[c == Y].mean(dim=0) for c in range(10)])
    stays = (Y < 3)[:, None]
    x = torch.cat([stays.double(), torch.where(stays, Z, Z - mean[Y])], dim=1)
    targets = torch.nn.functional.one_hot(Y, 10)[:, :3].double() * stays
    n = len(x)

    def score(ridge: float) -> float:
        penalty = ridge * torch.eye(65, dtype=torch.float64)
        penalty[0, 0] = 0
        hat = x @ torch.linalg.solve(x.T @ x + penalty, x.T)
        return (n * (targets - hat @ targets).square().sum() / (n - hat.trace()) ** 2).item()

    alpha, step = head.shrinkage_used.item(), 10**0.1
    chosen = alpha / (1 - alpha) * head.within_scatter().trace().item() / 64
    assert score(chosen) <= min(score(chosen * step), score(chosen / step))


@pytest.mark.parametrize("shrinkage", [0, -0.1, 1.1, float("nan"), "ledoit"])
def test_an_impossible_shrinkage_is_refused(shrinkage: float | str) -> None:
    with pytest.raises(UsageError, match="shrinkage"):
        SLDAHead(4, shrinkage=shrinkage)
