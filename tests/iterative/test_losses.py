"""Losses and their gradients equal those of the reference code (tests/data/README.md)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from cifnet_pl.iterative import losses
from cifnet_pl.iterative.podnet import CosineClassifier
from cifnet_pl.iterative.tagfex import MergeAttention

FILE = Path(__file__).parents[1] / "data" / "iterative_losses.npz"
OLD = 6


@pytest.fixture(scope="module")
def given():
    with np.load(FILE) as content:
        return {name: torch.from_numpy(content[name]) for name in content.files}


def assert_equal(ours, theirs):
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    norm = torch.linalg.vector_norm
    assert norm(ours - theirs) <= 1e-9 * norm(theirs)


def distilled(g):
    return losses.distillation(g["logits"], g["teacher"])


def class_weights(g, beta):
    return losses.effective_weights(g["foster_counts"], beta)


def boosted(g):
    others = (g["foster_fe_logits"], g["teacher"], g["y"], class_weights(g, 0.96))
    return losses.boosting(g["logits"], *others)


def compressed(g):
    weights = class_weights(g, 0.97)
    return losses.balanced_distillation(g["foster_student"], g["logits"], weights)


def pooled(g):
    maps = [[g[f"pod_fmap_{way}{i}"] for i in (0, 1)] for way in ("new", "old")]
    return losses.pooled_maps_distance(*maps)


def auxiliary(g):
    targets = losses.auxiliary_targets(g["y"], OLD)
    assert torch.equal(targets, g["aux_targets"])
    return cross_entropy(g["logits"], g["y"]) + cross_entropy(g["aux_logits"], targets)


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("wa_kd", distilled),
        ("wa_aligned", lambda g: losses.align_weights(g["fc_weight"], 4)),
        ("pod_flat", lambda g: losses.cosine_distance(g["z"], g["z_old"])),
        ("der_loss", auxiliary),
        ("foster_weights_beta1", lambda g: class_weights(g, 0.96)),
        ("tagfex_distill",
         lambda g: losses.info_nce(g["tagfex_predicted"], g["tagfex_old"])),
        ("create_weight", lambda g: losses.margin_weights(g["create_error"], 4.0)),
        ("create_contrastive",
         lambda g: losses.separation(g["create_latent"], g["y"], g["create_weight"])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_value(name, compute, given):
    assert_equal(compute(given), given[name])


@pytest.mark.parametrize(
    ("name", "gradient", "by", "compute"),
    [
        ("wa_loss", "wa_grad", "logits",
         lambda g: 0.4 * cross_entropy(g["logits"], g["y"]) + 0.6 * distilled(g)),
        ("pod_spatial", "pod_spatial_grad0", "pod_fmap_new0", pooled),
        ("pod_nca", "pod_nca_grad", "pod_logits",
         lambda g: losses.nca(g["pod_logits"], g["y"])),
        ("foster_boosting", "foster_boosting_grad", "logits", boosted),
        ("foster_bkd", "foster_bkd_grad", "foster_student", compressed),
        ("tagfex_infonce", "tagfex_infonce_grad", "tagfex_embedding",
         lambda g: losses.info_nce(g["tagfex_embedding"], g["tagfex_embedding"])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_loss_and_gradient(name, gradient, by, compute, given):
    leaf = given[by].clone().requires_grad_()
    loss = compute({**given, by: leaf})
    assert_equal(loss.detach(), given[name])
    assert_equal(torch.autograd.grad(loss, leaf)[0], given[gradient])


def test_pod_factor(given):
    expected = pytest.approx(float(given["pod_factor"]), rel=1e-12)
    assert losses.pod_factor(10, 4) == expected


def test_proxies(given):
    classifier = CosineClassifier(3).double()
    for part in ("old", "new"):
        proxies = torch.nn.Parameter(given[f"pod_proxies_{part}"])
        classifier.proxies.append(proxies)
    classifier.sigma.data = given["pod_sigma"]
    assert_equal(classifier(given["z"]).detach(), given["pod_logits"])


def test_merge_attention(given):
    attention = MergeAttention(16, 4).double()
    attention.query.data = given["tagfex_weight_q"]
    for part, short in (("specific", "ts"), ("agnostic", "ta")):
        getattr(attention, f"key_{part}").data = given[f"tagfex_weight_k_{short}"]
        getattr(attention, f"value_{part}").data = given[f"tagfex_weight_v_{short}"]
    merged = attention(given["tagfex_ts"], given["tagfex_ta"])
    assert_equal(merged.detach(), given["tagfex_merged"])


def test_transfer(given):
    new = given["y"] >= OLD
    scores = given["logits"][new][:, OLD:]
    merged = given["tagfex_trans_logits"][new].requires_grad_()
    loss = losses.transfer(scores, merged)
    assert not loss.requires_grad
    assert_equal(loss.mean(), given["tagfex_transfer"])


def test_binary_distillation():
    scores = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    targets = torch.tensor([[0.3, 1.0], [0.0, 0.5]])
    p = scores.sigmoid()
    wanted = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum() / 2
    loss = losses.binary_distillation(scores, targets)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
