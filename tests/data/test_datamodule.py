"""The data module between runs: nothing of one learner reaches the next."""

from pathlib import Path
from typing import Any

import pytest

from cifnet_pl import CIFNetDataModule
from cifnet_pl.heads import RidgeHead
from cifnet_pl.learning.callbacks import DuplicatesReport
from cifnet_pl.utilities.errors import UsageError
from tests.data.tree import class_tree
from tests.lightning_runs import digits, module, trainer


def accuracy(
    data: CIFNetDataModule, tmp_path: Path, invert: bool = False
) -> list[float | None]:
    """Accuracies on the five tasks at the end of a run; ``invert`` embeds every image as its
    negative.
    """
    model = module(head=RidgeHead, buffer=None)
    if invert:
        model.backbone.scale.neg_()
        model.backbone.shift.add_(1)
    trainer(tmp_path).fit(model, datamodule=data)
    return model.evaluation.task_accuracy


def test_embeddings_of_one_backbone_are_not_used_for_another(tmp_path: Path) -> None:
    """An affine change of the embeddings changes nothing as long as it is the same in learning and
    evaluation.
    """
    shared = digits()
    first = accuracy(shared, tmp_path)
    second = accuracy(shared, tmp_path, invert=True)
    assert second == pytest.approx(first, abs=2)
    assert min(value for value in second if value is not None) > 80


def test_labels_of_one_learner_are_not_used_for_another(tmp_path: Path) -> None:
    """Both have ten classes at the end, in another order."""
    data = digits()
    one = module(head=RidgeHead, buffer=None)
    two = module(head=RidgeHead, buffer=None)
    trainer(tmp_path).fit(one, datamodule=data)
    trainer(tmp_path).fit(two, datamodule=digits(class_order=3))
    assert one.class_names != two.class_names
    known = two.evaluation.accuracy
    trainer(tmp_path).validate(two, datamodule=data, verbose=False)
    assert two.evaluation.accuracy == known


@pytest.mark.parametrize(
    ("options", "left"), [({}, 7), ({"initial_classes": 2}, 5), ({"max_tasks": 1}, 0)]
)
def test_classes_that_no_task_learns_are_counted(tmp_path, caplog, options, left):
    data = digits(classes_per_task=[1, 2], **options)
    logged = trainer(tmp_path, DuplicatesReport(), max_epochs=1)
    with caplog.at_level("INFO", "lightning.pytorch.utilities.rank_zero"):
        logged.fit(module(head=RidgeHead, buffer=None), datamodule=data)
    said = (
        f"classes_per_task [1, 2] leaves {left} of 10 classes that no task learns, the first is"
        f" '{10 - left}'"
    )
    assert (said in caplog.text) == bool(left)
    assert bool(data.notes) == bool(left)


def test_an_image_is_embedded_once_for_all_tasks(tmp_path: Path, watch) -> None:
    model = module(head=RidgeHead, buffer=None)
    data = digits()
    counts = watch(model.backbone, "forward", len)
    trainer(tmp_path).fit(model, datamodule=data)
    assert sum(counts) == len(data.source.train) + len(data.source.test)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, [3]),
        ({"classes_per_task": 2}, [2, 1]),
        ({"classes_per_task": [1, 2]}, [1, 2]),
    ],
)
def test_few_classes_are_one_task(
    options: dict[str, Any], tasks: list[int], tmp_path: Path
) -> None:
    data = CIFNetDataModule(root=str(class_tree(tmp_path, 4)), **options)
    assert [len(task) for task in data.plan.tasks] == tasks
    assert data.given["classes_per_task"] == options.get("classes_per_task", 3)


def test_tasks_that_were_planned_need_their_classes(tmp_path: Path) -> None:
    root = class_tree(tmp_path, 4)
    with pytest.raises(UsageError, match="lower"):
        CIFNetDataModule(root=str(root), classes_per_task=4)
