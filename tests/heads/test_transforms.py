"""Transforms of embeddings."""

import numpy as np
import torch

from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.ridge import TRANSFORMS, Products, directions, l2

D = 400
products = TRANSFORMS["products"]


def test_products_are_the_embedding_and_a_quarter_of_the_quadratic_kernel():
    draw = np.random.default_rng(0)
    z = torch.from_numpy(draw.random((20, D)) + draw.random((20, 1)) * draw.random((1, D)))
    found = products(z)
    assert found.shape == (20, D + 3 * D // 2)
    assert torch.equal(found[:, :D], l2(z))
    cosine = l2(z) @ l2(z).T
    quadratic = found[:, D:] @ found[:, D:].T
    # 600 products, each of variance at most 9 - 1 in units of (x·y)²/4: the mean is off by 12 % or so.
    assert (quadratic - cosine.square() / 4).abs().max() < 4 * 0.12 / 4
    assert (quadratic.mean() / cosine.square().mean() - 0.25).abs() < 0.05


def test_directions_are_standard_normal_and_the_same_in_every_release():
    found = directions(D)
    assert found.shape == (3 * D, D)
    assert abs(found.mean()) < 0.01
    assert abs(found.std() - 1) < 0.01
    directions.cache_clear()
    assert torch.equal(directions(D), found)
    torch.testing.assert_close(
        directions(2)[0],
        torch.tensor([0.5934001694579385, 1.5828095046238335], dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )


def test_products_of_zero_embeddings_are_zero():
    assert not products(torch.zeros(3, 5)).any()


def test_products_tell_apart_what_no_line_can():
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(600, 2, generator=draw).double()
    y = (z[:, 0] * z[:, 1] > 0).long()
    right = {}
    for transform in ("l2", "products"):
        head = RidgeHead(2, transform=transform)
        head.begin_task([0, 1])
        head.observe(z, y)
        head.solve()
        right[transform] = (head.predict(z) == y).double().mean().item()
    assert right["l2"] < 0.7
    assert right["products"] > 0.85


def test_a_head_keeps_its_directions_on_its_device_and_out_of_its_state():
    head = RidgeHead(4, transform="products", dtype="float32")
    assert isinstance(head.transformed, Products)
    assert head.transformed.directions.dtype == torch.float32
    assert head.to("meta").transformed.directions.device.type == "meta"
    assert not [name for name in head.state_dict() if "directions" in name]
    shared = RidgeHead(4, transform="products").transformed.directions
    assert shared.data_ptr() == directions(4).data_ptr()  # not a copy of them
