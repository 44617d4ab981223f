"""``evaluate``: measure how well a model names images whose classes are known, and fit its promises
to new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from cifnet_pl.cli.commands import warn, writing
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import write_bytes, write_json, write_text
from cifnet_pl.utilities.text import is_or_are, listed, next_command, number_of, printable, table

if TYPE_CHECKING:
    import numpy as np
    import torch

    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.labelled_images import LabelledImages
    from cifnet_pl.model.metrics import Evaluation

ON_SCREEN = 25
"""Classes in the table on the screen, the worst first."""

PAIRS_ON_SCREEN = 5

UNKNOWN = 0.05
COVERAGE = 0.95
SURE = 0.95
"""The shares that figures of a new place are of: images called unknown, sets of answers, and
answers called sure.
"""


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
            fit_promises(loaded, model, known, target, overwrite, trust)
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
    from cifnet_pl.model.metrics import BINS, rarely_predicted_message

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
            f" {BINS} bins)"
        ),
        *([hardly] if hardly else []),
    ]


def copy_lines(evaluation: Evaluation) -> list[str]:
    """Return what is said of images that were learned already, occur twice, or are in two
    classes.
    """
    from cifnet_pl.images.duplicates import about_labels

    lines = [evaluation.about_learned(), about_labels(evaluation.mislabelled, None)]
    if evaluation.twice is not None and (twice := int(evaluation.twice.sum())):
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
    from cifnet_pl.model.metrics import FEW, interval

    rows = []
    for score in evaluation.class_scores():
        low, high = interval(score.right, score.images)
        right = f"{score.percent:.0f}"
        bounds = f"{low:.0f} to {high:.0f}"
        if not score.tested:
            right = f"{score.right} of {score.images}"
            bounds = f"fewer than {FEW}"
        if score.taken_for:
            other = f"{printable(score.taken_for[0])} ({score.taken_for[1]})"
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
        png(draw_calibration(evaluation.confidence, evaluation.right, title)),
    )


def _summary(evaluation: Evaluation) -> dict[str, Any]:
    low, high = evaluation.interval
    figures: dict[str, Any] = {
        "images": len(evaluation.rows),
        "classes": len(evaluation.class_scores()),
    }
    figures |= {"accuracy": evaluation.accuracy, "accuracy_low": low, "accuracy_high": high}
    if evaluation.learned is not None and evaluation.twice is not None:
        figures |= {"learned": int(evaluation.learned.sum()), "copies": int(evaluation.twice.sum())}
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
    from cifnet_pl.model.metrics import interval
    from cifnet_pl.utilities.files import to_csv

    header = ["class", "images", "right", "accuracy", "low", "high", "tested", "taken_for", "times"]
    rows: list[list[Any]] = []
    for s in evaluation.class_scores():
        low, high = interval(s.right, s.images)
        bounds = [f"{value:.2f}" for value in (s.percent or 0.0, low, high)]
        rows.append(
            [s.name, s.images, s.right, *bounds, str(s.tested).lower(), *(s.taken_for or ("", ""))]
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


# ---------------------------------------------------------------------- images of a new place


@dataclass(frozen=True)
class NewImages:
    """Labelled images that a model has not learned, each once.

    Attributes:
        z, y, key: (n, d) embeddings, (n,) labels and (n,) content hashes.
        half: (n,) bool; images that look alike are in the same half.
        learned: number of images that are left out, as the model has learned them.
    """

    z: torch.Tensor
    y: torch.Tensor
    key: torch.Tensor
    half: torch.Tensor
    learned: int

    @classmethod
    def of(cls, model: Classifier, images: LabelledImages, unreadable: list[Any]) -> NewImages:
        """Embed images.

        Args:
            model: whose backbone embeds.
            images: of classes that it knows.
            unreadable: images that cannot be decoded are appended.
        """
        import numpy as np
        import torch

        from cifnet_pl.images.image import EncodedImage

        parts = list(
            images.embedded(model, "evaluating", unreadable, progress=True, look=EncodedImage.look)
        )
        rows = np.concatenate([part for part, _ in parts])
        hashes, first = np.unique(images.files.hashes(rows), return_index=True)
        learned = np.isin(hashes, model.images.content.cpu().numpy())
        chosen = rows[first[~learned]]
        half = np.zeros(len(images.files), dtype=bool)
        for own in images.files.rows_of.values():
            half[own] = images.held_out(own, 0.5)
        labels = np.array(model.labels(images.class_names), dtype=np.int64)[
            images.files.labels[chosen]
        ]
        z = torch.cat([z for _, z in parts])[torch.from_numpy(first[~learned]).to(model.device)]
        y, key, side = (
            torch.from_numpy(column).to(z.device)
            for column in (labels, hashes[~learned], half[chosen])
        )
        return cls(z, y, key, side, int(learned.sum()))


def fit_promises(
    model: Classifier, name: str, images: LabelledImages, target: Path, overwrite: bool, trust: bool
) -> None:
    """Store a model whose promises are fitted to images of a new place, and print figures before
    and after.

    The figures after are of each half of the images, by the model calibrated with the other half.

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
    import torch

    from cifnet_pl.model.calibration import FEWEST_NEW

    unreadable: list[Any] = []
    new = NewImages.of(model, images, unreadable)
    warn([], unreadable)
    result = model.recalibrated(new.z, new.y, new.key)
    result.save(target, overwrite)
    if new.learned:
        them = number_of(new.learned, "image")
        print(f"{them} that the model has learned {is_or_are(new.learned)} left out")
    print(f"{name} on {number_of(len(new.y), 'image')} of the new place, before and after:")
    before = answers(model, new.z, new.y)
    after = None
    if min(int(new.half.sum()), int((~new.half).sum())) >= FEWEST_NEW:
        halves = []
        for part in (new.half, ~new.half):
            other = model.recalibrated(new.z[~part], new.y[~part], new.key[~part])
            halves.append(answers(other, new.z[part], new.y[part]))
        after = torch.cat(halves)
    Console().print(figures_table(before, after))
    if after is None:
        print(
            f"too few images to tell what it is afterwards: at least {2 * FEWEST_NEW} that do not"
            " look alike"
        )
    print(f"{number_of(len(result.class_names), 'class')} in bundle {target}; {name} is as it was")
    print(
        next_command(
            "classify",
            "--model",
            str(target),
            "--images",
            "IMAGES",
            "--output",
            "out.csv",
            trust=trust,
        )
    )


