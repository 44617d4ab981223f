"""Estimators of scikit-learn: a classifier that takes new classes at any time, and an embedder.

They work in pipelines, grid searches and cross-validation; scikit-learn's own checks pass.

Example::

    model = make_pipeline(ImageEmbedder(), IncrementalClassifier())
    model.fit(files, labels)
    model.predict(["new.jpg"])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from cifnet_pl.backbones import DEFAULT_BACKBONE, Backbone, build_backbone
from cifnet_pl.buffer import CalibrationBuffer, buffer_samples
from cifnet_pl.heads import Head, RidgeHead
from cifnet_pl.heads.base import as_tensor
from cifnet_pl.images.image import content_hash
from cifnet_pl.model.calibration import COVERAGE
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.embedding import embed
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.names import class_name, class_names

FLOATS = (np.float64, np.float32)
"""Precisions of embeddings that are not converted."""

RECOMMENDED = partial(RidgeHead, decision="auto", product_features="auto")
"""Head that ``fit`` uses for folders of images, from the width of the embeddings."""


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Closed-form classifier of embeddings that learns new classes without earlier samples.

    Args:
        head: function from the width of the embeddings to a head, such as ``functools.partial(
            RidgeHead, ridge=1.0)``; None for the head that ``fit`` uses for folders of images.
        capacity: samples in the calibration buffer, by which probabilities are calibrated.
        seed: of the choice of these samples.

    Attributes:
        classes_: (C,) labels that were learned, in ascending order; columns of all outputs.
        model_: the :class:`~cifnet_pl.Classifier`, which can be stored.
        n_features_in_: width of the embeddings.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = IncrementalClassifier().fit(X[y < 8], y[y < 8])
        >>> model.partial_fit(X[y >= 8], y[y >= 8]).classes_
        array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(
        self,
        head: Callable[[int], Head] | None = None,
        capacity: int = 2000,
        seed: int = 0,
    ):
        self.head = head
        self.capacity = capacity
        self.seed = seed

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any) -> IncrementalClassifier:
        """Learn samples; what was learned before is forgotten.

        Args:
            X: (n, d) embeddings.
            y: (n,) labels, integers or texts.

        Raises:
            ValueError: shapes, numbers or labels that do not fit.
        """
        self.__dict__.pop("model_", None)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> IncrementalClassifier:
        """Learn samples of new classes, and more of known ones, beside those learned before.

        The result does not depend on how samples are divided among calls, as long as ``capacity``
        holds them all, but for the number of product features, which the first call decides. With
        more samples, calibration and the weights of the decision rules may differ a little. Each
        call solves the head once, which takes as long for one sample as for many. A call that
        fails or is interrupted leaves the estimator as it was.

        Args:
            X: (n, d) embeddings.
            y: (n,) labels.
            classes: ignored: a class exists from its first sample on. Other estimators need it.

        Raises:
            ValueError: as for :meth:`fit`.
            UnsupportedError: samples of known classes, where the head cannot add them.
        """
        known: Classifier | None = getattr(self, "model_", None)
        X, y = validate_data(self, X, y, reset=known is None, dtype=FLOATS)
        check_classification_targets(y)
        if y.dtype.kind in "OU":  # texts
            y = np.array(list(map(class_name, y)))
        labels, positions = np.unique(y, return_inverse=True)
        if known is None:
            width = X.shape[1]
            head = (self.head or RECOMMENDED)(width)
            buffer = None
            if head.leaves_one_out or head.uses_buffer:
                buffer = CalibrationBuffer(self.capacity, seed=self.seed)
            backbone = build_backbone(f"none:{width}")
            model = Classifier(backbone, head, buffer, calibrated=head.leaves_one_out)
            before = []
        else:
            # If learning fails or is interrupted, the estimator stays as it was.
            model = known.clone()
            before = self._labels
        in_order = list(dict.fromkeys([*before, *labels.tolist()]))
        learned = unique_labels(in_order)
        hashes = [content_hash(row.tobytes()) for row in X]
        samples = buffer_samples(*map(as_tensor, (X, positions, hashes)))
        # Equal labels are one class, such as 0 and 0.0.
        name_of = dict(zip(in_order, map(str, in_order), strict=True))
        names = [name_of[label] for label in labels.tolist()]
        model.learn_embeddings(class_names(names, "y"), samples)
        self.model_ = model
        self._labels: list[Any] = in_order  # in the model's order
        self.classes_ = learned
        return self

    # ------------------------------------------------------------------ prediction

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores (n, C); with two classes (n,), positive for the second one."""
        z = self._embeddings(X)
        scores = self._in_order(self.model_.head(z))
        if len(self.classes_) == 2:
            return np.diff(scores).ravel()
        return scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label of each sample (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the calibrated probabilities (n, C)."""
        z = self._embeddings(X)
        return self._in_order(self.model_.head.probabilities(z))

    def predict_set(self, X: Any, coverage: float = COVERAGE) -> list[tuple[Any, ...]]:
        """Return the prediction set of each sample, the most probable label first.

        Args:
            X: (n, d) embeddings.
            coverage: probability with which a set holds the true label.

        Raises:
            UsageError: a coverage outside (0, 1).
            UnsupportedError: a head without leave-one-out scores.
        """
        z = self._embeddings(X)
        label_of = dict(zip(self.model_.class_names, self._labels, strict=True))
        predictions = self.model_.classify(z, coverage=coverage)
        return [tuple(map(label_of.get, p.prediction_set or ())) for p in predictions]

    def novelty(self, X: Any) -> np.ndarray:
        """Return how far samples (n,) are from all that was learned; larger is more novel.

        Raises:
            UnsupportedError: a head without novelty scores.
        """
        z = self._embeddings(X)
        return self.model_.head.novelty(z).numpy()

    def _embeddings(self, X: Any) -> Tensor:
        """Check embeddings as scikit-learn does."""
        check_is_fitted(self, "model_")
        return as_tensor(validate_data(self, X, reset=False, dtype=FLOATS))

    def _in_order(self, values: Tensor) -> np.ndarray:
        """Return values (n, C), whose columns are in the model's order, as in ``classes_``."""
        order = np.argsort(self._labels)
        return values[:, order].numpy()


class ImageEmbedder(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Transformer from images to the embeddings of a frozen backbone; it learns nothing.

    Args:
        backbone: its name (:func:`cifnet_pl.build_backbone`), or a backbone.
        image_size: side in pixels of the squares that are embedded; None for that of the weights.

    Example:
        >>> images = np.zeros((2, 40, 30, 3), np.uint8)
        >>> ImageEmbedder("pixels:8").fit_transform(images).shape
        (2, 192)
    """

    def __init__(
        self,
        backbone: str | Backbone = DEFAULT_BACKBONE,
        image_size: int | None = None,
    ):
        self.backbone = backbone
        self.image_size = image_size

    def fit(self, X: Any, y: Any = None) -> ImageEmbedder:
        """Build the backbone, so that a wrong name is an error now; the images are not read."""
        _built(self.backbone)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Embed images.

        Args:
            X: n images: paths, bytes of image files, Pillow images, or uint8 arrays (h, w, 3); also
                an array (n, h, w, 3), or a table with one column of paths.

        Returns:
            (n, d) float32.

        Raises:
            DataError: an image cannot be read.
        """
        images = X
        if getattr(X, "shape", ())[1:] == (1,):
            images = np.asarray(X).ravel()
        backbone = _built(self.backbone)
        found = embed(images, backbone, image_size=self.image_size)
        for image, reason in found.unreadable.items():
            raise DataError(f"{image}: {reason}; leave it out")
        return found.embeddings.numpy()

    @property
    def _n_features_out(self) -> int:
        return _built(self.backbone).features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


@lru_cache(maxsize=1)
def _built(backbone: str | Backbone) -> Backbone:
    """Return a backbone; clones in one process share the one that was named last."""
    if isinstance(backbone, str):
        return build_backbone(backbone)
    return backbone
