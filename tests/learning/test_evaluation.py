"""Counts of an evaluation: equal to torchmetrics on everything at once, whatever the batches."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from cifnet_pl.learning.task_evaluation import EvaluationCounts
from cifnet_pl.model.metrics import top_classes


def drawn(images: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(
        2 * torch.randn(images, 7, generator=draw, dtype=torch.float64), dim=1
    )
    return probabilities, torch.randint(0, 7, (images,), generator=draw)


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_whatever_the_batches(batch: int):
    probabilities, label = drawn()
    counts = EvaluationCounts([3, 4])
    for start in range(0, 500, batch):
        counts.update(
            probabilities[start : start + batch], label[start : start + batch]
        )
    evaluation = counts.compute()
    ece = multiclass_calibration_error(probabilities, label, 7, n_bins=15)
    assert evaluation.ece == pytest.approx(100 * float(ece), abs=1e-4)
    nll = torch.nn.functional.nll_loss(probabilities.log(), label)
    assert evaluation.nll == pytest.approx(float(nll), rel=1e-6)
    right = (probabilities.argmax(1) == label).double()
    assert evaluation.accuracy == pytest.approx(100 * float(right.mean()))
    by_task = [100 * float(right[part].mean()) for part in (label < 3, label >= 3)]
    assert evaluation.task_accuracy == pytest.approx(by_task)
    expected = torch.zeros(7, 7, dtype=torch.int64).index_put_(
        (label, probabilities.argmax(1)),
        torch.ones(500, dtype=torch.int64),
        accumulate=True,
    )
    assert torch.equal(torch.from_numpy(evaluation.confusion), expected)
    among_first = (probabilities.topk(5).indices == label[:, None]).any(dim=1)
    assert evaluation.top5 == pytest.approx(100 * float(among_first.double().mean()))


def test_by_domain_and_by_way():
    probabilities, label = drawn(90)
    domain = torch.arange(90) % 3
    counts = EvaluationCounts([3, 4], domains=3, classifiers=("one", "other"))
    counts.update(
        probabilities,
        label,
        domain,
        {"one": probabilities, "other": probabilities.roll(1, dims=1)},
    )
    evaluation = counts.compute()
    right = (probabilities.argmax(1) == label).double()
    assert evaluation.task_accuracy == pytest.approx(
        [100 * float(right[domain == k].mean()) for k in range(2)]
    )
    assert evaluation.accuracy_by_classifier["one"] == evaluation.accuracy
    shifted = ((probabilities.argmax(1) + 1) % 7 == label).double()
    assert evaluation.accuracy_by_classifier["other"] == pytest.approx(
        100 * float(shifted.mean())
    )


def test_of_equal_probabilities_the_first_column_is_the_answer():
    probabilities = torch.tensor(
        [[0.2] * 6, [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64
    )
    target = torch.tensor([5, 5])
    whole = EvaluationCounts([6])
    parts = [EvaluationCounts([6]), EvaluationCounts([6])]
    whole.update(probabilities, target)
    columns, _ = top_classes(probabilities)
    assert torch.equal(columns[:, 0], probabilities.argmax(dim=1))
    assert int(whole.top5) == int((columns == target[:, None]).any(dim=1).sum()) == 0
    for part, row in zip(parts, (0, 1), strict=True):
        part.update(probabilities[row : row + 1], target[row : row + 1])
    parts[0].merge_state(parts[1])
    assert np.array_equal(parts[0].compute().confusion, whole.compute().confusion)
    assert whole.compute().confusion[5].sum() == 2


def test_nothing_tested():
    evaluation = EvaluationCounts([1, 1]).compute()
    assert (evaluation.accuracy, evaluation.ece, evaluation.nll, evaluation.top5) == (
        None,
        None,
        None,
        None,
    )
    assert evaluation.task_accuracy == [None, None]
    assert evaluation.metrics() == {}
