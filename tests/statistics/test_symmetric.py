from __future__ import annotations

import pytest
import torch

from cifnet_pl.statistics.sums import BLOCK, add_lower_, mirror_

WIDTHS = [1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, 3 * BLOCK + 1]


@pytest.mark.parametrize("width", WIDTHS)
def test_added_and_mirrored_it_is_the_whole_product(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, more = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (7, 1))
    weight = torch.rand(7, generator=generator, dtype=torch.float64)
    gram = torch.zeros(width, width, dtype=torch.float64)
    add_lower_(gram, x * weight[:, None], x)
    add_lower_(gram, more, more)
    mirror_(gram)
    assert torch.allclose(gram, x.T @ (weight[:, None] * x) + more.T @ more, rtol=1e-13, atol=1e-13)


def test_what_is_above_the_diagonal_is_left_out() -> None:
    gram = torch.zeros(4 * BLOCK, 4 * BLOCK)
    x = torch.ones(2, 4 * BLOCK)
    add_lower_(gram, x, x)
    assert (gram != 0).float().mean() == (1 + 2 + 3 + 4) / 16
