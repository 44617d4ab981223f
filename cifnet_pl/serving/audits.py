"""Find doubtful labels among the kept photos, and estimate how many more photos would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from cifnet_pl.model.audit import LearningCurve, audit, learning_curve
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.answers import Audit, CurvePoint, Doubtful
from cifnet_pl.serving.gallery import Gallery
from cifnet_pl.serving.refusals import RequestError

MOST = 2000
"""Kept photos that are judged, evenly spaced."""

SHOWN = 24
"""Doubtful photos that are named."""


def audited(model: Classifier, gallery: Gallery, kept: Mapping[str, Sequence[str]]) -> Audit:
    """Judge kept photos, and measure accuracy by number of photos on the model's stored samples.

    Args:
        model: the served model.
        gallery: with the embeddings of the kept photos.
        kept: class name → names of its kept photos.

    Raises:
        RequestError: nothing is stored that could be judged.
    """
    doubtful, judged, not_judged = _doubtful(model, gallery, kept)
    curve, short = _curve(model)
    if not (judged or not_judged or curve):
        raise RequestError(
            409, "neither photos nor samples of two classes are stored: teach some here, or learn with a buffer"
        )
    points = [CurvePoint(photos=count, accuracy=accuracy) for count, accuracy in curve.points] if curve else []
    double = curve.forecast(2 * points[-1].photos) if curve else None
    return Audit(
        photos=judged,
        not_judged=not_judged,
        doubtful=doubtful,
        short=short,
        curve=points,
        with_twice_as_many=double,
    )


def _doubtful(
    model: Classifier, gallery: Gallery, kept: Mapping[str, Sequence[str]]
) -> tuple[list[Doubtful], int, list[str]]:
    pairs = [(file, name) for name, files in kept.items() for file in files]
    chosen = dict(pairs[:: -(-len(pairs) // MOST)] if pairs else [])
    files, z = gallery.embeddings(list(chosen))
    names = list(dict.fromkeys(chosen[file] for file in files))
    if len(names) < 2:
        return [], 0, []
    labels = np.array([names.index(chosen[file]) for file in files], dtype=np.int64)
    result = audit(z.numpy(), labels, names)
    shown = [
        Doubtful(
            file=files[row],
            label=names[labels[row]],
            looks_like=names[int(result.evaluation.predicted[row])],
            own=float(result.own[row]),
        )
        for row in result.doubtful()[:SHOWN].tolist()
    ]
    return shown, int(result.judged.sum()), list(result.unjudged)


def _curve(model: Classifier) -> tuple[LearningCurve | None, list[str]]:
    """Return the curve over the stored samples, and the names of classes with too few; None where all have too few."""
    if model.buffer is None or not len(model.buffer.y) or len(model.class_names) < 2:
        return None, []
    z, y = model.buffer.items()
    present, labels = torch.unique(y.cpu(), return_inverse=True)
    counts = torch.bincount(labels)
    if len(present) < 2 or int(counts.median()) < 3:
        return None, []
    curve = learning_curve(z.cpu().float().numpy(), labels.numpy(), len(present))
    return curve, [model.class_names[int(present[label])] for label in curve.short]
