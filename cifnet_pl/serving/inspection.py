"""Look at a model: what it says of its own stored samples, of kept photos, and which photos look
alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cifnet_pl.model.audit import audit
from cifnet_pl.model.calibration import (
    MIN_IMAGES_PER_CLASS,
    Kind,
    accuracy_margin,
    gain_of_more_images,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.metrics import left_out_predictions, percent, rarely_predicted
from cifnet_pl.serving.answering import Message, Scored
from cifnet_pl.serving.refusals import RequestError

CONFUSED = 0.1
NAMED = 2
"""Share of a class's photos from which it is said to be taken for another one, and how many of
those are named.
"""

PER_CLASS = 100
"""Photos of a class that are compared with a new one, the newest."""

AT_ONCE = 8
"""Kept photos that are embedded at a time: answers that come meanwhile wait for no more than
these.
"""

MOST = 2000
"""Kept photos that are audited, evenly spaced."""

SHOWN = 24
"""Doubtful photos that are named."""


class Moment(Message, from_attributes=True):
    """One step in the model's life."""

    what: str
    classes: int
    images: int | None
    accuracy: float | None
    old_accuracy: float | None
    seconds: float | None
    energy_kwh: float | None
    energy_source: str | None


class Promise(Message):
    """How many photos that were not learned are answered right, by two names that must not be
    mistaken.
    """

    loo_accuracy: float | None
    """Percent of stored photos, each judged without itself."""
    new_group_accuracy: float | None
    """The same, each judged without those of its occasion, an estimate; or if measured, percent of
    labelled photos of a new place."""
    known: Kind
    """What another_day comes from: found occasions, independent photos, or measured; few: too few
    photos to say; unknown: not estimated."""

    says: list[str]
    """Both numbers in words."""

    @classmethod
    def of(cls, model: Classifier) -> Promise:
        """Return what a model says of itself."""
        found = model.calibration
        says = model.accuracy_sentences()[:2]
        return cls(
            loo_accuracy=found.loo_accuracy,
            new_group_accuracy=found.new_group_accuracy,
            known=found.known,
            says=says,
        )


class Look(Message):
    """The state of the model."""

    name: str
    version: int
    read_only: bool
    head: str
    backbone: str
    image_size: int
    classes: int
    images: int
    state_mb: float
    """Numbers kept, in MB; without the frozen backbone."""
    history: list[Moment]
    right: Promise


class ClassAnswers(Message):
    """What is answered for the photos of one class, each judged without those of its occasion."""

    name: str
    right: float | None
    """Percent named right on another day, an estimate; null: too few to say."""
    between: tuple[float, float] | None = None
    """What as many new photos, from as many occasions, may show (95 %); those of an occasion count
    once.
    """
    taken_for: list[str] = Field(default=[])
    """What its photos are taken for, the most frequent first."""
    seldom: bool = False
    """Whether hardly any of its photos is named right."""


class Answers(Message):
    """What is answered for the stored photos."""

    classes: list[ClassAnswers]
    margin: float | None = None
    """Points by which another_day may be off, as far as the stored photos tell (95 %)."""
    ten_more: tuple[float, float] | None = None
    """Points that ten more photos of each class would bring on another day, an estimate: its
    interval of 95 %; null: too few to say."""


class LabelErrors(Message):
    """A kept photo whose label is doubtful."""

    file: str
    """Name of the kept photo."""
    label: str
    looks_like: str
    own: float
    """Probability of its label, judged by all other photos, 0–1."""


class Audit(Message):
    """Doubtful labels among kept photos."""

    images: int
    """Kept photos that were judged."""
    not_judged: list[str]
    """Classes of which one photo, or near-copies of one alone, are kept."""
    label_errors: list[LabelErrors]
    """The most doubtful first."""


def stored_accuracy(model: Classifier, names: Sequence[str]) -> float | None:
    """Return the accuracy on the samples of some classes that calibrate a model, each left out with
    its occasion.

    Args:
        model: a learned model.
        names: of the classes.

    Returns:
        Percent; None if it cannot be measured.
    """
    stored = left_out_predictions(model)
    if stored is None:
        return None
    true, answered = stored
    rows = torch.isin(true, torch.tensor([model.class_names.index(name) for name in names]))
    return percent(int((true == answered)[rows].sum()), int(rows.sum()))


