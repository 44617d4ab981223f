"""``evaluate``: measure how well a model names photos whose classes are known, and fit its promises to new ones."""

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

    from cifnet_pl.model.class_photos import ClassPhotos
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.metrics import Evaluation

ON_SCREEN = 25
"""Classes in the table on the screen, the worst first."""

PAIRS_ON_SCREEN = 5

UNKNOWN, COVERAGE, SURE = 0.05, 0.95, 0.95
"""The shares that figures of a new place are of: photos called unknown, sets of answers, and answers called sure."""


def evaluate(
    model: str,
    images: str,
    output: str | None = None,
    overwrite: bool = False,
    trust: bool = False,
    recalibrate: bool = False,
) -> None:
    """Say how well a model names labelled photos: accuracy, per class, confusions, calibration.

    With ``recalibrate`` the photos are of a new place or another day: how sure the model is, its sets of answers and
    what it calls unknown are fitted to them, without learning them.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: folder or Zip archive with one sub-folder of photos per class; its val where it has train and val.
        output: folder for evaluation.json, classes.csv, confusion.csv, photos.csv, confusion.png and calibration.png;
            with recalibrate for the new version of the model.
        overwrite: whether files in output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.
        recalibrate: whether to fit the model's promises to these photos, and to store it at output.

    Raises:
        UsageError: output holds files already; recalibrate without output, or with too few photos.
        DataError: no photo of a class that the model knows, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.class_photos import ClassPhotos
    from cifnet_pl.model.metrics import evaluate as evaluate_photos
    from cifnet_pl.model.store import load
    from cifnet_pl.photos.files import expanded

    target = expanded(Path(output)) if output is not None else None
    if recalibrate and target is None:
        raise UsageError("--recalibrate stores a model: give it a place with --output")
    with writing(target, overwrite, "bundle" if recalibrate else "folder"):
        photos, unreadable = ClassPhotos.find(images, "--images", tested=True), list[Any]()
        loaded = load(model, trust=trust)
        known = known_photos(loaded, photos, model)
        if recalibrate and target is not None:
            warn(photos.notes)
            fit_promises(loaded, model, known, target, overwrite, trust)
            return
        evaluation = evaluate_photos(loaded, known, unreadable, progress=True)
        warn(photos.notes, unreadable)
        print(*summary_lines(evaluation), *copy_lines(evaluation), sep="\n")
        Console().print(class_table(evaluation))
        for pair in evaluation.confused_pairs()[:PAIRS_ON_SCREEN]:
            print(taken_for(*pair))
        if target is not None:
            write_results(target, evaluation, known)
            print(f"tables and pictures in {target}")


def known_photos(model: Classifier, photos: ClassPhotos, name: str) -> ClassPhotos:
    """Return the photos of classes that a model knows, and say how many others are left out.

    Args:
        model: that is asked.
        photos: of any classes.
        name: of the model.

    Raises:
        DataError: it knows none of the classes.
    """
    known = photos.of(set(model.class_names))
    strange = [printable(each) for each in photos.class_names if each not in set(model.class_names)]
    if not known.class_names:
        raise DataError(f"{name} knows none of the classes of the photos ({listed(strange)}): nothing to evaluate")
    if strange:
        left = len(photos.files) - len(known.files)
        what = f"{number_of(left, 'photo')} of classes that {name} does not know"
        print(f"{what} {is_or_are(left)} left out: {listed(strange)}")
    return known


def summary_lines(evaluation: Evaluation) -> list[str]:
    """Return accuracy and calibration in two sentences, and one about classes that are hardly ever answered."""
    from cifnet_pl.model.metrics import BINS, about_hardly_answered

    hardly = about_hardly_answered(evaluation.hardly_answered)
    classes, (low, high) = number_of(len(evaluation.class_scores()), "class"), evaluation.interval
    return [
        f"{evaluation.accuracy:.1f} % of {number_of(len(evaluation.rows), 'photo')} of {classes} are named right "
        f"(with 95 % certainty {low:.1f} to {high:.1f} %)",
        f"the model is {100 * evaluation.confidence.mean():.1f} % sure on average; ECE {evaluation.ece:.1f} % "
        f"(how far its confidences are from the share that is right, in {BINS} bins)",
        *([hardly] if hardly else []),
    ]


def copy_lines(evaluation: Evaluation) -> list[str]:
    """Return what is said of photos that were learned already, occur twice, or are in two classes."""
    from cifnet_pl.photos.copies import about_labels

    lines = [evaluation.about_learned(), about_labels(evaluation.mislabelled, None)]
    if evaluation.twice is not None and (twice := int(evaluation.twice.sum())):
        copies = "is a copy of another one" if twice == 1 else "are copies of others"
        lines.append(f"{twice} of these {number_of(len(evaluation.rows), 'photo')} {copies}, and so counted twice")
    return [line for line in lines if line]


def taken_for(true: str, answer: str, count: int, total: int) -> str:
    """Say how many of the ``total`` photos of a class another one is answered for."""
    some = f"{count} of {number_of(total, 'photo')} of {printable(true)}"
    return f"{some} {is_or_are(count)} taken for {printable(answer)}"


HEADER = ("class", "photos", "right %", "95 % interval", "most often taken for")


def class_rows(evaluation: Evaluation) -> list[tuple[str, str, str, str, str]]:
    """Return a row under ``HEADER`` for each class, the worst first."""
    from cifnet_pl.model.metrics import FEW, interval

    rows = []
    for score in evaluation.class_scores():
        low, high = interval(score.right, score.photos)
        right, bounds = (f"{score.percent:.0f}", f"{low:.0f} to {high:.0f}")
        if not score.tested:
            right, bounds = f"{score.right} of {score.photos}", f"fewer than {FEW}"
        other = f"{printable(score.taken_for[0])} ({score.taken_for[1]})" if score.taken_for else ""
        rows.append((printable(score.name), str(score.photos), right, bounds, other))
    return rows


def class_table(evaluation: Evaluation) -> Table:
    """Tabulate the classes for the screen, the worst first."""
    rows: list[Sequence[str]] = [*class_rows(evaluation)]
    better = [[f"… and {len(rows) - ON_SCREEN} better ones"]] if len(rows) > ON_SCREEN else []
    return table(HEADER, [*rows[:ON_SCREEN], *better], names=(0, 4))


def write_results(target: Path, evaluation: Evaluation, photos: ClassPhotos) -> None:
    """Write the tables and pictures of an evaluation.

    Args:
        target: their folder.
        evaluation: of the model.
        photos: that it was evaluated on.
    """
    from cifnet_pl.learning.callbacks.pictures import draw_calibration, draw_confusion, png

    title = f"{evaluation.accuracy:.1f} % of {len(evaluation.rows)} photos right"
    write_json(target / "evaluation.json", _summary(evaluation))
    for name, text in {**tables_of(evaluation), "photos.csv": _photos_csv(evaluation, photos)}.items():
        write_text(target / name, text)
    confusion = draw_confusion(evaluation.confusion(), evaluation.class_names, title)
    write_bytes(target / "confusion.png", png(confusion))
    write_bytes(target / "calibration.png", png(draw_calibration(evaluation.confidence, evaluation.right, title)))


def _summary(evaluation: Evaluation) -> dict[str, Any]:
    low, high = evaluation.interval
    figures: dict[str, Any] = {"photos": len(evaluation.rows), "classes": len(evaluation.class_scores())}
    figures |= {"accuracy": evaluation.accuracy, "accuracy_low": low, "accuracy_high": high}
    if evaluation.learned is not None and evaluation.twice is not None:
        figures |= {"learned": int(evaluation.learned.sum()), "copies": int(evaluation.twice.sum())}
    return {**figures, "mean_confidence": 100 * float(evaluation.confidence.mean()), "ece": evaluation.ece}


def tables_of(evaluation: Evaluation, unjudged: Mapping[str, int] | None = None) -> dict[str, str]:
    """Return CSV with a row for each class, and with the numbers of photos by true class (row) and answer (column).

    Args:
        evaluation: of a model.
        unjudged: class → number of its photos, where it could not be judged.
    """
    from cifnet_pl.model.metrics import interval
    from cifnet_pl.utilities.files import to_csv

    header = ["class", "photos", "right", "accuracy", "low", "high", "tested", "taken_for", "times"]
    rows: list[list[Any]] = []
    for s in evaluation.class_scores():
        low, high = interval(s.right, s.photos)
        bounds = [f"{value:.2f}" for value in (s.percent or 0.0, low, high)]
        rows.append([s.name, s.photos, s.right, *bounds, str(s.tested).lower(), *(s.taken_for or ("", ""))])
    rows += [[name, count, "", "", "", "", "false"] for name, count in (unjudged or {}).items()]
    names = evaluation.class_names
    confusion = [[name, *row] for name, row in zip(names, evaluation.confusion(), strict=True)]
    return {"classes.csv": to_csv(header, rows), "confusion.csv": to_csv(["class", *names], confusion)}


def _photos_csv(evaluation: Evaluation, photos: ClassPhotos) -> str:
    from cifnet_pl.utilities.files import to_csv

    rows = []
    columns = (evaluation.rows, evaluation.target, evaluation.predicted, evaluation.confidence, evaluation.seen())
    for row, target, predicted, confidence, seen in zip(*columns, strict=True):
        true, answer = evaluation.class_names[target], evaluation.class_names[predicted]
        path = str(photos.files.root / photos.files.names[row])
        rows.append([path, true, answer, f"{confidence:.6f}", str(bool(target == predicted)).lower(), seen])
    return to_csv(["file", "class", "answer", "probability", "right", "seen"], rows)


# ---------------------------------------------------------------------- photos of a new place


@dataclass(frozen=True)
class NewPhotos:
    """Labelled photos that a model has not learned, each once.

    Attributes:
        z, y, key: (n, d) embeddings, (n,) labels and (n,) content hashes.
        half: (n,) bool; photos that look alike are in the same half.
        learned: number of photos that are left out, as the model has learned them.
    """

    z: torch.Tensor
    y: torch.Tensor
    key: torch.Tensor
    half: torch.Tensor
    learned: int

    @classmethod
    def of(cls, model: Classifier, photos: ClassPhotos, unreadable: list[Any]) -> NewPhotos:
        """Embed photos.

        Args:
            model: whose backbone embeds.
            photos: of classes that it knows.
            unreadable: photos that cannot be decoded are appended.
        """
        import numpy as np
        import torch

        from cifnet_pl.photos.photo import Photo

        parts = list(photos.embedded(model, "evaluating", unreadable, progress=True, look=Photo.look))
        rows = np.concatenate([part for part, _ in parts])
        hashes, first = np.unique(photos.files.hashes(rows), return_index=True)
        learned = np.isin(hashes, model.photos.content.cpu().numpy())
        chosen = rows[first[~learned]]
        half = np.zeros(len(photos.files), dtype=bool)
        for own in photos.files.rows_of.values():
            half[own] = photos.held_back(own, 0.5)
        labels = np.array(model.labels(photos.class_names), dtype=np.int64)[photos.files.labels[chosen]]
        z = torch.cat([z for _, z in parts])[torch.from_numpy(first[~learned]).to(model.device)]
        y, key, side = (torch.from_numpy(column).to(z.device) for column in (labels, hashes[~learned], half[chosen]))
        return cls(z, y, key, side, int(learned.sum()))


def fit_promises(model: Classifier, name: str, photos: ClassPhotos, target: Path, overwrite: bool, trust: bool) -> None:
    """Store a model whose promises are fitted to photos of a new place, and print figures before and after.

    The figures after are of each half of the photos, by the model calibrated with the other half.

    Args:
        model: it is not changed.
        name: of it, for the screen.
        photos: of classes that it knows.
        target: folder for the bundle.
        overwrite: whether a bundle there may be replaced.
        trust: whether the next command needs ``--trust``.

    Raises:
        UsageError: too few photos that the model has not learned, or something at ``target`` already.
    """
    import torch

    from cifnet_pl.model.calibration import FEWEST_NEW

    unreadable: list[Any] = []
    new = NewPhotos.of(model, photos, unreadable)
    warn([], unreadable)
    result = model.recalibrated(new.z, new.y, new.key)
    result.save(target, overwrite)
    if new.learned:
        them = number_of(new.learned, "photo")
        print(f"{them} that the model has learned {is_or_are(new.learned)} left out")
    print(f"{name} on {number_of(len(new.y), 'photo')} of the new place, before and after:")
    before, after = answers(model, new.z, new.y), None
    if min(int(new.half.sum()), int((~new.half).sum())) >= FEWEST_NEW:
        halves = []
        for part in (new.half, ~new.half):
            other = model.recalibrated(new.z[~part], new.y[~part], new.key[~part])
            halves.append(answers(other, new.z[part], new.y[part]))
        after = torch.cat(halves)
    Console().print(figures_table(before, after))
    if after is None:
        print(f"too few photos to tell what it is afterwards: at least {2 * FEWEST_NEW} that do not look alike")
    print(f"{number_of(len(result.class_names), 'class')} in bundle {target}; {name} is as it was")
    print(next_command("classify", "--model", str(target), "--images", "PHOTOS", "--output", "out.csv", trust=trust))


def answers(model: Classifier, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Ask a model about photos.

    Args:
        model: that answers.
        z: (n, d) embeddings.
        y: (n,) labels.

    Returns:
        (n, 5) float64: the answer's probability, whether it is right, whether the set of answers holds the right class,
        the set's size, and whether the photo is called unknown; NaN for what the model cannot tell.
    """
    import torch

    from cifnet_pl.model.classifier import able

    probabilities = model.head.probabilities(z)
    confidence, column = probabilities.max(dim=1)
    result = torch.full((len(y), 5), torch.nan, dtype=torch.float64)
    result[:, 0], result[:, 1] = confidence.cpu(), (model.head.labels[column] == y).cpu()
    unknown, coverage = able(model, UNKNOWN, COVERAGE)
    if unknown is None and coverage is None:
        return result
    names = model.name_of
    for row, verdict in enumerate(model.judge(unknown, coverage).verdicts(z, probabilities)):
        if verdict.answers is not None:
            result[row, 2], result[row, 3] = names[int(y[row])] in verdict.answers, len(verdict.answers)
        if verdict.known is not None:
            result[row, 4] = not verdict.known
    return result


