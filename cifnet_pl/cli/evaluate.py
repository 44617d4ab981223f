"""``evaluate``: measure a model on labelled images, and recalibrate it by them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cifnet_pl.cli.outputs import print_stored, warn, writing
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import (
    expanded,
    to_csv,
    write_bytes,
    write_json,
    write_text,
)
from cifnet_pl.utilities.text import (
    LISTED_NAMES,
    listed,
    number,
    number_of,
    print_text,
    printable,
    table,
)

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.evaluation import ConfusedPair, Evaluation
    from cifnet_pl.model.labelled_images import LabelledImages
    from cifnet_pl.model.recalibration import Recalibration

CLASS_HEADER = ("class", "images", "accuracy %", "95 % interval", "most confused with")

CLASS_COLUMNS = (
    "class",
    "images",
    "correct",
    "accuracy",
    "low",
    "high",
    "tested",
    "confused_with",
    "confusions",
)
"""Columns of classes.csv."""


def evaluate(
    model: str,
    images: str,
    output: str | None = None,
    overwrite: bool = False,
    trust: bool = False,
    recalibrate: bool = False,
) -> None:
    """Measure a model on labelled images: accuracy, classes, confusions and calibration error.

    With ``recalibrate`` the images are of a distribution shift, such as another camera or light.
    Confidence, prediction sets and the novelty threshold are then fitted to them. The images are
    not learned.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: folder or Zip archive with one sub-folder of images per class; its val where it has
            train and val.
        output: folder for evaluation.json, classes.csv, confusion.csv, images.csv, confusion.png
            and calibration.png; with recalibrate for the new version of the model.
        overwrite: whether files in output may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.
        recalibrate: whether to recalibrate the model by these images, and to store it at output.

    Raises:
        UsageError: output holds files already; recalibrate without output, or with too few images.
        DataError: no image of a class that the model knows, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.evaluation import evaluate as evaluate_images
    from cifnet_pl.model.labelled_images import LabelledImages
    from cifnet_pl.model.store import load

    target = expanded(output) if output is not None else None
    if recalibrate and target is None:
        raise UsageError("--recalibrate stores a model: give it a place with --output")
    with writing(target, overwrite, "bundle" if recalibrate else "folder"):
        labelled = LabelledImages.find(images, "--images", tested=True)
        loaded = load(model, trust=trust)
        known = known_images(loaded, labelled, model)
        warn(labelled.files.notes)
        if recalibrate and target is not None:
            store_recalibrated(loaded, model, known, target, overwrite, trust)
            return
        evaluation = evaluate_images(loaded, known, progress=True)
        warn([], known.unreadable)
        lines = summary_lines(evaluation, loaded)
        for line in [*lines, *duplicate_lines(evaluation)]:
            print_text(line)
        Console().print(class_table(evaluation))
        for pair in evaluation.confused_pairs()[:LISTED_NAMES]:
            print_text(confusion_line(pair))
        if target is not None:
            write_results(target, evaluation, known)
            print_text(f"Tables and figures in {target}")


def known_images(
    model: Classifier,
    images: LabelledImages,
    name: str,
) -> LabelledImages:
    """Return the images of classes that a model knows, and print how many others are left out.

    Args:
        model: that is evaluated.
        images: of any classes.
        name: of the model.

    Raises:
        DataError: it knows none of the classes.
    """
    known = images.of_classes(set(model.class_names))
    names = [name for name in images.class_names if name not in known.class_names]
    unknown = listed(names)
    if not known.class_names:
        raise DataError(f"{name} knows none of the classes of the images ({unknown})")
    if names:
        count = number_of(len(images.files) - len(known.files), "image")
        print_text(f"{count} of unknown classes left out: {unknown}")
    return known


