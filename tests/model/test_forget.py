"""Forgetting and merging in plain torch: what remains, what is refused, and that no model is
changed.
"""

from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import UnsupportedError, UsageError
from tests.cli.test_extend import queries
from tests.command_line import make_images
from tests.models import learned, tensors_equal


@pytest.mark.parametrize(
    "head", ["cifnet", "ridge", "slda", "knn", "logistic", "acil", "dsal"]
)
def test_removal_leaves_the_others_alone(head: str):
    model = learned(head)
    kept = [i for i, name in enumerate(model.class_names) if name != "dog"]
    before = model.head(queries())[:, kept]
    model.remove_classes(["dog"])
    assert model.class_names == ["ant", "bee", "cat", "elk", "fox"]
    assert model.tasks == [["ant", "bee"], ["cat"], ["elk", "fox"]]
    if head not in ("knn", "slda", "acil", "dsal"):
        torch.testing.assert_close(model.head(queries()), before, rtol=0, atol=1e-12)
    if model.buffer is not None:
        assert set(model.buffer.y.tolist()) <= set(model.head.classes)
        assert len(model.buffer.y) == 10  # two of each class


def test_a_head_that_keeps_no_sums_refuses_images(tmp_path: Path):
    images = make_images(tmp_path, ["ant"], 3)
    model = learned("logistic")
    with pytest.raises(UnsupportedError, match="LogisticHead"):
        cifnet_pl.forget(model, "ant", images)
    removed = cifnet_pl.forget(model, "ant")
    assert not removed.exact
    assert not removed.model.head.subtracts


def test_merge_changes_none_of_its_models():
    a = learned("ridge", [["ant"]])
    b = learned("ridge", [["bee"], ["cat"]])
    before = [a.tensors(), b.tensors()]
    result = merge([a, b])
    assert result.model.class_names == ["ant", "bee", "cat"]
    assert result.images == 21
    assert all(
        tensors_equal(m.tensors(), old) for m, old in zip((a, b), before, strict=True)
    )
    with pytest.raises(UsageError, match="learned by both and would count twice"):
        merge([a, a.clone()])
