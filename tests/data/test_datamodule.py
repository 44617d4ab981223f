"""The data module between runs: nothing of one learner reaches the next."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cifnet_pl import CIFNetDataModule, CIFNetModule
from cifnet_pl.heads import RidgeHead
from cifnet_pl.utilities.errors import UsageError
from tests.data.tree import class_tree
from tests.lightning_runs import digits, module, trainer

PIXELS, LABELS = load_digits(return_X_y=True)
FEW = (PIXELS[:300].reshape(-1, 8, 8).astype(np.uint8) * 15, LABELS[:300])


def test_nothing_of_one_learner_reaches_the_next(tmp_path: Path, watch) -> None:
    """Neither embeddings, of which each is computed once in a run, nor the order of classes."""

    def learned(model: CIFNetModule, data: CIFNetDataModule) -> float | None:
        trainer(tmp_path).fit(model, datamodule=data)
        return model.evaluation.accuracy

    shared = digits(source=FEW)
    first, negative, other = (module(head=RidgeHead, buffer=None) for _ in range(3))
    counts = watch(first.backbone, "forward", len)
    accuracy = learned(first, shared)
    assert sum(counts) == len(shared.source.train) + len(shared.source.test) == 300
    # An affine change is none, as long as it is the same in learning and evaluation.
    negative.backbone.scale.neg_()
    negative.backbone.shift.add_(1)
    assert learned(negative, shared) == pytest.approx(accuracy, abs=2)
    assert accuracy > 80
    known = learned(other, digits(source=FEW, class_order=3))
    assert other.class_names != first.class_names
    trainer(tmp_path).validate(other, datamodule=shared, verbose=False)
    assert other.evaluation.accuracy == known


def test_few_classes_are_one_task(tmp_path: Path) -> None:
    root = str(class_tree(tmp_path, 4))
    for classes_per_task, sizes in ((10, [3]), (2, [2, 1])):
        data = CIFNetDataModule(root=root, classes_per_task=classes_per_task)
        assert [len(task) for task in data.plan.tasks] == sizes
    with pytest.raises(UsageError, match="lower"):
        CIFNetDataModule(root=root, classes_per_task=[4])
