"""The estimator beside those of scikit-learn that users would take: accuracy and seconds.

IMAGES is a file that ``cifnet embed`` made of a folder with ``train`` and ``val``; all estimators
learn its embeddings. Once all classes are learned at once, and once in tasks of new classes, where
only ``partial_fit`` can go on; the others would need all earlier samples again. Seconds are those
of the processor, with the threads that OMP_NUM_THREADS allows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.studies.images import read_images, study_parser
from cifnet_pl.sklearn import IncrementalClassifier

LDA = {"solver": "lsqr", "shrinkage": "auto"}

AT_ONCE: dict[str, Callable[[], Any]] = {
    "IncrementalClassifier().fit": IncrementalClassifier,
    'LinearDiscriminantAnalysis(shrinkage="auto")': lambda: LinearDiscriminantAnalysis(
        **LDA
    ),
    "LogisticRegression (standardised)": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=1000)
    ),
    "RidgeClassifierCV (standardised)": lambda: make_pipeline(
        StandardScaler(), RidgeClassifierCV(np.logspace(0, 6, 13))
    ),
    "SGDClassifier().fit (standardised)": lambda: make_pipeline(
        StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)
    ),
}


def printed(name: str, seconds: float, accuracy: float) -> None:
    print(f"| {name} | {100 * accuracy:.1f} | {seconds:.1f} |", flush=True)


def at_once(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray
) -> None:
    """All classes at once."""
    for name, make in AT_ONCE.items():
        start = time.process_time()
        model = make().fit(X, y)
        seconds = time.process_time() - start
        printed(name, seconds, model.score(X_test, y_test))


def in_tasks(
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    per_task: int,
    epochs: int,
) -> None:
    """Tasks of new classes in the order of their labels, by ``partial_fit`` alone.

    ``SGDClassifier`` is told all classes at the first call, as it demands, and sees each task for
    some epochs.
    """
    classes = np.unique(y)
    scaler = StandardScaler().fit(X)
    ours = IncrementalClassifier()
    theirs = SGDClassifier(loss="log_loss", random_state=0)
    seconds = {"ours": 0.0, "theirs": 0.0}
    for first in range(0, len(classes), per_task):
        rows = np.isin(y, classes[first : first + per_task])
        start = time.process_time()
        ours.partial_fit(X[rows], y[rows])
        middle = time.process_time()
        for _ in range(epochs):
            theirs.partial_fit(scaler.transform(X[rows]), y[rows], classes=classes)
        seconds["ours"] += middle - start
        seconds["theirs"] += time.process_time() - middle
    tasks = -(-len(classes) // per_task)
    printed(
        f"IncrementalClassifier().partial_fit, {tasks} tasks",
        seconds["ours"],
        ours.score(X_test, y_test),
    )
    printed(
        f"SGDClassifier().partial_fit, {tasks} tasks, {epochs} epochs each (standardised)",
        seconds["theirs"],
        theirs.score(scaler.transform(X_test), y_test),
    )


def main(root: Path, options: argparse.Namespace) -> None:
    images = read_images(root, options)
    arrays = (images.z, images.y, images.val_z, images.val_y)
    X, y, X_test, y_test = (tensor.numpy() for tensor in arrays)
    print(
        f"{root.stem}: {len(X)} training images, {images.classes} classes, {X.shape[1]} features\n"
    )
    print("| estimator | accuracy % | seconds |\n|---|---|---|")
    at_once(X, y, X_test, y_test)
    in_tasks(X, y, X_test, y_test, options.classes_per_task, options.epochs)
    print()


if __name__ == "__main__":
    parser = study_parser(__doc__, "+")
    parser.add_argument("--classes_per_task", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    for each in given.root:
        main(each, given)