def answers(model: Classifier, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Ask a model about images.

    Args:
        model: that answers.
        z: (n, d) embeddings.
        y: (n,) labels.

    Returns:
        (n, 5) float64: the answer's probability, whether it is right, whether the set of answers
        holds the right class, the set's size, and whether the image is called unknown; NaN for what
        the model cannot tell.
    """
    import torch

    from cifnet_pl.model.classifier import able

    probabilities = model.head.probabilities(z)
    confidence, column = probabilities.max(dim=1)
    result = torch.full((len(y), 5), torch.nan, dtype=torch.float64)
    result[:, 0] = confidence.cpu()
    result[:, 1] = (model.head.labels[column] == y).cpu()
    unknown, coverage = able(model, UNKNOWN, COVERAGE)
    if unknown is None and coverage is None:
        return result
    names = model.name_of
    for row, verdict in enumerate(model.judge(unknown, coverage).verdicts(z, probabilities)):
        if verdict.prediction_set is not None:
            result[row, 2] = names[int(y[row])] in verdict.prediction_set
            result[row, 3] = len(verdict.prediction_set)
        if verdict.known is not None:
            result[row, 4] = not verdict.known
    return result


def figures(asked: torch.Tensor) -> list[str]:
    """Return, in the order of the table, what :func:`answers` says of images."""
    from cifnet_pl.model.metrics import calibration_error

    confidence, right, covered, size, unknown = asked.T.contiguous().numpy()

    def mean(column: np.ndarray, factor: float = 100.0) -> str:
        if len(column) == 0 or bool((column != column).any()):
            return "–"
        return f"{factor * column.mean():.1f}"

    surely_wrong = int(((confidence > SURE) & (right == 0)).sum())
    error = calibration_error(confidence, right == 1) or 0.0
    return [
        mean(right),
        f"{error:.1f}",
        str(surely_wrong),
        mean(covered),
        mean(size, 1.0),
        mean(unknown),
    ]


def figures_table(before: torch.Tensor, after: torch.Tensor | None) -> Table:
    """Tabulate figures before and, as far as they are known, after."""
    names = [
        "images named right, %",
        "how sure it is, off from how often it is right, points",
        f"wrong answers that it is more than {100 * SURE:g} % sure of",
        f"sets of answers of {100 * COVERAGE:g} % that hold the right class, %",
        "classes in such a set",
        f"images called unknown where {100 * UNKNOWN:g} % were promised, %",
    ]
    if after is not None:
        rest = figures(after)
    else:
        rest = ["–"] * len(names)
    return table(("", "before", "after"), zip(names, figures(before), rest, strict=True))
