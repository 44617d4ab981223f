"""The weight that calibration samples of a class have in common, batch by batch."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cifnet_pl.heads.cifnet import common_weights, joined_weights

CLASSES = 3
rows = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.sampled_from([1.0, 2.0, 5.0])), max_size=8)


def split(samples: list[tuple[int, float]]) -> tuple[Tensor, Tensor]:
    columns, weights = [column for column, _ in samples], [weight for _, weight in samples]
    return torch.tensor(columns, dtype=torch.int64), torch.tensor(weights, dtype=torch.float64)


@given(rows)
def test_common_weights(samples: list[tuple[int, float]]) -> None:
    result = common_weights(*split(samples), CLASSES).tolist()
    for column in range(CLASSES):
        weights = {weight for label, weight in samples if label == column}
        assert result[column] == (0 if not weights else weights.pop() if len(weights) == 1 else -1)


@given(rows, rows)
def test_of_two_batches_as_of_one(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> None:
    joined = joined_weights(*(common_weights(*split(samples), CLASSES) for samples in (first, second)))
    assert torch.equal(joined, common_weights(*split(first + second), CLASSES))
