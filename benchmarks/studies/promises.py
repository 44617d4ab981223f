"""``python -m benchmarks.studies.promises --images NAME TRAIN.npz VAL.npz …``: do estimates hold,
and do they stay the same?

TRAIN.npz has the embeddings of training images, VAL.npz those of other days (``cifnet embed``);
there may be several pairs. All classes and each of four halves of them are learned in four ways,
which are twenty trials: in one task; in tasks of five classes, in another order; by two sites that
each have half of the images of every class, merged; and in one task, after which two classes are
forgotten exactly and learned again. A model learned from the same images has to promise the same.

With ``--capacities 400 1000`` all classes are learned in one task with calibration buffers of these
capacities instead, by six seeds of buffer and class order, and a line for each has the means.

With ``--first`` the first three tasks of five classes are learned, in the given class order and in
five others, and a line for each order has the ECE after each task, with that by chance.

A row has the estimated accuracy on new groups with its interval and the true one, the share of
classes whose interval holds their true accuracy, of those that have one, coverage and mean size of
prediction sets for 95 %, and the ECE. In parentheses is the ECE that a calibrated model stays below
with a probability of 95 %, as images are few. Below are the counts that matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.studies.images import (
    Images,
    pairs_parser,
    read_pair,
    show,
    show_columns,
)
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.probabilities import PredictionSets
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import merge
from cifnet_pl.model.metrics import calibration_error
from cifnet_pl.serving.inspection import class_estimates

PER_TASK = 5
FORGOTTEN = 2
COVERAGE = 0.95
WITHIN = 8
"""Points that an estimate may be off."""

SEEDS = 6
"""Seeds of each capacity."""

FIRST_TASKS = 3
"""Tasks after which ``--first`` measures."""

CHANCE_DRAWS = 1000
"""Draws of which predictions of a calibrated model are right."""

LEAST_CLASS_IMAGES = 10
"""Validation images of a class from which its true accuracy is known."""

COLUMNS = (
    "images",
    "classes",
    "learned",
    "estimate %",
    "true %",
    "classes held",
    "covered %",
    "set size",
    "ECE %",
    "sentence",
)


class Trial(NamedTuple):
    """What one model promised, and what was true; accuracies in percent."""

    images: str
    classes: str
    learned: str
    estimate: float | None
    interval: tuple[float, float]
    true: float
    classes_with_interval: int
    classes_held: int
    covered: float
    size: float
    ece: float
    ece_by_chance: float
    kind: str


def empty(width: int, capacity: int = 2000, seed: int = 0) -> Classifier:
    """A model that knows nothing, as ``fit`` makes it by default, of embeddings."""
    backbone = build_backbone(f"none:{width}")
    head = RidgeHead(width, decision="auto", product_features="auto")
    buffer = CalibrationBuffer(capacity, seed=seed)
    return Classifier(backbone, head, buffer, calibrated=True)


def learn(model: Classifier, images: Images, rows: Tensor, classes: list[int]) -> None:
    """One task of the images at some rows that are of some classes."""
    rows = rows[torch.isin(images.y[rows], torch.tensor(classes))]
    names = [str(c) for c in classes]
    model.begin_task(names, [int((images.y[rows] == c).sum()) for c in classes])
    labels = torch.tensor(model.labels([str(c) for c in images.y[rows].tolist()]))
    model.observe(images.z[rows], labels, rows)
    model.finish_task()


def in_one_task(images: Images, classes: list[int]) -> Classifier:
    """A model of all classes at once."""
    model = empty(images.z.shape[1])
    learn(model, images, torch.arange(len(images.y)), classes)
    return model


def in_tasks(images: Images, classes: list[int]) -> Classifier:
    """A model of a few classes a task, in another order."""
    model = empty(images.z.shape[1])
    shuffled = np.random.default_rng(len(classes)).permutation(classes).tolist()
    for first in range(0, len(classes), PER_TASK):
        task = shuffled[first : first + PER_TASK]
        learn(model, images, torch.arange(len(images.y)), task)
    return model


def of_two_sites(images: Images, classes: list[int]) -> Classifier:
    """Two models of half of each class's images, the first and the last, merged."""
    first = torch.zeros(len(images.y), dtype=torch.bool)
    for c in classes:
        rows = (images.y == c).nonzero().flatten()
        first[rows[: len(rows) // 2]] = True
    sites = list[Classifier]()
    for part in (first, ~first):
        site = empty(images.z.shape[1])
        learn(site, images, part.nonzero().flatten(), classes)
        sites.append(site)
    return merge(sites).model


def forgotten_and_learned_again(images: Images, classes: list[int]) -> Classifier:
    """A model that lost two classes exactly, and learned them again."""
    model = in_one_task(images, classes)
    gone = classes[:FORGOTTEN]
    removed = model.head.fresh()
    labels = torch.tensor(model.labels(map(str, gone)))
    removed.begin_task(labels.tolist())
    for c, label in zip(gone, labels, strict=True):
        rows = images.y == c
        removed.observe(images.z[rows], label.expand(int(rows.sum())))
    model.head.subtract_(removed)
    model.remove_classes([str(c) for c in gone])
    learn(model, images, torch.arange(len(images.y)), gone)
    return model


WAYS: dict[str, Callable[[Images, list[int]], Classifier]] = {
    "in one task": in_one_task,
    "in tasks of five": in_tasks,
    "by two sites": of_two_sites,
    "two forgotten and learned again": forgotten_and_learned_again,
}


def class_sets(images: Images) -> dict[str, list[int]]:
    """All classes, and both halves of two random orders of them."""
    sets = {"all": list(range(images.classes))}
    for order in (0, 1):
        halves = images.tasks(order, -(-images.classes // 2))
        for half, name in zip(halves, "ab", strict=True):
            sets[f"half {order}{name}"] = sorted(half)
    return sets


def measured(model: Classifier, images: Images, names: tuple[str, str, str]) -> Trial:
    """Compare what a model promises with the validation images of its classes."""
    known = [int(name) for name in model.class_names]
    rows = torch.isin(images.val_y, torch.tensor(known))
    columns = (images.val_y[rows][:, None] == torch.tensor(known)).int().argmax(dim=1)
    p = model.head.probabilities(images.val_z[rows])
    confidence, predicted = p.max(dim=1)
    correct = predicted == columns
    samples = model.calibration_samples()
    assert samples is not None
    sets = PredictionSets.of(samples, COVERAGE).of_probabilities(p)
    held = 0
    with_interval = 0
    for column, estimate in enumerate(class_estimates(model)):
        own = correct[columns == column].double()
        if estimate.interval is None or len(own) < LEAST_CLASS_IMAGES:
            continue
        low, high = estimate.interval
        with_interval += 1
        held += low - 1e-9 <= 100 * float(own.mean()) <= high + 1e-9
    estimate = model.calibration.describe()
    interval = estimate["new_group_accuracy_interval"] or (0.0, 100.0)
    return Trial(
        *names,
        estimate["new_group_accuracy"],
        interval,
        100 * float(correct.double().mean()),
        with_interval,
        held,
        100 * float(sets.gather(1, columns[:, None]).double().mean()),
        float(sets.sum(dim=1).double().mean()),
        calibration_error(confidence.numpy(), correct.numpy()) or 0.0,
        error_by_chance(confidence.numpy()),
        model.calibration.estimate_kind,
    )


def error_by_chance(confidence: np.ndarray) -> float:
    """ECE that a calibrated model of these confidences stays below with a probability of 95 %."""
    draw = np.random.default_rng(0)
    errors = list[float]()
    for _ in range(CHANCE_DRAWS):
        correct = draw.random(len(confidence)) < confidence
        errors.append(calibration_error(confidence, correct) or 0.0)
    return float(np.quantile(errors, 0.95))


def cells(trial: Trial) -> list[str]:
    """A row of the table."""
    estimate = trial.kind
    if trial.estimate is not None:
        low, high = trial.interval
        estimate = f"{trial.estimate:.1f} ({low:.0f} to {high:.0f})"
    return [
        trial.images,
        trial.classes,
        trial.learned,
        estimate,
        f"{trial.true:.1f}",
        f"{trial.classes_held} of {trial.classes_with_interval}",
        f"{trial.covered:.1f}",
        f"{trial.size:.2f}",
        f"{trial.ece:.1f} ({trial.ece_by_chance:.1f})",
        trial.kind,
    ]


def counts(trials: list[Trial]) -> list[str]:
    """The sentences below the table."""
    told = [trial for trial in trials if trial.estimate is not None]
    by_images = dict[tuple[str, str], list[float]]()
    for trial in told:
        key = trial.images, trial.classes
        by_images.setdefault(key, []).append(trial.estimate or 0.0)
    deviations = [
        float(np.std(each, ddof=1)) for each in by_images.values() if each[1:]
    ]
    near = [abs((t.estimate or 0.0) - t.true) <= WITHIN for t in told]
    held = [t.interval[0] <= t.true <= t.interval[1] for t in told]
    classes = sum(t.classes_with_interval for t in trials)
    classes_held = sum(t.classes_held for t in trials)
    sizes = [t.size for t in trials]
    errors = [t.ece for t in trials]
    above_chance = [t.ece > t.ece_by_chance for t in trials]
    return [
        f"estimates: {len(told)} of {len(trials)} trials",
        f"sd of one set of images: largest {max(deviations):.2f} points",
        f"within {WITHIN} points: {sum(near)}; interval holds: {sum(held)}",
        f"intervals of classes hold: {classes_held} of {classes}"
        f" ({100 * classes_held / max(classes, 1):.1f} %)",
        f"coverage: least {min(t.covered for t in trials):.1f} %, mean size"
        f" {np.mean(sizes):.2f}, largest {max(sizes):.2f}",
        f"ECE: mean {np.mean(errors):.1f}, largest {max(errors):.1f} %; above chance:"
        f" {sum(above_chance)}",
    ]


def by_capacity(name: str, images: Images, capacities: list[int]) -> None:
    """A row for each capacity and seed, and the means of each capacity."""
    means = list[str]()
    for capacity in capacities:
        trials = list[Trial]()
        for seed in range(SEEDS):
            model = empty(images.z.shape[1], capacity, seed)
            order = np.random.default_rng(seed).permutation(images.classes)
            learn(model, images, torch.arange(len(images.y)), order.tolist())
            learned = f"buffer of {capacity}, seed {seed}"
            trials.append(measured(model, images, (name, "all", learned)))
            show(cells(trials[-1]))
        near = [abs((t.estimate or 0.0) - t.true) <= WITHIN for t in trials]
        covered = [92 <= t.covered <= 98 for t in trials]
        means.append(
            f"{name}, buffer of {capacity}: estimate within {WITHIN} points {sum(near)}, coverage"
            f" 92 to 98 % {sum(covered)} of {SEEDS}, ECE {np.mean([t.ece for t in trials]):.1f} %,"
            f" accuracy {np.mean([t.true for t in trials]):.1f} %"
        )
    print("", *means, "", sep="\n")


def after_first_tasks(name: str, images: Images) -> None:
    """A line for each class order: the ECE after each of the first tasks, and their mean."""
    given = list(range(images.classes))
    orders = {"given": given}
    for seed in range(SEEDS - 1):
        shuffled = np.random.default_rng(seed).permutation(given)
        orders[f"seed {seed}"] = shuffled.tolist()
    means = list[float]()
    for title, order in orders.items():
        model = empty(images.z.shape[1])
        errors = list[float]()
        shown = list[str]()
        for start in range(0, FIRST_TASKS * PER_TASK, PER_TASK):
            classes = order[start : start + PER_TASK]
            learn(model, images, torch.arange(len(images.y)), classes)
            trial = measured(model, images, (name, title, ""))
            errors.append(trial.ece)
            shown.append(f"{trial.ece:.1f} ({trial.ece_by_chance:.1f})")
        means.append(float(np.mean(errors)))
        values = ", ".join(shown)
        print(f"{name}, {title}: ECE {values}, mean {means[-1]:.1f} %", flush=True)
    print(f"{name}: mean ECE {np.mean(means):.1f} %", flush=True)


def main() -> None:
    """A row for each trial, and the counts."""
    trials = list[Trial]()
    parser = pairs_parser(__doc__)
    parser.add_argument("--capacities", type=int, nargs="+", default=[])
    parser.add_argument("--first", action="store_true")
    asked = parser.parse_args()
    if not asked.first:
        show_columns(COLUMNS)
    for name, train, val in asked.images:
        images = read_pair(train, val)
        if asked.first:
            after_first_tasks(name, images)
            continue
        if asked.capacities:
            by_capacity(name, images, asked.capacities)
            continue
        for classes_name, classes in class_sets(images).items():
            for way, make in WAYS.items():
                model = make(images, classes)
                trials.append(measured(model, images, (name, classes_name, way)))
                show(cells(trials[-1]))
    if trials:
        print("", *counts(trials), sep="\n")


if __name__ == "__main__":
    main()
