"""Merging in plain torch: equals one model of all samples, changes no model, counts no photo twice."""

import pytest

from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import UsageError
from tests.models import learned, tensors_equal


def test_merge_changes_none_of_its_models():
    a, b = learned("ridge", [["ant"]]), learned("ridge", [["bee"], ["cat"]])
    before = [a.tensors(), b.tensors()]
    result = merge([a, b])
    assert result.model.class_names == ["ant", "bee", "cat"]
    assert result.photos == 21
    assert all(tensors_equal(m.tensors(), old) for m, old in zip((a, b), before, strict=True))
    with pytest.raises(UsageError, match="model 2 holds the same model as model 1"):
        merge([a, a.clone()])
