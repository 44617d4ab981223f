"""Counts of an evaluation: equal to torchmetrics on everything at once, whatever the batches."""

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from cifnet_pl.model.metrics import rarely_predicted, top_classes
from cifnet_pl.model.task_evaluation import TaskEvaluation


def drawn(images: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(
        2 * torch.randn(images, 7, generator=draw, dtype=torch.float64), dim=1
    )
    return probabilities, torch.randint(0, 7, (images,), generator=draw)


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_whatever_the_batches(batch: int):
    probabilities, label = drawn()
    evaluation = TaskEvaluation([3, 4])
    for start in range(0, 500, batch):
        evaluation.update(
            probabilities[start : start + batch], label[start : start + batch]
        )
    evaluation.finish()
    figures = evaluation.figures()
    ece = multiclass_calibration_error(probabilities, label, 7, n_bins=15)
    assert figures["ece"] == pytest.approx(100 * float(ece), abs=1e-4)
    nll = torch.nn.functional.nll_loss(probabilities.log(), label)
    assert figures["nll"] == pytest.approx(float(nll), rel=1e-6)
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
    assert figures["top5"] == pytest.approx(100 * float(among_first.double().mean()))


def test_by_domain_and_by_way():
    probabilities, label = drawn(90)
    domain = torch.arange(90) % 3
    evaluation = TaskEvaluation([3, 4], domains=3, classifiers=("one", "other"))
    evaluation.update(
        probabilities,
        label,
        domain,
        {"one": probabilities, "other": probabilities.roll(1, dims=1)},
    )
    figures = evaluation.figures()
    right = (probabilities.argmax(1) == label).double()
    assert evaluation.task_accuracy == pytest.approx(
        [100 * float(right[domain == k].mean()) for k in range(2)]
    )
    assert figures["A_k_one"] == figures["A_k"]
    shifted = ((probabilities.argmax(1) + 1) % 7 == label).double()
    assert figures["A_k_other"] == pytest.approx(100 * float(shifted.mean()))


def test_of_equal_probabilities_the_first_column_is_the_answer():
    probabilities = torch.tensor(
        [[0.2] * 6, [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64
    )
    target = torch.tensor([5, 5])
    evaluation = TaskEvaluation([6])
    evaluation.update(probabilities, target)
    columns, _ = top_classes(probabilities)
    assert torch.equal(columns[:, 0], probabilities.argmax(dim=1))
    assert not (columns == target[:, None]).any()
    assert evaluation.figures()["top5"] == 0
    assert evaluation.confusion[5].tolist() == [2, 0, 0, 0, 0, 0]


def test_rarely_predicted_columns():
    evaluation = TaskEvaluation([2])
    evaluation.update(torch.tensor([[0.9, 0.1]] * 12).double(), torch.arange(12) % 2)
    assert (evaluation.correct, evaluation.images, evaluation.accuracy) == (6, 12, 50)
    assert rarely_predicted(evaluation.confusion) == [1]


def test_nothing_tested():
    evaluation = TaskEvaluation([1, 1])
    evaluation.finish()
    assert set(evaluation.figures().values()) == {None}
    assert evaluation.task_accuracy == [None, None]