def summary_lines(evaluation: Evaluation, model: Classifier) -> list[str]:
    """Return lines on accuracy, calibration error and rarely predicted classes of a model."""
    from cifnet_pl.model.evaluation import rarely_predicted_notes
    from cifnet_pl.model.metrics import ECE_BINS

    confidence = 100 * float(evaluation.confidence.mean())
    lines = [
        accuracy_line("Accuracy", evaluation),
        f"Calibration error {evaluation.ece:.1f} % (ECE, {ECE_BINS} bins),"
        f" mean confidence {confidence:.1f} %",
    ]
    lines += rarely_predicted_notes(evaluation.rarely_predicted, model)
    return lines + model.calibration_notes()


def accuracy_line(name: str, evaluation: Evaluation) -> str:
    """Return a line on the accuracy and its interval.

    Args:
        name: of the accuracy, such as "Accuracy".
        evaluation: of a model.
    """
    images = number_of(evaluation.images, "image")
    classes = number_of(len(evaluation.class_scores()), "class")
    interval = f"95 % interval {evaluation.interval}"
    return f"{name} {evaluation.accuracy:.1f} % ({images}, {classes}; {interval})"


def duplicate_lines(evaluation: Evaluation) -> list[str]:
    """Return lines on images that were learned already, occur twice, or are in two classes."""
    from cifnet_pl.images.duplicates import duplicates_notes

    lines = [
        evaluation.learned_message(),
        *duplicates_notes([], evaluation.mislabelled, None),
    ]
    count = evaluation.samples["duplicate"].sum()
    if count:
        images = number_of(evaluation.images, "image")
        lines.append(f"Duplicates, which count twice: {count} of {images}")
    return [line for line in lines if line]


def confusion_line(pair: ConfusedPair) -> str:
    """Return a line on how often one class is predicted for images of another one."""
    images = f"{pair.confusions} of {number_of(pair.images, 'image')} of {printable(pair.target)}"
    return f"{images} predicted as {printable(pair.predicted)}"


