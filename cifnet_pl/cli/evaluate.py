"""``evaluate``: measure how well a model names images whose classes are known, and fit its promises
to new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from cifnet_pl.cli.commands import warn, writing
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import write_bytes, write_json, write_text
from cifnet_pl.utilities.text import is_or_are, listed, next_command, number_of, printable, table

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.labelled_images import LabelledImages
    from cifnet_pl.model.metrics import Evaluation
    from cifnet_pl.model.recalibration import Outcomes, Recalibration

ON_SCREEN = 25
"""Classes in the table on the screen, the worst first."""

PAIRS_ON_SCREEN = 5


def evaluate(
    model: str,
    images: str,
    output: str | None = None,
    overwrite: bool = False,
    trust: bool = False,
    recalibrate: bool = False,
) -> None:
    """Say how well a model names labelled images: accuracy, per class, confusions, calibration.

    With ``recalibrate`` the images are of a new place or another day: how sure the model is, its
    sets of answers and what it calls unknown are fitted to them, without learning them.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: folder or Zip archive with one sub-folder of images per class; its val where it has
            train and val.
        output: folder for evaluation.json, classes.csv, confusion.csv, images.csv, confusion.png
            and calibration.png; with recalibrate for the new version of the model.
        overwrite: whether files in output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.
        recalibrate: whether to fit the model's promises to these images, and to store it at output.

    Raises:
        UsageError: output holds files already; recalibrate without output, or with too few images.
        DataError: no image of a class that the model knows, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.images.files import expanded
    from cifnet_pl.model.labelled_images import LabelledImages
    from cifnet_pl.model.metrics import evaluate as evaluate_images
    from cifnet_pl.model.store import load

    target = expanded(Path(output)) if output is not None else None
    if recalibrate and target is None:
        raise UsageError("--recalibrate stores a model: give it a place with --output")
    with writing(target, overwrite, "bundle" if recalibrate else "folder"):
        labelled = LabelledImages.find(images, "--images", tested=True)
        unreadable = list[Any]()
        loaded = load(model, trust=trust)
        known = known_images(loaded, labelled, model)
        if recalibrate and target is not None:
            warn(labelled.notes)
            store_recalibrated(loaded, model, known, target, overwrite, trust)
            return
        evaluation = evaluate_images(loaded, known, unreadable, progress=True)
        warn(labelled.notes, unreadable)
        print(*summary_lines(evaluation), *copy_lines(evaluation), sep="\n")
        Console().print(class_table(evaluation))
        for pair in evaluation.confused_pairs()[:PAIRS_ON_SCREEN]:
            print(taken_for(*pair))
        if target is not None:
            write_results(target, evaluation, known)
            print(f"tables and pictures in {target}")


def known_images(model: Classifier, images: LabelledImages, name: str) -> LabelledImages:
    """Return the images of classes that a model knows, and say how many others are left out.

    Args:
        model: that is asked.
        images: of any classes.
        name: of the model.

    Raises:
        DataError: it knows none of the classes.
    """
    known = images.of(set(model.class_names))
    strange = [printable(each) for each in images.class_names if each not in set(model.class_names)]
    if not known.class_names:
        raise DataError(
            f"{name} knows none of the classes of the images ({listed(strange)}): nothing to"
            " evaluate"
        )
    if strange:
        left = len(images.files) - len(known.files)
        what = f"{number_of(left, 'image')} of classes that {name} does not know"
        print(f"{what} {is_or_are(left)} left out: {listed(strange)}")
    return known


def summary_lines(evaluation: Evaluation) -> list[str]:
    """Return accuracy and calibration in two sentences, and one about classes that are hardly ever
    answered.
    """
    from cifnet_pl.model.metrics import ECE_BINS, rarely_predicted_message

    hardly = rarely_predicted_message(evaluation.rarely_predicted)
    classes, (low, high) = number_of(len(evaluation.class_scores()), "class"), evaluation.interval
    return [
        (
            f"{evaluation.accuracy:.1f} % of {number_of(len(evaluation.rows), 'image')} of"
            f" {classes} are named right (with 95 % certainty {low:.1f} to {high:.1f} %)"
        ),
        (
            f"the model is {100 * evaluation.confidence.mean():.1f} % sure on average; ECE"
            f" {evaluation.ece:.1f} % (how far its confidences are from the share that is right, in"
            f" {ECE_BINS} bins)"
        ),
        *([hardly] if hardly else []),
    ]


