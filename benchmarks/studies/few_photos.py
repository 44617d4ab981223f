"""``python -m benchmarks.studies.few_photos ROOT…``: few photos of a class, and uneven classes, against scikit-learn.

All learn the same photos at once, on the embedding that ``fit`` uses. Those of scikit-learn get standardised features
and choose their penalty by three-fold cross-validation. ``auto`` decides by all photos that it has learned. In percent
of the validation photos, mean over draws; with ``--uneven`` eight classes have 45 photos and four 5, and the second
number is the mean over classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import Tensor

from benchmarks.studies.decision import some
from benchmarks.studies.photos import RICH, Photos, learned, read_photos, show, show_columns, study_parser
from cifnet_pl.heads import NCMHead, RidgeHead
from cifnet_pl.heads.confidence import CalibrationSamples, calibrate, near_copies
from cifnet_pl.model.calibration import occasions

FOLDS = 3
Rule = Callable[[Photos], Tensor]
"""Function from photos to the classes (n,) of the validation photos."""


def exact(decision: str, balanced: bool = False) -> Rule:
    """The exact head with a decision."""

    def classes(photos: Photos) -> Tensor:
        head = learned(partial(RidgeHead, decision=decision, balanced=balanced), photos)
        if head.decides:
            head.decide(photos.z, photos.y, occasions(CalibrationSamples(head, photos.z, photos.y))[1])
        return head.predict(photos.val_z)

    return classes


def both(photos: Photos) -> Tensor:
    """The sum of ridge regression and the discriminant, each at its own temperature."""
    near, scores = near_copies(photos.z, photos.y), torch.zeros(())
    for decision in ("ridge", "discriminant"):
        head = learned(partial(RidgeHead, decision=decision), photos)
        scores = scores + head(photos.val_z) / calibrate(CalibrationSamples(head, photos.z, photos.y).grouped(near))
    return scores.argmax(dim=1)


def nearest_mean(photos: Photos) -> Tensor:
    """Cosine to the class means, of embeddings less their mean."""
    centre = photos.z.mean(dim=0)
    return learned(NCMHead, replace(photos, z=photos.z - centre)).predict(photos.val_z - centre)


def scikit(make: Callable[[], object]) -> Rule:
    """A classifier of scikit-learn on standardised features."""

    def classes(photos: Photos) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of convergence, in folds of two photos a class
            model = make_pipeline(StandardScaler(), make()).fit(photos.z.numpy(), photos.y.numpy())
        return torch.from_numpy(model.predict(photos.val_z.numpy()))

    return classes


RULES: dict[str, Rule] = {
    "ours": exact("auto"),
    "ridge": exact("ridge"),
    "discriminant": exact("discriminant"),
    "both": both,
    "nearest mean": nearest_mean,
    "LDA, Ledoit–Wolf": scikit(lambda: LinearDiscriminantAnalysis("lsqr", shrinkage="auto")),
    "linear SVM": scikit(lambda: GridSearchCV(LinearSVC(), {"C": np.logspace(-5, -1, 5)}, cv=FOLDS)),
    "logistic regression": scikit(lambda: LogisticRegressionCV(Cs=np.logspace(-5, -1, 5), cv=FOLDS, max_iter=200)),
}
UNEVEN: dict[str, Rule] = {
    **{name: RULES[name] for name in ("ours", "ridge", "discriminant", "both")},
    "ridge, balanced": exact("ridge", balanced=True),
    "logistic regression, balanced": scikit(
        lambda: LogisticRegressionCV(Cs=np.logspace(-5, -1, 5), cv=FOLDS, max_iter=200, class_weight="balanced")
    ),
}


def uneven(photos: Photos, seed: int) -> Photos:
    """Eight of the largest classes with at most 45 photos, and four others with 5."""
    draw = np.random.default_rng(seed)
    large = draw.permutation(photos.y.bincount().argsort(descending=True)[:12].numpy())[:8].tolist()
    small = draw.permutation([c for c in range(photos.classes) if c not in large])[:4].tolist()
    rows = [draw.permutation(np.flatnonzero(photos.y == c))[: 45 if c in large else 5] for c in large + small]
    kept, known = torch.from_numpy(np.concatenate(rows)), torch.tensor(sorted(large + small))
    val = torch.isin(photos.val_y, known)
    labels = [torch.searchsorted(known, y) for y in (photos.y[kept], photos.val_y[val])]
    return Photos(photos.z[kept], labels[0], photos.val_z[val], labels[1])


def accuracies(rule: Rule, photos: Photos) -> Tensor:
    """(2,) percent of the validation photos, and mean over classes, that a rule names right."""
    right = 100 * (rule(photos) == photos.val_y).double()
    return torch.stack(
        [right.mean(), torch.stack([right[photos.val_y == c].mean() for c in photos.val_y.unique()]).mean()]
    )


def main() -> None:
    """Print a row for each set and number of photos, or for each set of uneven classes."""
    parser = study_parser(__doc__, roots="+")
    parser.add_argument("--counts", type=int, nargs="*", default=(5, 10, 25), help="photos of a class")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--uneven", action="store_true")
    options = parser.parse_args()
    rules = UNEVEN if options.uneven else RULES
    show_columns(["set", "photos of a class", *rules])
    for root in options.root:
        photos = read_photos(root, options, RICH)
        for count in ("45 or 5",) if options.uneven else options.counts:
            choose = partial(uneven, photos) if options.uneven else partial(some, photos, count)
            drawn = [choose(seed) for seed in range(options.draws)]
            means = [torch.stack([accuracies(rule, d) for d in drawn]).mean(dim=0) for rule in rules.values()]
            show([root.name, str(count), *(f"{mean[0]:.1f} ({mean[1]:.1f})" for mean in means)])


if __name__ == "__main__":
    main()
