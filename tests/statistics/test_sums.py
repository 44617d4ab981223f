"""The triangles that hold sums, against LAPACK."""

import pytest
import torch
from scipy.linalg.lapack import dtrttf

from cifnet_pl.statistics import Sums
from cifnet_pl.statistics.sums import add_product_


@pytest.mark.parametrize("width", [1, 2, 7, 300, 301])
def test_the_format_is_that_of_lapack_and_holds_each_number_once(width: int) -> None:
    half = torch.randn(width, width, dtype=torch.float64)
    matrix = half @ half.T
    matrix = matrix.tril() + matrix.tril(-1).T
    theirs, _ = dtrttf(matrix.numpy(), transr="N", uplo="L")
    sums = Sums(width)
    packed = sums.packed_gram
    for times in (1, 2):
        add_product_(packed, matrix, torch.eye(width, dtype=torch.float64))
        assert torch.equal(packed.T.flatten(), times * torch.from_numpy(theirs))
        assert torch.equal(sums.gram, times * matrix)
    assert packed.numel() == width * (width + 1) // 2
