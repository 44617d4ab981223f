"""Evaluate a model on its own stored samples: accuracy, confusions, groups of photos that look alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cifnet_pl.heads.calibration import near_copies
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.metrics import percent
from cifnet_pl.serving.answers import Look, Moment

LARGEST_CONFUSION = 40
"""Classes above which no confusion matrix is shown."""


def stored_answers(model: Classifier) -> tuple[Tensor, Tensor] | None:
    """Answer for each stored sample as if it had never been learned.

    Near-copies, such as bursts, are left out together.

    Returns:
        (n,) true columns and (n,) answered columns; None if the head has no leave-one-out scores or nothing is stored.
    """
    if model.buffer is None or not len(model.buffer.y) or not model.head.leaves_one_out or len(model.class_names) < 2:
        return None
    z, y = model.buffer.items()
    scores = model.head.leave_one_out(z, y, near_copies(z, y))
    known = scores.isfinite().all(dim=1)
    true = (y[known, None] == model.head.labels).int().argmax(dim=1)
    return true.cpu(), scores[known].argmax(dim=1).cpu()


def stored_accuracy(model: Classifier, names: Sequence[str]) -> float | None:
    """Return the leave-one-out accuracy on the stored samples of some classes.

    Args:
        model: a learned model.
        names: of the classes.

    Returns:
        Percent; None if it cannot be measured.
    """
    stored = stored_answers(model)
    if stored is None:
        return None
    true, answered = stored
    columns = torch.tensor([model.class_names.index(name) for name in names], dtype=torch.int64)
    rows = torch.isin(true, columns)
    return percent(int((true == answered)[rows].sum()), int(rows.sum()))


def look(model: Classifier, name: str, version: int, read_only: bool) -> Look:
    """Return the state of a model, for the page.

    Args:
        model: a learned model.
        name: of the model.
        version: its number.
        read_only: whether changes are refused.
    """
    stored = stored_answers(model)
    confusion: list[list[float]] | None = None
    accuracy: float | None = None
    count = len(model.class_names)
    if stored is not None:
        true, answered = stored
        accuracy = percent(int((true == answered).sum()), len(true))
        if count <= LARGEST_CONFUSION:
            table = torch.bincount(true * count + answered, minlength=count**2).view(count, count).double()
            confusion = (100 * table / table.sum(dim=1, keepdim=True).clamp_min(1)).tolist()
    parts = {name: size / 1e6 for name, size in _bytes(model).items()}
    moments = [Moment.model_validate(event, from_attributes=True) for event in model.history]
    return Look(
        name=name,
        version=version,
        read_only=read_only,
        head=type(model.head).__name__,
        backbone=model.backbone.name,
        image_size=model.image_size,
        classes=count,
        photos=sum(model.counts.values()),
        state_mb=sum(parts.values()),
        parts_mb=parts,
        history=moments,
        confusion=confusion,
        confusion_classes=model.class_names if confusion is not None else [],
        stored_accuracy=accuracy,
    )


def _bytes(model: Classifier) -> dict[str, int]:
    """Return the bytes of the tensors of head and buffer."""
    sizes: dict[str, int] = {}
    for key, value in model.tensors().items():
        component = key.partition(".")[0]
        sizes[component] = sizes.get(component, 0) + value.nbytes
    return sizes


def groups_of(z: Tensor, largest: int = 12) -> list[list[int]]:
    """Group embeddings by likeness.

    Average-linkage clustering of the cosine distances, into the number of groups (2 to ``largest``) with the best mean
    silhouette (Rousseeuw, 1987). Fewer than three photos are one group.

    Args:
        z: (n, d) embeddings.
        largest: number of groups at most.

    Returns:
        Rows of each group, the largest group first.
    """
    from sklearn.cluster import AgglomerativeClustering  # loads for seconds, and few ask for groups
    from sklearn.metrics import silhouette_score

    count = len(z)
    if count < 3:
        return [list(range(count))] if count else []
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    distances = (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0).cpu().numpy()
    best, chosen = -1.0, [0] * count
    for groups in range(2, min(largest, count - 1) + 1):
        labels = AgglomerativeClustering(groups, metric="precomputed", linkage="average").fit_predict(distances)
        quality = float(silhouette_score(distances, labels, metric="precomputed"))
        if quality > best:
            best, chosen = quality, labels.tolist()
    rows = [[row for row in range(count) if chosen[row] == label] for label in sorted(set(chosen))]
    return sorted(rows, key=len, reverse=True)
