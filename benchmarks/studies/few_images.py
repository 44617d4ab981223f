"""``python -m benchmarks.studies.few_images IMAGES…``: which head, with few images of a class and
with many.

All learn the same images at once, on the same embeddings, and are asked about the validation
images; in percent, mean over draws. IMAGES is a folder, or a file that ``cifnet embed`` made of
one. ``default`` is what ``cifnet fit`` learns with: it selects its decision rule by at most 2000
samples of the calibration buffer. Those of scikit-learn get standardised features and choose their
penalty by three-fold cross-validation (from ``MANY`` images on by one split); ACIL has the ridge
that is best *on the validation images*.
"uneven" is eight classes with at most 45 images beside four with 5; there the second number is the
mean over classes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    StratifiedShuffleSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from benchmarks.studies.images import (
    RICH,
    Images,
    learned,
    mean_eigenvalue,
    read_images,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import ACILHead, NCMHead, RidgeHead
from cifnet_pl.model.classifier import Classifier

MANY = 10_000
"""Images from which on a penalty is chosen by one split."""

PENALTIES = np.logspace(-5, 2, 8)
"""C of scikit-learn, with standardised features."""

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Ridges of ACIL, as shares of the mean eigenvalue."""

Rule = Callable[[Images], Tensor]
"""Function from images to the classes (n,) of the validation images."""


def new_model(width: int, products: float | Literal["auto"] = "auto") -> Classifier:
    """What ``fit`` learns with, on embeddings."""
    head = RidgeHead(width, decision="auto", product_features=products)
    return Classifier(
        build_backbone(f"none:{width}"),
        head,
        CalibrationBuffer(2000),
        [],
        1,
        1.0,
        (0.2, 0),
    )


def learn_task(model: Classifier, z: Tensor, y: Tensor) -> None:
    """Learn embeddings (n, d) of new classes y (n,), which follow those that are known."""
    labels, counts = (each.tolist() for each in y.unique(return_counts=True))
    model.begin_task([str(label) for label in labels], counts)
    model.observe(
        z,
        y,
        torch.from_numpy(
            np.random.default_rng(len(model.class_names)).permutation(len(y))
        ),
    )
    model.finish_task()


def default_head(
    images: Images, products: float | Literal["auto"] = "auto"
) -> RidgeHead:
    """Return the head of ``fit``; its calibration buffer has at most 2000 samples."""
    model = new_model(images.z.shape[1], products)
    learn_task(model, images.z, images.y)
    assert isinstance(model.head, RidgeHead)
    return model.head


def exact(decision: str) -> Rule:
    """The exact head with a given decision."""
    return lambda images: learned(
        partial(RidgeHead, decision=decision), images
    ).predict(images.val_z)


def nearest_mean(images: Images) -> Tensor:
    """Cosine to the class means, of embeddings less their mean."""
    centre = images.z.mean(dim=0)
    return learned(NCMHead, replace(images, z=images.z - centre)).predict(
        images.val_z - centre
    )


def acil(width: int) -> Rule:
    """ACIL with the best of some ridges by the validation images."""

    def classes(images: Images) -> Tensor:
        unit = mean_eigenvalue(images.z, 256)  # which hardly depends on the width
        head = learned(
            partial(ACILHead, width=width, dtype="float32", ridge=SHARES[0] * unit),
            images,
        )
        assert isinstance(head, ACILHead)
        found = []
        for share in SHARES:
            head.ridge = share * unit
            head.solved.fill_(False)
            head.solve()
            found.append(head.predict(images.val_z))
        right = [int((one == images.val_y).sum()) for one in found]
        print(
            f"ACIL: right by ridge {dict(zip(SHARES, right, strict=True))}",
            file=sys.stderr,
            flush=True,
        )
        return found[int(np.argmax(right))]

    return classes


def scikit(make: Callable[[object], object]) -> Rule:
    """A classifier of scikit-learn on standardised features; ``make`` takes how to split images to
    choose a penalty.
    """

    def classes(images: Images) -> Tensor:
        many, (n, d) = len(images.y) >= MANY, images.z.shape
        if many:
            split = StratifiedShuffleSplit(1, test_size=0.2, random_state=0)
        else:
            split = StratifiedKFold(3)
        # With fewer images than features, a rotation into their span changes no result and saves
        # time.
        steps = [StandardScaler(), *([PCA()] if n < d else []), make(split)]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of convergence, at penalties that are not chosen
            model = make_pipeline(*steps).fit(images.z.numpy(), images.y.numpy())
        if isinstance(steps[-1], GridSearchCV):
            penalty = steps[-1].best_params_["C"]
        else:
            penalty = steps[-1].C_[0]
        print(
            f"{type(steps[-1]).__name__}: C = {penalty:g}", file=sys.stderr, flush=True
        )
        return torch.from_numpy(model.predict(images.val_z.numpy()))

    return classes


