"""Merging in plain torch: equals one model of all samples, changes no model, counts no photo twice."""

from __future__ import annotations

import pytest

from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import UnsupportedError, UsageError
from tests.cli.test_extend import assert_same_scores, queries
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


@pytest.mark.parametrize("head", ["ridge", "acil", "ncm", "slda"])
def test_equals_one_model_of_all_samples(head: str):
    merged = merge([learned(head, [["ant", "bee"]]), learned(head, [["cat"]])]).model
    assert_same_scores(merged, learned(head, [["ant", "bee"], ["cat"]]), queries(), 1e-8)


def test_heads_and_numbers_of_models_are_checked():
    with pytest.raises(UsageError, match="got 1 model"):
        merge([learned("ridge")])
    with pytest.raises(UsageError, match="cannot merge b into a: their heads differ"):
        merge([learned("ridge", [["ant"]]), learned("ncm", [["bee"]])], ["a", "b"])
    with pytest.raises(UnsupportedError, match="cannot merge"):
        merge([learned("logistic", [["ant"]]), learned("logistic", [["bee"]])])
