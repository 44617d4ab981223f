"""Find label errors and outliers among images by their embeddings, and measure a learning curve.

One exact ridge classifier learns all images. Its leave-one-out scores have a closed form, so each
image is predicted without itself and its near-duplicates. For the audit itself nothing is held out
or learned twice; a learning curve fits one classifier per size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from cifnet_pl.data.embedding_cache import EmbeddingCache, pipeline_folder
from cifnet_pl.data.samples import Source
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.probabilities import fit_probabilities
from cifnet_pl.images.duplicates import find_repeats
from cifnet_pl.model.calibration import COVERAGE
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.evaluation import Evaluation, judge, table_of
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable
from cifnet_pl.statistics import near_duplicates, to_probabilities
from cifnet_pl.utilities.errors import DataError


def fitted_head(z: np.ndarray, labels: np.ndarray, classes: int) -> RidgeHead:
    """Return an exact head, fitted to all rows.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
    """
    head = RidgeHead(z.shape[1])
    head.begin_task(range(classes))
    head.observe(torch.from_numpy(z), torch.from_numpy(labels))
    head.solve()
    return head


class NearDuplicates(NamedTuple):
    """The near-duplicates among images.

    Attributes:
        groups: (n,) int64, equal for images that are left out together.
        duplicated: (n,) bool, which images have a near-duplicate in their class.
        judged: (n,) bool, which can be judged: not the only image of a class, nor those of a class
            that are all near-duplicates of one another, as nothing is known of it without them.
    """

    groups: np.ndarray
    duplicated: np.ndarray
    judged: np.ndarray


def find_near_duplicates(z: np.ndarray, labels: np.ndarray) -> NearDuplicates:
    """Find near-duplicates of one class, such as bursts.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64.
    """
    y = torch.from_numpy(labels)
    similar = near_duplicates(torch.from_numpy(z), y).numpy()
    class_sizes = np.bincount(labels)
    class_size = class_sizes[labels]
    group_sizes = np.bincount(similar)
    group_size = group_sizes[similar]
    # Without more than half of a class little would be known of it: its images stand alone.
    is_too_large = 2 * group_size > class_size
    alone = len(labels) + np.arange(len(labels))
    together = np.where(is_too_large, alone, similar)
    judged = group_size < class_size
    return NearDuplicates(together, group_size > 1, judged)


@dataclass(frozen=True)
class Audit:
    """Leave-one-out predictions of all images.

    Their near-duplicates are left out too, unless these are more than half of their class.

    Attributes:
        images: a row for each image, with its ``class``, the probability of that
            (``probability_of_class``: self-confidence, Northcutt et al., 2021), the class
            ``predicted`` with its ``probability``, whether it is a probable ``label_error`` (its
            self-confidence is below 5 %, and another class has more than half of the probability)
            or has a ``near_duplicate`` in its class, its ``novelty`` without it and its group, and
            whether it can be ``judged`` (:class:`NearDuplicates`).
        scored: the predictions for the images that can be judged.
    """

    images: pd.DataFrame
    scored: Evaluation

    @property
    def unjudged(self) -> dict[str, int]:
        """Class name → number of its images that cannot be judged, where there are some."""
        classes = self.images.loc[~self.images["judged"], "class"]
        counts: dict[str, int] = classes.value_counts(sort=False).to_dict()
        return counts

    def label_errors(self) -> pd.DataFrame:
        """Return the images with a probable label error, the most probable first."""
        errors = self.images[self.images["label_error"]]
        return errors.sort_values("probability_of_class", kind="stable")

    def outliers(self) -> pd.DataFrame:
        """Return the images unlike all classes, the most novel first.

        Their novelty is above the upper quartile by more than 1.5 times the interquartile range
        (Tukey, 1977).
        """
        novelty = self.images["novelty"]
        lower, upper = novelty.quantile([0.25, 0.75])
        outliers = self.images[novelty > upper + 1.5 * (upper - lower)]
        return outliers.sort_values("novelty", ascending=False, kind="stable")


def audit(z: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> Audit:
    """Predict every image by all the others except for its near-duplicates.

    Images that resemble more than half of their class are predicted with their near-duplicates, as
    little is known of the class without these.

    Args:
        z: (n, d) float32 embeddings.
        labels: (n,) int64 positions in ``class_names``.
        class_names: names of the classes; each must have an image.
    """
    found = find_near_duplicates(z, labels)
    embeddings = torch.from_numpy(z)
    y = torch.from_numpy(labels)
    groups = torch.from_numpy(found.groups)
    judged = torch.from_numpy(found.judged)
    head = fitted_head(z, labels, len(class_names))
    scores = head.leave_one_out(embeddings, y, groups).nan_to_num()
    if judged.any():
        fit = fit_probabilities([scores[judged]], y[judged])
        head.weigh_rules(fit.rule_weights)
        head.odds_power.fill_(fit.power)
    probabilities = to_probabilities(scores, head.temperature, head.odds_power)
    samples = table_of([judge(probabilities, y)])
    scored = Evaluation(list(class_names), samples[found.judged])
    of_class = probabilities.gather(1, y[:, None])[:, 0].numpy()
    novelty = head.leave_one_out_novelty(embeddings, y, groups)
    is_unlikely = (of_class < 1 - COVERAGE) & (samples["confidence"] > 0.5)
    names = np.array(class_names, dtype=object)
    images = pd.DataFrame(
        {
            "class": names[labels],
            "probability_of_class": of_class,
            "predicted": names[samples["predicted"]],
            "probability": samples["confidence"],
            "label_error": found.judged & is_unlikely,
            "near_duplicate": found.duplicated,
            "novelty": novelty.masked_fill(~judged, torch.nan).numpy(),
            "judged": found.judged,
        }
    )
    return Audit(images, scored)


# ---------------------------------------------------------------------- learning curve


class CurvePoint(NamedTuple):
    """One point of a learning curve.

    Attributes:
        images: number of images of each class.
        accuracy: leave-one-out accuracy in percent.
    """

    images: int
    accuracy: float


def learning_curve(z: np.ndarray, labels: np.ndarray, classes: int) -> list[CurvePoint]:
    """Measure leave-one-out accuracy with …, a quarter, half and all images of each class.

    Each point is of about twice as many images as the one before. Images are drawn at random. The
    last size is one that more than half of the classes have. The accuracy at every size is the mean
    over the same classes, which have as many images and can be judged at all sizes; the images that
    the other classes have are learned beside theirs.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1; a class has several images.
        classes: number of classes.
    """
    from sklearn.metrics import recall_score

    counts = np.bincount(labels, minlength=classes)
    sizes = _curve_sizes(counts)
    order = np.random.default_rng(0).permutation(len(labels))
    shuffled = pd.Series(labels[order], index=order)
    drawn = []
    measured = counts >= sizes[-1]
    for size in sizes:
        first = shuffled.groupby(shuffled.to_numpy()).head(size)
        rows = np.sort(first.index.to_numpy())
        found = find_near_duplicates(z[rows], labels[rows])
        drawn.append((rows, found.groups))
        unjudged = rows[~found.judged]
        measured[labels[unjudged]] = False
    if not measured.any():  # all classes are bursts: a single point
        measured = counts >= sizes[-1]
        sizes = sizes[-1:]
        drawn = drawn[-1:]
    points = []
    for size, (rows, groups) in zip(sizes, drawn, strict=True):
        own = labels[rows]
        head = fitted_head(z[rows], own, classes)
        scores = head.leave_one_out(*map(torch.from_numpy, (z[rows], own, groups)))
        predicted = scores.argmax(dim=1).numpy()
        recall = recall_score(
            own, predicted, labels=np.flatnonzero(measured), average="macro"
        )
        points.append(CurvePoint(size, 100 * float(recall)))
    return points


def _curve_sizes(counts: np.ndarray) -> list[int]:
    """Return the numbers of images per class of a curve.

    Args:
        counts: (C,) images of each class; one has several.
    """
    several = np.sort(counts[counts > 1])  # of a single image nothing can be measured
    middle = (len(several) - 1) // 2
    largest = int(several[middle])
    halvings = range(largest.bit_length() - 2, -1, -1)
    return [largest >> halving for halving in halvings]


# ---------------------------------------------------------------------- embeddings


class EmbeddedImages(NamedTuple):
    """Images to audit.

    Attributes:
        z: (n, d) float32 embeddings.
        labels: (n,) int64.
        files: the n files.
        undecided: files that lie in two classes, which are not among the n → these classes.
        unreadable: images that cannot be decoded.
    """

    z: np.ndarray
    labels: np.ndarray
    files: list[Path]
    undecided: dict[Path, str]
    unreadable: list[Unreadable]


def embeddings_of(
    model: Classifier,
    source: Source,
    cache_folder: Path,
) -> EmbeddedImages:
    """Embed all training and test images of a source; what the cache lacks is added to it.

    Args:
        model: its backbone embeds.
        source: images in class folders.
        cache_folder: folder of the embedding cache.

    Raises:
        DataError: no image can be read.
        CifnetError: the cache cannot be written.
    """
    pipeline = pipeline_folder(
        cache_folder,
        model.backbone,
        model.image_size,
        model.crop_ratio,
        model.precision,
        model.backbone.device.type,
    )
    embeddings = []
    tables = []
    unreadable = []
    for name, samples in (("train", source.train), ("val", source.test)):
        cache = EmbeddingCache(samples, source.class_names, pipeline / name)
        readable = cache.known(np.arange(len(samples)))
        z = np.empty((len(samples), model.backbone.features), np.float32)
        missing = np.flatnonzero(~readable)
        if readable.any():
            z[readable] = cache.get(np.flatnonzero(readable))
        others = LabelledImages(source.class_names, samples.subset(missing))
        for batch, batch_z in others.embedded(model, "embedding", True):
            embedded = missing[batch]
            hashes = torch.from_numpy(others.files.hashes(batch))
            cache.collect(torch.from_numpy(embedded), hashes, batch_z)
            z[embedded] = batch_z.cpu().numpy()
            readable[embedded] = True
        cache.leave_out(np.flatnonzero(~readable))
        unreadable += others.unreadable
        rows = np.flatnonzero(readable)
        files = [samples.file(row) for row in rows.tolist()]
        columns = {
            "label": samples.labels[rows],
            "hash": samples.hashes(rows),
            "file": files,
        }
        embeddings.append(z[rows])
        tables.append(pd.DataFrame(columns))
    table = pd.concat(tables, ignore_index=True)
    if not len(table):
        raise DataError("none of the images can be read: there is nothing to audit")
    class_of = [source.class_names[label] for label in table["label"]]
    repeats = find_repeats(table["hash"].items(), class_of)
    undecided = {
        table["file"][row]: f"in {class_of[row]} and {other}"
        for row, other in sorted(repeats.undecided.items())
    }
    decided = table.drop(index=list(repeats.undecided))
    z = np.concatenate(embeddings)[decided.index]
    labels = decided["label"].to_numpy()
    return EmbeddedImages(z, labels, list(decided["file"]), undecided, unreadable)