def figures(asked: torch.Tensor) -> list[str]:
    """Return, in the order of the table, what :func:`answers` says of photos."""
    from cifnet_pl.model.audit import top_label_error

    confidence, right, covered, size, unknown = asked.T.contiguous().numpy()

    def mean(column: np.ndarray, factor: float = 100.0) -> str:
        return "–" if len(column) == 0 or bool((column != column).any()) else f"{factor * column.mean():.1f}"

    surely_wrong = int(((confidence > SURE) & (right == 0)).sum())
    error = top_label_error(confidence, right == 1)
    return [mean(right), f"{error:.1f}", str(surely_wrong), mean(covered), mean(size, 1.0), mean(unknown)]


def figures_table(before: torch.Tensor, after: torch.Tensor | None) -> Table:
    """Tabulate figures before and, as far as they are known, after."""
    names = [
        "photos named right, %",
        "how sure it is, off from how often it is right, points",
        f"wrong answers that it is more than {100 * SURE:g} % sure of",
        f"sets of answers of {100 * COVERAGE:g} % that hold the right class, %",
        "classes in such a set",
        f"photos called unknown where {100 * UNKNOWN:g} % were promised, %",
    ]
    rest = figures(after) if after is not None else ["–"] * len(names)
    return table(("", "before", "after"), zip(names, figures(before), rest, strict=True))
