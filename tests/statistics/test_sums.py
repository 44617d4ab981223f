"""Sums over rows, and the triangles that hold them: against LAPACK, and against what they were made
from.
"""

import pytest
import torch
from scipy.linalg.lapack import dtrttf
from torch import Tensor

from cifnet_pl.statistics import Sums
from cifnet_pl.statistics.sums import (
    BLOCK,
    add_product_,
    packed_shape,
    unpack,
)


def samples(
    n: int, width: int = 3, classes: int = 2, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64)
    index = torch.randint(0, classes, (n,), generator=generator)
    return x, index, torch.rand(n, generator=generator, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("per_class", [False, True])
def test_sums_are_what_they_say(per_class: bool) -> None:
    x, index, weight = samples(20)
    sums = Sums(3, 2, per_class=per_class)
    sums.add(x, index, weight)
    outer = weight[:, None, None] * x[:, :, None] * x[:, None, :]
    assert torch.allclose(sums.gram, outer.sum(dim=0))
    assert int(sums.seen) == 20
    assert sums.mass.item() == pytest.approx(weight.sum().item())
    for c in range(2):
        of_class = index == c
        assert torch.allclose(
            sums.class_sums[c], (weight[of_class, None] * x[of_class]).sum(dim=0)
        )
        assert int(sums.counts[c]) == int(of_class.sum())
        if per_class:
            assert torch.allclose(sums.class_gram(c), outer[of_class].sum(dim=0))
    assert ("class_grams" in sums.state_dict()) == per_class


def test_the_gram_matrix_is_whole_whenever_it_is_read() -> None:
    width = 3 * BLOCK
    x, index, weight = samples(9, width=width)
    expected = x.T @ (weight[:, None] * x)
    added, merged, shown, taken, loaded, reduced = (Sums(width, 2) for _ in range(6))
    for sums in (added, merged, shown, taken, reduced):
        sums.add(x, index, weight)
    assert torch.allclose(taken.gram, expected, rtol=1e-12, atol=1e-12)
    merged.merge(added)
    shown.add_rows_of(added)
    taken.merge(added, sign=-1)
    loaded.load_state_dict(added.state_dict())
    reduced.reduce(lambda tensor: tensor.mul_(2))
    for sums, times in ((merged, 2), (shown, 2), (taken, 0), (loaded, 1), (reduced, 2)):
        assert torch.allclose(sums.gram, times * expected, rtol=1e-12, atol=1e-12)
        assert sums.mass.item() == pytest.approx(times * added.mass.item(), abs=1e-12)
        assert sums.seen == times * 9


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
