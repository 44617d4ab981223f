"""Prototype heads against scikit-learn, and what their papers compute, sample by sample."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize

from cifnet_pl import heads
from cifnet_pl.heads.trial import learn, queries, stream
from cifnet_pl.statistics import draw_normal
from cifnet_pl.utilities.errors import CifnetError
from tests.heads.suite import scans, teach, teach_pairs

X, DIGITS = scans()
# Forty of each digit, so that equal priors and pooled covariances mean the same to scikit-learn and
# to us.
ROWS = torch.cat([DIGITS.eq(c).nonzero().flatten()[:40] for c in range(10)])
Z = X[ROWS]
Y = DIGITS[ROWS]
REST = X[~torch.isin(torch.arange(len(X)), ROWS)]


def learned(head: heads.Head):
    return teach_pairs(head, Z, Y)


def test_ncm_scores() -> None:
    means = torch.stack([Z[Y.eq(c)].mean(dim=0) for c in range(10)])
    euclidean = learned(heads.NCMHead(64, metric="euclidean"))(REST)
    expected = -(REST[:, None] - means).square().sum(dim=2)
    assert torch.allclose(euclidean, expected, rtol=1e-12, atol=1e-12)
    head = learned(heads.NCMHead(64))
    cosine = torch.cosine_similarity(REST[:, None], means, dim=2)
    assert torch.allclose(head(REST), cosine, rtol=1e-12)
    assert head.state_elements() == {"moments": 10 * 65}


@pytest.mark.parametrize("shrinkage", [0.05, 1.0])
def test_slda_is_linear_discriminant_analysis(shrinkage: float) -> None:
    reference = LinearDiscriminantAnalysis(
        solver="lsqr", shrinkage=shrinkage, priors=np.full(10, 0.1)
    )
    reference.fit(Z.numpy(), Y.numpy())
    head = learned(heads.SLDAHead(64, shrinkage=shrinkage))
    ours = head(REST)
    theirs = torch.from_numpy(reference.decision_function(REST.numpy()))
    # Scores are fixed up to what is common to all classes.
    ours, theirs = (
        s - s.mean(dim=1, keepdim=True) for s in (ours, theirs + np.log(10))
    )
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    posterior = torch.from_numpy(reference.predict_proba(REST.numpy()))
    assert torch.allclose(head.probabilities(REST), posterior, rtol=1e-7, atol=1e-12)


def test_classes_of_one_sample_each_and_sums_that_overflow() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    y = torch.tensor([0, 1])
    for shrinkage in (0.1, "gcv"):
        assert teach(heads.SLDAHead(2, shrinkage), z, y).predict(z).equal(y)
    with pytest.raises(CifnetError, match="not positive definite"):
        teach(heads.SLDAHead(2, 0.1, "float32"), 1e20 * z, y)


def test_gcv_chooses_the_ridge_of_regression_on_the_same_sums() -> None:
    slda = learned(heads.SLDAHead(64))
    ridge = learned(heads.RidgeHead(64))
    alpha = slda.shrinkage_used.item()
    scatter = slda.within_scatter()
    # α of S/n is the ridge λ of the sums.
    of_sums = alpha / (1 - alpha) * scatter.trace().item() / 64
    assert of_sums == pytest.approx(ridge.ridge_used.item(), rel=1e-9)


def test_a_removed_class_leaves_only_its_scatter() -> None:
    head = learned(heads.SLDAHead(64, shrinkage=0.1))
    scatter = head.within_scatter()
    scores = head(REST)
    head.remove_classes([2, 9])
    limit = 1e-9 * scatter.abs().max().item()
    assert torch.allclose(head.within_scatter(), scatter, rtol=0, atol=limit)
    kept = [0, 1, 3, 4, 5, 6, 7, 8]
    assert torch.equal(head(REST), scores[:, kept])
    head.solve()
    assert torch.allclose(head(REST), scores[:, kept], rtol=1e-8, atol=1e-8)


D = 6
TASKS = stream([[0], [1, 2], [3, 4, 5]])
QUERIES = queries(TASKS)
SAMPLES, LABELS = (
    torch.cat([getattr(task, name) for task in TASKS]) for name in ("z", "y")
)


def test_ranpac_is_acil_on_its_projection() -> None:
    head = learn(heads.RanPACHead(D, width=30, ridge=2.0, seed=3), TASKS)
    same = heads.ACILHead(D, ridge=2.0, projection=draw_normal(30, D, 3))
    assert torch.equal(head(QUERIES), learn(same, TASKS)(QUERIES))


def test_kldas_features_approximate_the_gaussian_kernel() -> None:
    products = torch.zeros(len(QUERIES), len(QUERIES), dtype=torch.float64)
    for seed in range(50):
        x = heads.KLDAHead(D, width=400, gamma=0.7, seed=seed)._features(QUERIES)[:, 1:]
        products += x @ x.T / 50
    unit = normalize(QUERIES, dim=1)
    kernel = torch.exp(-0.7 * torch.cdist(unit, unit).square())
    assert torch.allclose(products, kernel, atol=0.03)


def test_klda_is_linear_discriminant_analysis_on_them() -> None:
    head = learn(heads.KLDAHead(D, width=20, shrinkage=0.3), TASKS)
    x, q = (head._features(z)[:, 1:] for z in (SAMPLES, QUERIES))
    expected = teach(heads.SLDAHead(20, shrinkage=0.3), x, LABELS)(q)
    assert torch.allclose(head(QUERIES), expected, rtol=1e-8, atol=1e-8)


def fecam_scores(shrinkage: float):
    """Scores as the paper's own code has them, class by class."""
    x, q = (z.sign() * z.abs().sqrt() for z in (SAMPLES, QUERIES))
    columns = []
    for c in range(6):
        class_rows = x[c == LABELS].numpy()
        covariance = np.cov(class_rows, rowvar=False, bias=True)
        rest = covariance[~np.eye(D, dtype=bool)].mean()
        prior = covariance.trace() / D * np.eye(D) + rest * (1 - np.eye(D))
        shrunk = covariance + shrinkage * prior
        scale = np.sqrt(np.diag(shrunk))
        inverse = torch.from_numpy(np.linalg.pinv(shrunk / np.outer(scale, scale)))
        mean = torch.from_numpy(class_rows.mean(axis=0))
        away = normalize(q, dim=1) - normalize(mean, dim=0)
        columns.append(-((away @ inverse) * away).sum(dim=1))
    return torch.stack(columns, dim=1)


def test_fecam_is_the_mahalanobis_distance_of_each_class() -> None:
    for shrinkage in (0.5, 1.0):
        head = learn(heads.FeCAMHead(D, shrinkage=shrinkage), TASKS)
        expected = fecam_scores(shrinkage)
        assert torch.allclose(head(QUERIES), expected, rtol=1e-5, atol=1e-6)
    assert head.state_elements() == {"factors": 6 * 7 * 8 // 2, "moments": 6 * 7}
    assert not math.isnan(head(torch.zeros(1, D)).sum().item())


def test_fecam_of_a_class_of_one_image_in_float32() -> None:
    """Its covariance is zero up to rounding."""
    z = 3 * torch.randn(21, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0] * 20 + [1])
    scores = {}
    for dtype in ("float32", "float64"):
        scores[dtype] = teach(heads.FeCAMHead(64, dtype=dtype), z, labels)(z)
    assert torch.allclose(scores["float32"], scores["float64"], rtol=1e-2)
