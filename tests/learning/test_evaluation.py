"""Counts of an evaluation: equal to torchmetrics on everything at once, whatever the batches."""

from __future__ import annotations

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from cifnet_pl.learning.evaluation import EvaluationCounts


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_whatever_the_batches(batch: int):
    draw = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(2 * torch.randn(500, 7, generator=draw, dtype=torch.float64), dim=1)
    label = torch.randint(0, 7, (500,), generator=draw)
    counts = EvaluationCounts(7, None, torch.device("cpu"))
    for start in range(0, 500, batch):
        counts.update(probabilities[start : start + batch], label[start : start + batch], None, {})
    evaluation = counts.compute([3, 4])
    ece = multiclass_calibration_error(probabilities, label, 7, n_bins=15)
    assert evaluation.ece == pytest.approx(100 * float(ece), abs=1e-4)
    nll = torch.nn.functional.nll_loss(probabilities.log(), label)
    assert evaluation.nll == pytest.approx(float(nll), rel=1e-6)
    assert evaluation.accuracy == pytest.approx(100 * float((probabilities.argmax(1) == label).double().mean()))
    expected = torch.zeros(7, 7, dtype=torch.int64).index_put_(
        (label, probabilities.argmax(1)), torch.ones(500, dtype=torch.int64), accumulate=True
    )
    assert torch.equal(torch.from_numpy(evaluation.confusion), expected)
    among_first = (probabilities.topk(5).indices == label[:, None]).any(dim=1)
    assert evaluation.top5 == pytest.approx(100 * float(among_first.double().mean()))


def test_nothing_tested():
    evaluation = EvaluationCounts(2, None, torch.device("cpu")).compute([2])
    assert (evaluation.accuracy, evaluation.ece, evaluation.nll) == (None, None, None)
