"""Hashes of embeddings: different rows have different ones."""

import numpy as np
import pandas as pd
import pytest

from cifnet_pl.data.samples import row_hashes

pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_ten_million_rows(dtype: type):
    """Of four numbers each; float16 is kept as float32, so that many bits are zero."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((10_000_000, 4), dtype=np.float32)
    rows = rows.astype(dtype).astype(np.float32)
    distinct = len(pd.DataFrame(rows.view(np.uint64)).drop_duplicates())
    assert len(np.unique(row_hashes(rows))) == distinct