def copy_lines(evaluation: Evaluation) -> list[str]:
    """Return what is said of images that were learned already, occur twice, or are in two
    classes.
    """
    from cifnet_pl.images.duplicates import conflicting_labels_message

    lines = [evaluation.learned_message(), conflicting_labels_message(evaluation.mislabelled, None)]
    if evaluation.duplicates is not None and (twice := int(evaluation.duplicates.sum())):
        if twice == 1:
            copies = "is a copy of another one"
        else:
            copies = "are copies of others"
        lines.append(
            f"{twice} of these {number_of(len(evaluation.rows), 'image')} {copies}, and so counted"
            " twice"
        )
    return [line for line in lines if line]


def taken_for(true: str, answer: str, count: int, total: int) -> str:
    """Say how many of the ``total`` images of a class another one is answered for."""
    some = f"{count} of {number_of(total, 'image')} of {printable(true)}"
    return f"{some} {is_or_are(count)} taken for {printable(answer)}"


HEADER = ("class", "images", "right %", "95 % interval", "most often taken for")


def class_rows(evaluation: Evaluation) -> list[tuple[str, str, str, str, str]]:
    """Return a row under ``HEADER`` for each class, the worst first."""
    from cifnet_pl.model.metrics import MIN_TEST_IMAGES, wilson_interval

    rows = []
    for score in evaluation.class_scores():
        low, high = wilson_interval(score.correct, score.images)
        right = f"{score.percent:.0f}"
        bounds = f"{low:.0f} to {high:.0f}"
        if not score.tested:
            right = f"{score.correct} of {score.images}"
            bounds = f"fewer than {MIN_TEST_IMAGES}"
        if score.confused_with is not None:
            other = f"{printable(score.confused_with)} ({score.confusions})"
        else:
            other = ""
        rows.append((printable(score.name), str(score.images), right, bounds, other))
    return rows


def class_table(evaluation: Evaluation) -> Table:
    """Tabulate the classes for the screen, the worst first."""
    rows: list[Sequence[str]] = [*class_rows(evaluation)]
    if len(rows) > ON_SCREEN:
        better = [[f"… and {len(rows) - ON_SCREEN} better ones"]]
    else:
        better = []
    return table(HEADER, [*rows[:ON_SCREEN], *better], names=(0, 4))


def write_results(target: Path, evaluation: Evaluation, images: LabelledImages) -> None:
    """Write the tables and pictures of an evaluation.

    Args:
        target: their folder.
        evaluation: of the model.
        images: that it was evaluated on.
    """
    from cifnet_pl.model.drawing import draw_calibration, draw_confusion, png

    title = f"{evaluation.accuracy:.1f} % of {len(evaluation.rows)} images right"
    write_json(target / "evaluation.json", _summary(evaluation))
    for name, text in {
        **tables_of(evaluation),
        "images.csv": _images_csv(evaluation, images),
    }.items():
        write_text(target / name, text)
    confusion = draw_confusion(evaluation.confusion(), evaluation.class_names, title)
    write_bytes(target / "confusion.png", png(confusion))
    write_bytes(
        target / "calibration.png",
        png(draw_calibration(evaluation.confidence, evaluation.correct, title)),
    )


def _summary(evaluation: Evaluation) -> dict[str, Any]:
    low, high = evaluation.interval
    figures: dict[str, Any] = {
        "images": len(evaluation.rows),
        "classes": len(evaluation.class_scores()),
    }
    figures |= {"accuracy": evaluation.accuracy, "accuracy_low": low, "accuracy_high": high}
    if evaluation.learned is not None and evaluation.duplicates is not None:
        figures |= {
            "learned": int(evaluation.learned.sum()),
            "copies": int(evaluation.duplicates.sum()),
        }
    return {
        **figures,
        "mean_confidence": 100 * float(evaluation.confidence.mean()),
        "ece": evaluation.ece,
    }


