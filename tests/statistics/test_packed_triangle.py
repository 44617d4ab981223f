"""Packed symmetric matrices against LAPACK's own routine, and against what they were packed from."""

from __future__ import annotations

import pytest
import torch
from scipy.linalg.lapack import dtrttf

from cifnet_pl.statistics import Sums
from cifnet_pl.statistics.sums import pack, packed_shape, unpack


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 300, 301])
def test_each_number_is_held_once_and_comes_back(width: int) -> None:
    half = torch.randn(width, width, dtype=torch.float64)
    matrix = half @ half.T
    matrix = matrix.tril() + matrix.tril(-1).T
    packed = pack(matrix.tril())  # what stands above the diagonal is not read
    assert packed.shape == packed_shape(width)
    assert packed.numel() == width * (width + 1) // 2
    assert torch.equal(unpack(packed, width), matrix)
    assert torch.equal(pack(torch.stack([matrix, 2 * matrix]))[1], 2 * packed)


@pytest.mark.parametrize("width", [5, 6])
def test_the_format_is_that_of_lapack(width: int) -> None:
    matrix = torch.arange(1.0, width**2 + 1, dtype=torch.float64).reshape(width, width)
    theirs, info = dtrttf(matrix.numpy(), transr="N", uplo="L")
    assert info == 0
    rows, columns = packed_shape(width)
    assert torch.equal(pack(matrix), torch.from_numpy(theirs.reshape(columns, rows)).T)


def test_sums_hold_a_triangle_and_a_square_only_while_rows_are_added() -> None:
    sums, x = Sums(6, 2), torch.randn(9, 6, dtype=torch.float64)
    y = torch.arange(9) % 2
    sums.add(x[:4], y[:4])
    state = sums.state_dict()
    again = Sums(6, 2)
    again.load_state_dict(state)
    for each in (sums, again):
        each.add(x[4:], y[4:])
    assert torch.equal(sums.gram, again.gram)
    assert torch.allclose(sums.gram, x.T @ x)
    assert sums.products.shape == (7, 3)
    sums.subtract_products(x[:2])
    assert torch.allclose(sums.gram, x[2:].T @ x[2:])


def test_squares_of_older_files_become_triangles() -> None:
    sums, x = Sums(5, 2, per_class=True), torch.randn(9, 5, dtype=torch.float64)
    sums.add(x, torch.arange(9) % 2)
    state = sums.state_dict()
    older = state | {"products": sums.gram, "class_grams": torch.stack([sums.class_gram(c) for c in (0, 1)])}
    again = Sums(5, per_class=True)
    again.load_state_dict(older)
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(again.state_dict()[key], value) for key, value in state.items())
