"""The estimators: scikit-learn's own checks, labels of any kind, and what the head gives."""

import pickle
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import SkipTestWarning
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

import cifnet_pl
from cifnet_pl.heads import NCMHead, RidgeHead
from cifnet_pl.sklearn import ImageEmbedder, IncrementalClassifier
from cifnet_pl.utilities.errors import (
    CifnetError,
    DataError,
    UnsupportedError,
    UsageError,
)
from tests.command_line import make_images

WORDS = np.array(
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
)
EXACT = partial(RidgeHead, decision="auto")
"""Without product features, the number of which the first call would decide."""


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:600], WORDS[y[:600]]


def test_checks_of_scikit_learn_pass_for_the_classifier() -> None:
    results = check_estimator(IncrementalClassifier(), on_skip=None)
    left_out = {r["check_name"] for r in results if r["status"] != "passed"}
    # It is for arrays of other libraries, and runs where SCIPY_ARRAY_API is set.
    assert left_out <= {"check_array_api_input"}
    assert len(results) > 50


WITHOUT_DATA = (
    "estimator_cloneable estimator_repr estimator_tags_renamed get_params_invariance"
    " no_attributes_set_in_init parameters_default_constructible set_params valid_tag_types"
)
"""The others give a matrix of numbers, which is no list of images: ``check_estimator`` skips them
for every transformer of texts or images."""


def test_checks_of_scikit_learn_pass_for_the_embedder() -> None:
    with pytest.warns(SkipTestWarning):
        check_estimator(ImageEmbedder())
    for name in WITHOUT_DATA.split():
        getattr(estimator_checks, f"check_{name}")("ImageEmbedder", ImageEmbedder())


def test_classes_in_any_order_as_all_at_once(digits) -> None:
    X, y = digits
    at_once = IncrementalClassifier(EXACT).fit(X, y)
    late = IncrementalClassifier(EXACT)
    for part in (y == "two", (y > "six") & (y != "two"), y <= "six"):
        late.partial_fit(X[part], y[part], classes=WORDS)
    assert late.classes_.tolist() == sorted(WORDS)
    in_halves = IncrementalClassifier(EXACT).partial_fit(X[:300], y[:300])
    in_halves.partial_fit(X[300:], y[300:])
    for model in (late, in_halves):
        np.testing.assert_allclose(
            model.decision_function(X), at_once.decision_function(X), atol=1e-6
        )
    again = at_once.fit(X[:300], y[:300])
    assert again.model_.counts["one"] == (y[:300] == "one").sum()


def test_outputs_are_those_of_the_model(digits, tmp_path: Path) -> None:
    """In the order of ``classes_``, which is not the one in which they were learned."""
    X, y = digits
    ours = IncrementalClassifier()
    for part in (y > "six", y <= "six"):
        ours.partial_fit(X[part], y[part])
    ours.model_.save(tmp_path / "bundle")
    model = cifnet_pl.load(tmp_path / "bundle")
    predictions = list(model.classify(X, top=10, unknown=0.05, coverage=0.9))
    assert [p.classes[0] for p in predictions] == ours.predict(X).tolist()
    assert [p.prediction_set for p in predictions] == ours.predict_set(X, coverage=0.9)
    np.testing.assert_allclose([p.novelty for p in predictions], ours.novelty(X))
    probabilities = ours.predict_proba(X)
    for prediction, row in zip(predictions, probabilities, strict=True):
        columns = np.searchsorted(ours.classes_, prediction.classes)
        np.testing.assert_allclose(row[columns], prediction.probabilities)
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.predict_proba(X), probabilities)


@pytest.mark.parametrize("labels", [[-1, 1], [True, False], [0.0, 3.0], ["é", "a/b"]])
def test_labels_of_any_kind(labels: list[Any]) -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = np.where(X[:, 0] > 0, *labels)
    model = IncrementalClassifier().fit(X, y)
    assert model.classes_.tolist() == sorted(labels)
    assert model.score(X, y) > 0.8
    assert set().union(*model.predict_set(X)) <= set(labels)


def test_equal_labels_are_one_class():
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = (X[:, 0] > 0).astype(int)
    model = IncrementalClassifier().fit(X, y).partial_fit(X, y.astype(float))
    assert model.model_.class_names == ["0", "1"]
    assert model.score(X, y) > 0.8


def test_bad_input_gets_one_sentence(digits) -> None:
    X, y = digits
    model = IncrementalClassifier(NCMHead).fit(X, y)
    with pytest.raises(UnsupportedError, match="NCMHead"):
        model.predict_set(X)
    with pytest.raises(ValueError, match="Mix of label input types"):
        model.partial_fit(X[:2], [1, 2])
    with pytest.raises(UsageError, match="use a capacity of 10"):
        IncrementalClassifier(capacity=3).fit(X, y)
    np.testing.assert_array_equal(model.classes_, sorted(WORDS))
    with pytest.raises(DataError, match="control characters"):
        model.partial_fit(X[:1], ["a\nb"])


def test_what_fails_leaves_the_estimator_as_it_was(digits, monkeypatch) -> None:
    X, y = digits
    model = IncrementalClassifier(EXACT).fit(X[:300], y[:300])
    before = model.predict_proba(X)
    with pytest.raises(CifnetError, match="scale the embeddings down"):
        model.partial_fit(np.full((2, 64), 1e160), ["one", "new"])
    with monkeypatch.context() as context:
        context.setattr(RidgeHead, "solve", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(X[300:], y[300:])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.partial_fit(X[300:], y[300:])
    assert model.model_.counts["one"] == (y == "one").sum()


def test_one_label_in_two_unicode_forms_is_one_class(digits) -> None:
    X, y = digits
    composed = np.where(y == "one", "caf\u00e9", y)
    other_form = np.where(y == "one", "cafe\u0301", y)
    model = IncrementalClassifier().fit(X[:300], composed[:300])
    model.partial_fit(X[300:], other_form[300:])
    expected = IncrementalClassifier().fit(X, composed)
    assert model.classes_.tolist() == expected.classes_.tolist()
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


def test_embedder_takes_images_in_every_form(tmp_path: Path) -> None:
    folder = make_images(tmp_path, ["ant"], 3)
    files = sorted(map(str, folder.rglob("*.png")))
    pillow = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(image) for image in pillow])
    embedder = ImageEmbedder("pixels:8")
    expected = cifnet_pl.embed(files, "pixels:8").embeddings.numpy()
    table = pd.DataFrame({"file": files})
    for images in (files, table["file"], table, pillow, arrays):
        np.testing.assert_array_equal(embedder.fit_transform(images), expected)
    in_pandas = clone(embedder).set_output(transform="pandas").transform(files)
    assert in_pandas.columns[-1] == "imageembedder191"
    with pytest.raises(DataError, match="missing"):
        embedder.transform([*files, "missing.jpg"])
    with pytest.raises(UsageError, match="unknown backbone"):
        ImageEmbedder("pixel").fit(files)
    model = make_pipeline(embedder, IncrementalClassifier()).fit(files, [1, 2, 3])
    assert model.predict(torch.from_numpy(arrays)).tolist() == [1, 2, 3]