def look(model: Classifier, name: str, version: int, read_only: bool) -> Look:
    """Return the state of a model, for the page.

    Args:
        model: a learned model.
        name: of the model.
        version: its number.
        read_only: whether changes are refused.
    """
    return Look(
        name=name,
        version=version,
        read_only=read_only,
        head=type(model.head).__name__,
        backbone=model.backbone.name,
        image_size=model.image_size,
        classes=len(model.class_names),
        images=sum(model.counts.values()),
        state_mb=sum(tensor.nbytes for tensor in model.tensors().values()) / 1e6,
        history=[Moment.model_validate(event) for event in model.history],
        right=Promise.of(model),
    )


WIDEST = 75
"""Points between which a class's share may lie, from which on nothing is said of it: of a few
occasions.
"""


def class_answers(model: Classifier) -> Answers:
    """Return what is answered for the stored photos of each class, in the order of the classes."""
    names = model.class_names
    count = len(model.class_names)
    samples = model.calibration_samples()
    stored = None if model.calibration.known in ("few", "unknown") else left_out_predictions(model)
    if samples is None or stored is None:
        return Answers(classes=[ClassAnswers(name=name, right=None) for name in names])
    true, answered = stored
    table = (true * count + answered).bincount(minlength=count**2).view(count, count)
    right = table.diagonal().numpy()
    images = table.sum(dim=1).numpy()
    seldom = set(rarely_predicted(right, images).tolist())
    if samples.groups is None:
        groups = torch.arange(len(samples.y))
    else:
        groups = samples.groups.cpu()
    columns = samples.columns.cpu()
    counted = samples.counted.cpu()
    found = []
    for row, name in enumerate(names):
        if images[row] < MIN_IMAGES_PER_CLASS:
            found.append(ClassAnswers(name=name, right=None))
            continue
        others = [
            (int(n), names[column]) for column, n in enumerate(table[row].tolist()) if column != row
        ]
        taken = sorted((pair for pair in others if pair[0] > CONFUSED * images[row]), reverse=True)
        listed = [other for _, other in taken[:NAMED]]
        share = float(right[row] / images[row])
        count = len(torch.unique(groups[counted & (columns == row)]))
        low, high = forecast(share, count)
        seen = ClassAnswers(name=name, right=None, taken_for=listed, seldom=row in seldom)
        if high - low <= WIDEST:
            seen.right = 100 * share
            seen.between = (low, high)
        found.append(seen)
    least = 100 - forecast(1.0, len(torch.unique(groups[counted])))[0]  # where all are right, too
    return Answers(
        classes=found,
        margin=max(accuracy_margin(samples), least),
        ten_more=gain_of_more_images(samples),
    )


def forecast(share: float, groups: int) -> tuple[float, float]:
    """Return between which percentages as many new occasions as were seen lie with a chance of 95 %
    at least.

    The share on another day is not known, and what occasions show of it varies: quantiles of the
    beta-binomial distribution, from Jeffreys' prior.

    Args:
        share: right answers, 0 to 1.
        occasions: number of those that they are of.
    """
    from scipy.stats import betabinom  # to classify needs none of it

    right = share * groups
    low, high = betabinom(groups, right + 0.5, groups - right + 0.5).interval(0.95)
    return 100 * float(low) / groups, 100 * float(high) / groups