def class_rows(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Return a row under ``CLASS_HEADER`` for each class, the worst first."""
    from cifnet_pl.model.metrics import MIN_TEST_IMAGES

    rows: list[tuple[str, ...]] = []
    for score in evaluation.class_scores():
        accuracy = f"{score.percent:.0f}"
        interval = str(score.interval)
        if not score.tested:
            accuracy = f"{score.correct} of {score.images}"
            interval = f"fewer than {MIN_TEST_IMAGES}"
        confused_with = ""
        if score.confusion is not None:
            pair = score.confusion
            confused_with = f"{printable(pair.predicted)} ({pair.confusions})"
        name = printable(score.name)
        rows.append((name, str(score.images), accuracy, interval, confused_with))
    return rows


def class_table(evaluation: Evaluation) -> Table:
    """Tabulate the classes for the screen, the worst first, as many as fit on it."""
    rows = class_rows(evaluation)
    shown = Console().height
    others = len(rows) - shown
    if others > 0:
        rows[shown:] = [(f"… and {others} with a higher accuracy",)]
    return table(CLASS_HEADER, rows, names=(0, 4))


def write_results(target: Path, evaluation: Evaluation, images: LabelledImages) -> None:
    """Write the tables and figures of an evaluation.

    Args:
        target: their folder.
        evaluation: of the model.
        images: that it was evaluated on.
    """
    from cifnet_pl.model.drawing import draw_calibration, draw_confusion, png

    title = f"Accuracy {evaluation.accuracy:.1f} % on {evaluation.images} images"
    bounds = evaluation.interval
    summary = {
        "images": evaluation.images,
        "classes": len(evaluation.class_scores()),
        "accuracy": evaluation.accuracy,
        "accuracy_low": bounds.low,
        "accuracy_high": bounds.high,
        "learned": int(evaluation.samples["learned"].sum()),
        "duplicates": int(evaluation.samples["duplicate"].sum()),
        "mean_confidence": 100 * float(evaluation.confidence.mean()),
        "ece": evaluation.ece,
    }
    write_json(target / "evaluation.json", summary)
    write_class_tables(target, evaluation)
    write_text(target / "images.csv", _images_csv(evaluation, images))
    confusion = draw_confusion(evaluation.confusion, evaluation.class_names, title)
    calibration = draw_calibration(evaluation.confidence, evaluation.correct, title)
    write_bytes(target / "confusion.png", png(confusion))
    write_bytes(target / "calibration.png", png(calibration))


def write_class_tables(
    target: Path,
    evaluation: Evaluation,
    unjudged: Mapping[str, int] | None = None,
) -> None:
    """Write classes.csv, and confusion.csv with true classes in rows and predicted ones in columns.

    Args:
        target: their folder.
        evaluation: of a model.
        unjudged: class → number of its images, for classes that could not be judged.
    """
    import pandas as pd

    rows = []
    for score in evaluation.class_scores():
        percentages = (score.percent, *score.interval)
        row = [score.name, score.images, score.correct]
        row += [f"{value:.2f}" for value in percentages]
        row.append(str(score.tested).lower())
        if score.confusion is not None:
            row += [score.confusion.predicted, score.confusion.confusions]
        rows.append(row)
    for name, count in (unjudged or {}).items():
        rows.append([name, count, "", "", "", "", "false"])
    write_text(target / "classes.csv", to_csv(CLASS_COLUMNS, rows))
    names = evaluation.class_names
    confusion = pd.DataFrame(evaluation.confusion, names, names)
    write_text(target / "confusion.csv", confusion.to_csv(index_label="class"))


def _images_csv(evaluation: Evaluation, images: LabelledImages) -> str:
    import numpy as np
    import pandas as pd

    files = images.files
    samples = evaluation.samples
    names = np.array(evaluation.class_names, dtype=object)
    is_seen = [samples["learned"], samples["duplicate"]]
    table = pd.DataFrame(
        {
            "file": [str(files.root / files.names[row]) for row in samples["row"]],
            "class": names[samples["target"]],
            "predicted": names[samples["predicted"]],
            "probability": evaluation.confidence,
            "correct": np.where(evaluation.correct, "true", "false"),
            "seen": np.select(is_seen, ["learned", "duplicate"], ""),
        }
    )
    return str(table.to_csv(index=False, float_format="%.6f"))


# ---------------------------------------------------------------------- recalibration


def store_recalibrated(
    model: Classifier,
    name: str,
    images: LabelledImages,
    target: Path,
    overwrite: bool,
    trust: bool,
) -> None:
    """Store a model that is recalibrated by images, and print figures before and after.

    Args:
        model: it is not changed.
        name: of it, for the screen.
        images: of classes that it knows.
        target: folder for the bundle.
        overwrite: whether a bundle there may be replaced.
        trust: whether the next command needs ``--trust``.

    Raises:
        UsageError: too few images that the model has not learned, or something at ``target``
            already.
    """
    from cifnet_pl.model.calibration import MIN_NEW_IMAGES
    from cifnet_pl.model.recalibration import recalibrate

    result = recalibrate(model, images)
    warn([], images.unreadable)
    result.model.save(target, overwrite)
    if result.learned:
        left_out = number_of(result.learned, "image")
        print_text(f"Left out: {left_out} that the model has learned")
    print_text(
        f"{name} on {number_of(result.images, 'image')}, before and after recalibration:"
    )
    Console().print(recalibration_table(result))
    if result.after is None:
        print_text(
            f"too few images to measure the effect: give at least {2 * MIN_NEW_IMAGES} that are no"
            " near-duplicates"
        )
    print_stored(result.model, target, trust)


def recalibration_table(result: Recalibration) -> Table:
    """Tabulate figures before and, as far as they are known, after recalibration."""
    from cifnet_pl.model.calibration import COVERAGE, UNKNOWN_SHARE

    names = {
        "A_k": "accuracy, %",
        "ece": "calibration error (ECE), %",
        "set_coverage": f"coverage of {100 * COVERAGE:g} % prediction sets, %",
        "set_size": "classes in a prediction set",
        "known_rejected": f"called unknown (promised {100 * UNKNOWN_SHARE:g} %), %",
    }
    before = result.before.figures()
    after = {} if result.after is None else result.after.figures()
    rows = [
        (name, number(before[key]), number(after.get(key)))
        for key, name in names.items()
    ]
    return table(("", "before", "after"), rows)