class LinearSVM(ClassifierMixin, BaseEstimator):
    """What scikit-learn's LinearSVC minimises, squared hinge loss of one class against the rest,
    for all at once.

    LinearSVC takes hours for a hundred classes; products of matrices take minutes.
    """

    def __init__(self, C: float = 1.0):
        self.C = C

    def fit(self, x: np.ndarray, y: np.ndarray) -> LinearSVM:
        """Learn (n, d) features of classes (n,)."""
        self.classes_, columns = np.unique(y, return_inverse=True)
        side = 2 * torch.nn.functional.one_hot(torch.from_numpy(columns)).float() - 1
        rows = with_one(x)
        self.weights = torch.zeros(rows.shape[1], side.shape[1], requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [self.weights], max_iter=100, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            hinge = (1 - side * (rows @ self.weights)).clamp_min(0)
            value = self.weights.square().sum() / 2 + self.C * hinge.square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(n,) classes."""
        return self.classes_[(with_one(x) @ self.weights).argmax(dim=1).numpy()]


def with_one(x: np.ndarray) -> Tensor:
    """(n, d + 1) features and a one, whose weight is the bias."""
    return torch.nn.functional.pad(torch.from_numpy(x), (0, 1), value=1.0)


def ledoit_wolf(images: Images) -> Tensor:
    """LDA with the shrinkage of Ledoit and Wolf, which depends on the features' scale: they are not
    rotated.
    """
    model = LinearDiscriminantAnalysis("lsqr", shrinkage="auto").fit(
        images.z.numpy(), images.y.numpy()
    )
    return torch.from_numpy(model.predict(images.val_z.numpy()))


def logistic(split: object, weight: str | None = None) -> object:
    """Multinomial logistic regression."""
    return LogisticRegressionCV(
        Cs=PENALTIES[1:], cv=split, max_iter=100, class_weight=weight
    )


RULES: dict[str, Rule] = {
    "default": lambda images: default_head(images).predict(images.val_z),
    "ridge": exact("ridge"),
    "discriminant": exact("discriminant"),
    "nearest mean": nearest_mean,
    "LDA, Ledoit–Wolf": ledoit_wolf,
    "linear SVM": scikit(
        lambda split: GridSearchCV(LinearSVM(), {"C": PENALTIES[:6]}, cv=split)
    ),
    "logistic regression": scikit(logistic),
    "ACIL 8192, best ridge": acil(8192),
}
UNEVEN: dict[str, Rule] = {
    **{name: RULES[name] for name in ("default", "ridge", "discriminant")},
    "logistic regression, balanced": scikit(partial(logistic, weight="balanced")),
}


def some(images: Images, count: int, seed: int) -> Images:
    """At most ``count`` training images of each class, drawn at random."""
    order = torch.randperm(len(images.y), generator=torch.Generator().manual_seed(seed))
    rows = torch.cat(
        [order[images.y[order] == label][:count] for label in range(images.classes)]
    )
    return replace(images, z=images.z[rows], y=images.y[rows])


def uneven(images: Images, seed: int) -> Images:
    """Eight of the largest classes with at most 45 images, and four others with 5."""
    draw = np.random.default_rng(seed)
    large = draw.permutation(images.y.bincount().argsort(descending=True)[:12].numpy())[
        :8
    ].tolist()
    small = draw.permutation([c for c in range(images.classes) if c not in large])[
        :4
    ].tolist()
    rows = [
        draw.permutation(np.flatnonzero(images.y == c))[: 45 if c in large else 5]
        for c in large + small
    ]
    kept = torch.from_numpy(np.concatenate(rows))
    known = torch.tensor(sorted(large + small))
    val = torch.isin(images.val_y, known)
    labels = [torch.searchsorted(known, y) for y in (images.y[kept], images.val_y[val])]
    return Images(images.z[kept], labels[0], images.val_z[val], labels[1])


def drawn(images: Images, count: str, seeds: range) -> list[Images]:
    """The images that are learned: one draw for each seed, or all."""
    if count == "all":
        return [images]
    return [
        uneven(images, seed) if count == "uneven" else some(images, int(count), seed)
        for seed in seeds
    ]


def accuracies(rule: Rule, images: Images) -> Tensor:
    """(2,) percent of the validation images, and mean over classes, that a rule names right."""
    right = 100 * (rule(images) == images.val_y).double()
    return torch.stack(
        [
            right.mean(),
            torch.stack(
                [right[images.val_y == c].mean() for c in images.val_y.unique()]
            ).mean(),
        ]
    )


def main() -> None:
    """Print a row for each set and number of images."""
    parser = study_parser(__doc__, roots="+")
    parser.add_argument(
        "--counts",
        nargs="*",
        default=("5", "10", "25", "all"),
        help="images of a class, all, uneven",
    )
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument(
        "--first_draw", type=int, default=0, help="seed of the first draw"
    )
    parser.add_argument("--only", nargs="*", help="names of columns")
    options = parser.parse_args()
    rules = UNEVEN if "uneven" in options.counts else RULES
    rules = {
        name: rule for name, rule in rules.items() if name in (options.only or rules)
    }
    show_columns(["set", "images of a class", *rules])
    for root in options.root:
        images = read_images(root, options, RICH)
        for count in options.counts:
            draws = drawn(
                images,
                count,
                range(options.first_draw, options.first_draw + options.draws),
            )
            means = [
                torch.stack([accuracies(rule, draw) for draw in draws]).mean(dim=0)
                for rule in rules.values()
            ]
            cells = [
                f"{mean[0]:.1f}" + f" ({mean[1]:.1f})" * (count == "uneven")
                for mean in means
            ]
            show([root.stem, count, *cells])


if __name__ == "__main__":
    main()
