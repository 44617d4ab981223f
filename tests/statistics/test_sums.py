"""The triangles that hold sums, against LAPACK."""

import pytest
import torch
from scipy.linalg.lapack import dtrttf

from cifnet_pl.statistics.sums import add_product_, packed_shape, unpack


@pytest.mark.parametrize("width", [1, 2, 7, 300, 301])
def test_the_format_is_that_of_lapack_and_holds_each_number_once(width: int) -> None:
    half = torch.randn(width, width, dtype=torch.float64)
    matrix = half @ half.T
    matrix = matrix.tril() + matrix.tril(-1).T
    theirs, _ = dtrttf(matrix.numpy(), transr="N", uplo="L")
    packed = torch.zeros(packed_shape(width), dtype=torch.float64)
    add_product_(packed, matrix, torch.eye(width, dtype=torch.float64))
    assert packed.numel() == width * (width + 1) // 2
    assert torch.equal(packed.T.flatten(), torch.from_numpy(theirs))
    assert torch.equal(unpack(packed, width), matrix)
    add_product_(packed, matrix, torch.eye(width, dtype=torch.float64))
    assert torch.equal(unpack(packed, width), 2 * matrix)
