"""RanPAC, KLDA and FeCAM against what their papers compute, written out sample by sample."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import kstest
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from cifnet_pl.heads import FeCAMHead, KLDAHead, RanPACHead
from cifnet_pl.heads.prototypes import draw_normal
from tests.heads.suite import learn, queries, stream

D = 6
TASKS = stream([[0], [1, 2], [3, 4, 5]])
QUERIES = queries(TASKS)
Z, Y = (torch.cat([getattr(task, name) for task in TASKS]) for name in ("z", "y"))


def test_ranpac_is_ridge_regression_of_indicators_on_its_projection() -> None:
    head = learn(RanPACHead(D, width=30, ridge=2.0, seed=3), TASKS)
    h, q = ((z @ draw_normal(30, D, 3).T).relu() for z in (Z, QUERIES))
    weights = torch.linalg.solve(h.T @ h + 2 * torch.eye(30, dtype=torch.float64), h.T @ one_hot(Y).double())
    assert torch.allclose(head(QUERIES), q @ weights, rtol=1e-8, atol=1e-8)


def test_the_projection_is_standard_normal() -> None:
    drawn = draw_normal(100, 80, seed=1)
    assert kstest(drawn.flatten().numpy(), "norm").pvalue > 0.01
    assert not torch.equal(drawn, draw_normal(100, 80, seed=2))


def test_kldas_features_approximate_the_gaussian_kernel() -> None:
    heads = [KLDAHead(D, width=400, gamma=0.7, seed=seed) for seed in range(100)]
    products = torch.stack([x @ x.T for x in (head._features(QUERIES)[:, 1:] for head in heads)])
    distance = torch.cdist(normalize(QUERIES, dim=1), normalize(QUERIES, dim=1))
    assert torch.allclose(products.mean(dim=0), torch.exp(-0.7 * distance.square()), atol=0.03)


def test_klda_is_linear_discriminant_analysis_on_them() -> None:
    head = learn(KLDAHead(D, width=20, shrinkage=0.3), TASKS)
    x, q = (head._features(z)[:, 1:] for z in (Z, QUERIES))
    means = torch.stack([x[c == Y].mean(dim=0) for c in range(6)])
    within = (x - means[Y]).T @ (x - means[Y]) / len(x)
    inverse = torch.linalg.inv(0.7 * within + 0.3 * within.diagonal().mean() * torch.eye(20, dtype=torch.float64))
    expected = q @ inverse @ means.T - 0.5 * ((means @ inverse) * means).sum(dim=1)
    assert torch.allclose(head(QUERIES), expected, rtol=1e-8, atol=1e-8)


def fecam_scores(shrinkage: float) -> Tensor:
    """Scores as the paper's own code has them, class by class."""
    x, q = (z.sign() * z.abs().sqrt() for z in (Z, QUERIES))
    columns = []
    for c in range(6):
        class_rows = x[c == Y].numpy()
        covariance = np.cov(class_rows, rowvar=False, bias=True)
        rest = covariance[~np.eye(D, dtype=bool)].mean()
        shrunk = covariance + shrinkage * (covariance.trace() / D * np.eye(D) + rest * (1 - np.eye(D)))
        scale = np.sqrt(np.diag(shrunk))
        inverse = torch.from_numpy(np.linalg.pinv(shrunk / np.outer(scale, scale)))
        away = normalize(q, dim=1) - normalize(torch.from_numpy(class_rows.mean(axis=0))[None], dim=1)
        columns.append(-((away @ inverse) * away).sum(dim=1))
    return torch.stack(columns, dim=1)


def test_fecam_is_the_mahalanobis_distance_of_each_class() -> None:
    for shrinkage in (0.5, 1.0):
        head = learn(FeCAMHead(D, shrinkage=shrinkage), TASKS)
        assert torch.allclose(head(QUERIES), fecam_scores(shrinkage), rtol=1e-5, atol=1e-6)
    assert head.state_elements() == {"factors": 6 * 7 * 8 // 2, "moments": 6 * 7}
    assert not math.isnan(head(torch.zeros(1, D)).sum().item())
