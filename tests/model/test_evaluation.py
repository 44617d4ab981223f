"""Evaluations and figures of runs: equal to torchmetrics, and to values worked out by hand."""

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.evaluation import (
    ClassScore,
    ConfusedPair,
    Evaluation,
    evaluate_left_out,
    judge,
    rarely_predicted_notes,
    table_of,
)
from cifnet_pl.model.metrics import (
    average_accuracy,
    backward_transfer,
    detection,
    forgetting,
    max_drop,
    percent,
    wilson_interval,
)
from tests.models import empty, learn_embeddings, learned, samples

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]


@pytest.mark.parametrize("batch", [1, 500])
def test_whatever_the_batches(batch: int):
    scores = 2 * torch.randn(500, 7, dtype=torch.float64)
    probabilities = scores.softmax(dim=1)
    label = torch.randint(0, 7, (500,))
    task = (label >= 3).long()
    parts = [each.split(batch) for each in (probabilities, label, task)]
    table = table_of([judge(*part) for part in zip(*parts, strict=True)])
    evaluation = Evaluation(NAMES, table, tasks=3)
    figures = evaluation.figures()
    ece = multiclass_calibration_error(probabilities, label, 7, n_bins=15)
    assert figures["ece"] == pytest.approx(100 * float(ece), abs=1e-4)
    nll = torch.nn.functional.nll_loss(probabilities.log(), label)
    assert figures["nll"] == pytest.approx(float(nll), rel=1e-6)
    right = (probabilities.argmax(1) == label).double()
    assert figures["A_k"] == pytest.approx(100 * float(right.mean()))
    by_task = [100 * float(right[task == k].mean()) for k in (0, 1)]
    assert evaluation.task_accuracy == [*map(pytest.approx, by_task), None]
    counts = torch.zeros(7, 7, dtype=torch.int64)
    counts.index_put_((label, probabilities.argmax(1)), torch.tensor(1), True)
    assert evaluation.confusion.tolist() == counts.tolist()
    among_first = (probabilities.topk(5).indices == label[:, None]).any(dim=1)
    assert figures["top5"] == pytest.approx(100 * float(among_first.double().mean()))


def test_of_equal_probabilities_the_first_column_is_the_answer():
    probabilities = torch.tensor([[0.2] * 6, [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]]).double()
    batch = judge(probabilities, torch.tensor([5, 5]))
    evaluation = Evaluation(NAMES[:6], table_of([batch]))
    assert evaluation.figures()["top5"] == 0
    assert evaluation.confusion[5].tolist() == [2, 0, 0, 0, 0, 0]


def test_nothing_tested():
    evaluation = Evaluation(["ant", "bee"], table_of([]))
    assert set(evaluation.figures().values()) == {None}
    assert evaluation.task_accuracy == [None]
    assert evaluation.interval == (0, 100)


def of_predictions(counts: list[list[int]]) -> Evaluation:
    """An evaluation with the given confusion matrix."""
    batches = []
    for target, row in enumerate(counts):
        for predicted, count in enumerate(row):
            probabilities = torch.eye(len(row)).double()[[predicted] * count]
            batches.append(judge(probabilities, torch.full((count,), target)))
    return Evaluation(NAMES[: len(counts)], table_of(batches))


def test_scores_confusions_and_pairs():
    result = of_predictions([[3, 2, 1], [0, 6, 0], [1, 0, 1]])
    assert result.accuracy == pytest.approx(100 * 10 / 14)
    scores = result.class_scores()
    assert scores == [
        ClassScore("ant", 6, 3, ConfusedPair("ant", "bee", 2, 6)),
        ClassScore("bee", 6, 6),
        ClassScore("cat", 2, 1, ConfusedPair("cat", "ant", 1, 2)),
    ]
    assert [score.tested for score in scores] == [True, True, False]
    assert result.confused_pairs()[0] == ("ant", "bee", 2, 6)


def test_rarely_predicted_classes():
    """At least five images, and an accuracy below a quarter."""
    result = of_predictions([[2, 7, 0], [0, 2, 6], [4, 0, 0]])
    assert result.rarely_predicted == ["ant"]
    assert rarely_predicted_notes([], None) == []
    for head, helps in (("ridge-auto", False), ("ridge", True)):
        (said,) = rarely_predicted_notes(["ant", "bee"], learned(head))
        assert "2 rarely predicted" in said
        assert ("the recommended head" in said) == helps


def test_rarely_predicted_classes_of_a_model():
    """By leave-one-out predictions for its buffer samples: the elks lie among the foxes."""
    model = empty("ridge")
    model.buffer = CalibrationBuffer(60)
    z = torch.cat([samples([name], 20)[0] for name in ("ant", "fox")])
    draw = torch.Generator().manual_seed(0)
    elks = z[20:26] + torch.randn(6, z.shape[1], generator=draw)
    labels = torch.tensor([0] * 20 + [1] * 20 + [2] * 6)
    learn_embeddings(model, ["ant", "fox", "elk"], torch.cat([z, elks]), labels)
    for judged, rare in ((model, ["elk"]), (learned("ncm"), [])):
        left_out = evaluate_left_out(judged, judged.calibration_samples())
        assert left_out.rarely_predicted == rare


def test_detection() -> None:
    """Of twelve pairs ten are in order, and one equal; one unknown is below the largest known."""
    known = torch.tensor([0.0, 1.0, 2.0, 3.0])
    unknown_ones = torch.tensor([2.0, 4.0, 5.0])
    found = detection(known, unknown_ones)
    assert found == pytest.approx((100 * 10.5 / 12, 100 / 3))


# ---------------------------------------------------------------------- figures of runs

MATRIX = [[90.0], [80.0, 70.0], [85.0, 60.0, 50.0], [75.0, 65.0, 40.0, 95.0]]


@pytest.mark.parametrize(
    ("matrix", "forgotten", "transfer"),
    [
        (MATRIX, (15 + 5 + 10) / 3, (-15 - 5 - 10) / 3),
        # The best moment need not be the first.
        ([[50.0], [80.0, 10.0], [60.0, 30.0, 90.0]], (20 + 0) / 2, (10 + 20) / 2),
        # Best at the end: not forgotten at all, rather than less than not at all.
        ([[50.0], [80.0, 10.0]], 0, 30),
        # Tasks without test images are left out.
        ([[None], [None, 70.0], [None, 40.0, None]], 30, -30),
        ([[None], [None, 70.0]], None, None),
        # Tested later only: forgotten from there on, but not known from when it was learned.
        ([[None], [60.0, 70.0], [50.0, 70.0, 80.0]], 5, 0),
        # Not tested at the end: unknown.
        ([[60.0], [None, 70.0]], None, None),
    ],
)
def test_forgetting_from_the_best_moment_and_transfer_from_the_first(
    matrix, forgotten, transfer
) -> None:
    assert forgetting(matrix) == pytest.approx(forgotten)
    assert backward_transfer(matrix) == pytest.approx(transfer)


def test_nothing_measured_is_none_and_never_nan() -> None:
    for figure in (forgetting, backward_transfer, average_accuracy, max_drop):
        assert figure([]) is None
    assert percent(0, 0) is None
    assert wilson_interval(0, 0) == (0.0, 100.0)


def test_tasks_without_test_images_are_left_out() -> None:
    assert average_accuracy([None, 80.0, 60.0]) == 70
    assert average_accuracy([None, None]) is None
    assert max_drop([90.0, None, 50.0, 45.0]) == 5
    assert max_drop([None, 50.0]) is None