def groups_of(z: Tensor, largest: int = 12) -> list[list[int]]:
    """Group embeddings by likeness.

    Average-linkage clustering of the cosine distances, into the number of groups (2 to ``largest``)
    with the best mean silhouette (Rousseeuw, 1987). Fewer than three photos are one group.

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
        if count:
            return [list(range(count))]
        return []
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    distances = (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0).cpu().numpy()
    best = -1.0
    chosen = [0] * count
    for groups in range(2, min(largest, count - 1) + 1):
        labels = AgglomerativeClustering(
            groups, metric="precomputed", linkage="average"
        ).fit_predict(distances)
        quality = float(silhouette_score(distances, labels, metric="precomputed"))
        if quality > best:
            best = quality
            chosen = labels.tolist()
    rows = [[row for row in range(count) if chosen[row] == label] for label in sorted(set(chosen))]
    return sorted(rows, key=len, reverse=True)


Submit = Callable[[str], Future[Scored]]
"""Name of a kept photo → its embedding; raises OSError where the file is gone."""


class Gallery:
    """The kept photos of the served version, embedded in the background after every change.

    Args:
        kept: returns the names of the kept photos of each class.
        waiting: returns the names of photos that wait to be decided.
        submit: embeds one photo.

    Attributes:
        known: name of a photo → its embedding (d,), right for every version.
    """

    def __init__(
        self,
        kept: Callable[[], Mapping[str, Sequence[str]]],
        waiting: Callable[[], Sequence[str]],
        submit: Submit,
    ):
        self._kept = kept
        self._waiting = waiting
        self._submit = submit
        self.known: dict[str, Tensor] = {}
        self._classes: dict[str, tuple[list[str], Tensor]] = {}
        self._changed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="gallery", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Start to embed new photos; return at once."""
        self._changed.set()

    def close(self) -> None:
        """Stop the thread that embeds."""
        self._ended = True
        self._changed.set()
        self._thread.join()

    def nearest(self, name: str, z: Tensor) -> str | None:
        """Return the kept photo of a class with the largest cosine to an embedding; None if none is
        kept.

        Args:
            name: of the class.
            z: (d,).
        """
        files, unit = self._classes.get(name, ([], z.new_zeros(0, len(z))))
        if files:
            return files[int((unit @ z.cpu().float()).argmax())]
        return None

    def embeddings(
        self, names: Sequence[str], report: Callable[[int, int], object] = lambda done, total: None
    ) -> tuple[list[str], Tensor]:
        """Embed kept photos, and wait for the result.

        Args:
            names: of the photos.
            report: called with how many of those that were not known are embedded, and how many
                these are.

        Returns:
            Names of the photos that can be read, and their embeddings (n, d).
        """
        self._embed([name for name in names if name not in self.known], report)
        present = [name for name in names if name in self.known]
        return present, (
            torch.stack([self.known[name] for name in present]) if present else torch.zeros(0, 0)
        )

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._ended:
                return
            kept = self._kept()
            newest = {name: list(files)[-PER_CLASS:] for name, files in kept.items()}
            self._embed(
                [file for files in newest.values() for file in files if file not in self.known]
            )
            classes = {}
            for name, files in newest.items():
                here = [file for file in files if file in self.known]
                if here:
                    stacked = torch.stack([self.known[file] for file in here])
                    classes[name] = here, torch.nn.functional.normalize(stacked, dim=1)
            self._classes = classes
            waiting = self._waiting()
            missing = [file for file in waiting if file not in self.known]
            for start in range(0, len(missing), AT_ONCE):
                if not self._changed.is_set():  # else all begins anew
                    self._embed(missing[start : start + AT_ONCE])
            wanted = {file for files in kept.values() for file in files}.union(waiting)
            for file in [
                file for file in list(self.known) if file not in wanted
            ]:  # an audit may add others meanwhile
                del self.known[file]

    def _embed(
        self, names: Sequence[str], report: Callable[[int, int], object] = lambda done, total: None
    ) -> None:
        for start in range(0, len(names), AT_ONCE):
            if self._ended:
                return
            waiting = []
            for name in names[start : start + AT_ONCE]:
                try:
                    waiting.append((name, self._submit(name)))
                except (
                    Exception
                ):  # gone, or too much to do: it is tried again after the next change
                    continue
            for name, future in waiting:
                if future.exception() is None:
                    self.known[name] = future.result().z.cpu().float()
            report(start + len(waiting), len(names))


def audited(gallery: Gallery, kept: Mapping[str, Sequence[str]]) -> Audit:
    """Judge kept photos, each by all the others.

    Args:
        gallery: with the embeddings of the kept photos.
        kept: class name → names of its kept photos.

    Raises:
        RequestError: no photos of two classes are kept.
    """
    pairs = [(file, name) for name, files in kept.items() for file in files]
    chosen = dict(pairs[:: -(-len(pairs) // MOST)] if pairs else [])
    files, z = gallery.embeddings(list(chosen))
    names = list(dict.fromkeys(chosen[file] for file in files))
    if len(names) < 2:
        raise RequestError(
            409, "no photos of two classes are kept here, so none can be doubted: teach some"
        )
    labels = np.array([names.index(chosen[file]) for file in files], dtype=np.int64)
    result = audit(z.numpy(), labels, names)
    shown = [
        LabelErrors(
            file=files[row],
            label=names[labels[row]],
            looks_like=names[int(result.evaluation.predicted[row])],
            own=float(result.self_confidence[row]),
        )
        for row in result.label_errors()[:SHOWN].tolist()
    ]
    return Audit(
        images=int(result.judged.sum()), not_judged=list(result.unjudged), label_errors=shown
    )
