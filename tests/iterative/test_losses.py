"""Losses and their gradients equal those of the reference code (tests/data/README.md)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from cifnet_pl.iterative import METHODS, losses
from cifnet_pl.iterative.podnet import CosineClassifier
from cifnet_pl.iterative.tagfex import MergeAttention
from cifnet_pl.utilities.plugins import title_of

FILE = Path(__file__).parents[1] / "data" / "iterative_losses.npz"
OLD = 6


@pytest.fixture(scope="module")
def given():
    with np.load(FILE) as content:
        return {name: torch.from_numpy(content[name]) for name in content.files}


def test_methods_have_the_names_of_the_published_rows_in_a_report():
    names = {title_of(method) for method in METHODS}
    assert names >= {"iCaRL", "WA", "PODNet", "DER", "MEMO", "CREATE", "TagFex"}


def assert_equal(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert torch.linalg.vector_norm(ours - theirs) <= 1e-9 * torch.linalg.vector_norm(
        theirs
    )


def leaf(tensor):
    return tensor.clone().requires_grad_()


def assert_loss(loss, value, wanted=None, by=None):
    assert_equal(loss.detach(), value)
    if wanted is not None:
        assert_equal(torch.autograd.grad(loss, by)[0], wanted)


def test_wa(given):
    logits = leaf(given["logits"])
    distilled = losses.distillation(logits[:, :OLD], given["teacher"])
    assert_loss(distilled, given["wa_kd"])
    loss = 0.4 * functional.cross_entropy(logits, given["y"]) + 0.6 * distilled
    assert_loss(loss, given["wa_loss"], given["wa_grad"], logits)


def test_alignment(given):
    assert_equal(losses.align_weights(given["fc_weight"], 4), given["wa_aligned"])


def test_pooled_maps(given):
    first = leaf(given["pod_fmap_new0"])
    old = [given["pod_fmap_old0"], given["pod_fmap_old1"]]
    loss = losses.pooled_maps_distance([first, given["pod_fmap_new1"]], old)
    assert_loss(loss, given["pod_spatial"], given["pod_spatial_grad0"], first)


def test_pod_of_embeddings(given):
    assert_equal(losses.cosine_distance(given["z"], given["z_old"]), given["pod_flat"])
    assert losses.pod_factor(10, 4) == pytest.approx(
        float(given["pod_factor"]), rel=1e-12
    )


def test_proxies(given):
    classifier = CosineClassifier(16, 3).double()
    classifier.proxies.extend(
        [torch.nn.Parameter(given[f"pod_proxies_{part}"]) for part in ("old", "new")]
    )
    classifier.sigma.data = given["pod_sigma"]
    assert_equal(classifier(given["z"]).detach(), given["pod_logits"])


def test_nca(given):
    scores = leaf(given["pod_logits"])
    assert_loss(
        losses.nca(scores, given["y"]), given["pod_nca"], given["pod_nca_grad"], scores
    )


def test_auxiliary(given):
    targets = losses.auxiliary_targets(given["y"], OLD)
    assert torch.equal(targets, given["aux_targets"])
    auxiliary = functional.cross_entropy(given["aux_logits"], targets)
    assert_equal(
        functional.cross_entropy(given["logits"], given["y"]) + auxiliary,
        given["der_loss"],
    )


def test_foster(given):
    weights = [
        losses.effective_weights(given["foster_counts"], beta) for beta in (0.96, 0.97)
    ]
    assert_equal(weights[0], given["foster_weights_beta1"])
    assert_equal(weights[1], given["foster_weights_beta2"])
    logits = leaf(given["logits"])
    student = leaf(given["foster_student"])
    loss = losses.boosting(
        logits, given["foster_fe_logits"], given["teacher"], given["y"], weights[0]
    )
    assert_loss(loss, given["foster_boosting"], given["foster_boosting_grad"], logits)
    loss = losses.balanced_distillation(student, given["logits"], weights[1])
    assert_loss(loss, given["foster_bkd"], given["foster_bkd_grad"], student)


def test_info_nce(given):
    embedding = leaf(given["tagfex_embedding"])
    assert_loss(
        losses.info_nce(embedding, embedding),
        given["tagfex_infonce"],
        given["tagfex_infonce_grad"],
        embedding,
    )
    assert_equal(
        losses.info_nce(given["tagfex_predicted"], given["tagfex_old"]),
        given["tagfex_distill"],
    )


def test_merge_attention(given):
    attention = MergeAttention(16, 4).double()
    names = {"query": "q", "key_specific": "k_ts", "key_agnostic": "k_ta"}
    for ours, theirs in {
        **names,
        "value_specific": "v_ts",
        "value_agnostic": "v_ta",
    }.items():
        getattr(attention, ours).data = given[f"tagfex_weight_{theirs}"]
    assert_equal(
        attention(given["tagfex_ts"], given["tagfex_ta"]).detach(),
        given["tagfex_merged"],
    )


def test_transfer(given):
    new = given["y"] >= OLD
    scores = given["logits"][new][:, OLD:]
    merged = leaf(given["tagfex_trans_logits"][new])
    loss = losses.transfer(scores, merged)
    assert not loss.requires_grad
    assert_equal(loss.mean(), given["tagfex_transfer"])


def test_relative_margin(given):
    assert_equal(
        losses.relative_margin(given["create_error"]), given["create_confusion"]
    )
    assert_equal(losses.margin_weights(given["create_error"]), given["create_weight"])


@pytest.mark.parametrize("name", ["contrastive", "contrastive_unweighted"])
def test_separation(name, given):
    if name == "contrastive":
        weights = given["create_weight"]
    else:
        weights = torch.ones(24, dtype=torch.float64)
    assert_equal(
        losses.separation(given["create_latent"], given["y"], weights),
        given[f"create_{name}"],
    )


def test_binary_distillation():
    scores = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    targets = torch.tensor([[0.3, 1.0], [0.0, 0.5]])
    p = scores.sigmoid()
    wanted = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum() / 2
    assert losses.binary_distillation(scores, targets) == pytest.approx(
        float(wanted), rel=1e-6
    )