def tables_of(evaluation: Evaluation, unjudged: Mapping[str, int] | None = None) -> dict[str, str]:
    """Return CSV with a row for each class, and with the numbers of images by true class (row) and
    answer (column).

    Args:
        evaluation: of a model.
        unjudged: class → number of its images, where it could not be judged.
    """
    from cifnet_pl.model.metrics import wilson_interval
    from cifnet_pl.utilities.files import to_csv

    header = ["class", "images", "right", "accuracy", "low", "high", "tested", "taken_for", "times"]
    rows: list[list[Any]] = []
    for s in evaluation.class_scores():
        low, high = wilson_interval(s.correct, s.images)
        bounds = [f"{value:.2f}" for value in (s.percent or 0.0, low, high)]
        rows.append(
            [
                s.name,
                s.images,
                s.correct,
                *bounds,
                str(s.tested).lower(),
                s.confused_with or "",
                s.confusions or "",
            ]
        )
    rows += [[name, count, "", "", "", "", "false"] for name, count in (unjudged or {}).items()]
    names = evaluation.class_names
    confusion = [[name, *row] for name, row in zip(names, evaluation.confusion(), strict=True)]
    return {
        "classes.csv": to_csv(header, rows),
        "confusion.csv": to_csv(["class", *names], confusion),
    }


def _images_csv(evaluation: Evaluation, images: LabelledImages) -> str:
    from cifnet_pl.utilities.files import to_csv

    rows = []
    columns = (
        evaluation.rows,
        evaluation.target,
        evaluation.predicted,
        evaluation.confidence,
        evaluation.seen(),
    )
    for row, target, predicted, confidence, seen in zip(*columns, strict=True):
        true = evaluation.class_names[target]
        answer = evaluation.class_names[predicted]
        path = str(images.files.root / images.files.names[row])
        rows.append(
            [path, true, answer, f"{confidence:.6f}", str(bool(target == predicted)).lower(), seen]
        )
    return to_csv(["file", "class", "answer", "probability", "right", "seen"], rows)


# ---------------------------------------------------------------------- recalibration


def store_recalibrated(
    model: Classifier, name: str, images: LabelledImages, target: Path, overwrite: bool, trust: bool
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

    unreadable: list[Any] = []
    result = recalibrate(model, images, unreadable)
    warn([], unreadable)
    result.model.save(target, overwrite)
    if result.learned:
        left_out = number_of(result.learned, "image")
        print(f"{left_out} that the model has learned {is_or_are(result.learned)} left out")
    print(f"{name} on {number_of(result.images, 'image')}, before and after recalibration:")
    Console().print(recalibration_table(result))
    if result.after is None:
        print(
            f"too few images to measure the effect: give at least {2 * MIN_NEW_IMAGES} that are no"
            " near-duplicates"
        )
    classes = number_of(len(result.model.class_names), "class")
    print(f"{classes} in bundle {target}; {name} is not changed")
    options = ("--model", str(target), "--images", "IMAGES", "--output", "out.csv")
    print(next_command("classify", *options, trust=trust))


def recalibration_table(result: Recalibration) -> Table:
    """Tabulate figures before and, as far as they are known, after recalibration."""
    from cifnet_pl.model.recalibration import COVERAGE, HIGH_CONFIDENCE, UNKNOWN_SHARE

    names = [
        "accuracy, %",
        "calibration error (ECE), %",
        f"errors with a confidence above {100 * HIGH_CONFIDENCE:g} %",
        f"coverage of {100 * COVERAGE:g} % prediction sets, %",
        "classes in a prediction set",
        f"called unknown (promised {100 * UNKNOWN_SHARE:g} %), %",
    ]
    before = outcome_cells(result.before)
    after = ["–"] * len(names)
    if result.after is not None:
        after = outcome_cells(result.after)
    return table(("", "before", "after"), zip(names, before, after, strict=True))


def outcome_cells(outcomes: Outcomes) -> list[str]:
    """Return the cells of one column of the table."""

    def shown(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.1f}"

    return [
        shown(outcomes.accuracy),
        shown(outcomes.ece),
        str(outcomes.confident_errors),
        shown(outcomes.set_coverage),
        shown(outcomes.mean_set_size),
        shown(outcomes.called_unknown),
    ]
