"""``audit``: write a page about the photos: doubtful labels, outliers, confusions, and whether more would help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from cifnet_pl.cli.evaluate import classes_csv, confusion_csv, refuse_files
from cifnet_pl.cli.extend import warn
from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources.folders import folder as class_folders
from cifnet_pl.learning.callbacks.pictures import draw_confusion, png
from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.model.audit import Audit, LearningCurve, embeddings_of, learning_curve
from cifnet_pl.model.audit import audit as audited
from cifnet_pl.model.class_photos import Unreadable
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.evaluate import interval
from cifnet_pl.model.store import load
from cifnet_pl.photos.files import expanded
from cifnet_pl.photos.photo import Photo, UnreadableImage
from cifnet_pl.report.audit_page import Section, Side, audit_page, draw_learning_curve, show, with_figure
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import exclusive, write_bytes, write_text
from cifnet_pl.utilities.fonts import lettering
from cifnet_pl.utilities.text import is_or_are, number_of, printable

ON_PAGE = 60
"""Photos in one section of the page; the tables have all."""

PAIRS, PER_SIDE = 8, 4

FEW_TO_LEARN = 10
"""Photos of a class below which the page says that there are few."""

NAMED = 10
"""Classes that a sentence names."""


def about_copies(result: Audit) -> str | None:
    """Return a sentence about near-copies and the accuracy on the other photos; None if there are no near-copies."""
    count, without = int(result.copied.sum()), result.accuracy_without_copies
    if not count:
        return None
    others = f"; of the photos without one {without:.1f} % are right" if without is not None else ""
    return (
        f"{count} photos have near-copies in their class, such as the next of a burst; none is judged by its own, "
        f"unless they are most of the class{others}"
    )


def about_unjudged(result: Audit) -> str | None:
    """Return a sentence that names the classes that cannot be judged; None if there are none."""
    names, many = list(result.unjudged), max(result.unjudged.values(), default=0)
    if not names:
        return None
    have = "has" if len(names) == 1 else "have"
    what = "one photo" if many == 1 else "one photo, or near-copies of one alone,"
    return f"{number_of(len(names), 'class')} {have} {what} and cannot be judged: {_listed(names)}"


def more_photos(curve: LearningCurve, names: Sequence[str]) -> str:
    """Return one sentence about whether more photos would help.

    Args:
        curve: accuracy by number of photos.
        names: of the classes.
    """
    size, accuracy = curve.points[-1]
    doubled, short = curve.forecast(2 * size), [names[label] for label in curve.short]
    first = ""
    if short:
        have = "has" if len(short) == 1 else "have"
        photos = number_of(-(-size // 2), "photo")
        first = f"{number_of(len(short), 'class')} {have} fewer than {photos}: give these more first: {_listed(short)}"
    if doubled is None:
        return f"{number_of(size, 'photo')} per class are too few for a forecast" + f"; {first}" * bool(first)
    gain = max(0.0, doubled - (curve.forecast(size) or accuracy))
    of_others = " of the classes that have as many" * bool(first)
    verdict = first or ("that is enough" if gain < 1 else "more photos would help")
    points = f"{gain:.1f} points more are to be expected{of_others}"
    return f"with {2 * size} photos per class instead of {size}, {points}: {verdict}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(printable, names[:NAMED])) + more


def write_audit(target: Path, result: Audit, curve: LearningCurve, files: list[Path], model: Classifier) -> str | None:
    """Write the page, its pictures and tables.

    Args:
        target: folder.
        result: verdict on each photo.
        curve: accuracy by number of photos.
        files: the photos.
        model: whose embeddings were used.

    Returns:
        A note about characters that could not be drawn, or None.
    """
    evaluation = result.scored
    letters = lettering(evaluation.class_names)
    title = f"{evaluation.accuracy:.1f} % of {len(evaluation.rows)} photos right, each left out"
    confusion = draw_confusion(evaluation.confusion(), evaluation.class_names, letters, title)
    drawn = draw_learning_curve(curve)
    small = small_photos(files, model.image_size)
    write_bytes(target / "confusion.png", png(confusion))
    write_bytes(target / "learning_curve.png", png(drawn))
    write_text(target / "classes.csv", audited_classes_csv(result))
    write_text(target / "confusion.csv", confusion_csv(evaluation))
    write_text(target / "photos.csv", photos_csv(result, files, small))
    sections = [
        _doubtful(result, files),
        _pairs(result, files),
        with_figure("Which classes are confused", [_READING], confusion),
        _classes(result),
        _far(result, files),
        _small(small, files, model.image_size),
        with_figure("Have I got enough photos?", [_sentence(more_photos(curve, evaluation.class_names))], drawn),
    ]
    low, high = evaluation.interval
    start = f"{number_of(len(files), 'photo')} of {number_of(len(evaluation.class_names), 'class', 'classes')}."
    lead = [
        f"{start} Each is judged by a classifier that learned all the others: "
        f"{evaluation.accuracy:.1f} % are named right (with 95 % certainty {low:.1f} to {high:.1f} %).",
        *(_sentence(text) for text in (about_unjudged(result), about_copies(result)) if text),
        "photos.csv has every photo with what is said of it here, classes.csv and confusion.csv the numbers.",
    ]
    write_text(target / "audit.html", audit_page("Audit of photos", lead, sections))
    return letters.note


_READING = (
    "A row is what the photos are, a column what they are taken for, in percent of the row; classes that are confused "
    "with each other are neighbours."
)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _caption(result: Audit, row: int) -> str:
    evaluation = result.evaluation
    label, answer = evaluation.class_names[evaluation.target[row]], evaluation.class_names[evaluation.predicted[row]]
    folder = f"in {label} ({100 * result.own[row]:.0f} %)"
    other = f"{answer} ({100 * evaluation.confidence[row]:.0f} %)"
    return f"{folder}, looks like {other}"


def _doubtful(result: Audit, files: list[Path]) -> Section:
    rows = result.doubtful()
    text = (
        f"{number_of(len(rows), 'photo looks', 'photos look')} like another class than that of the folder, the most "
        "doubtful first"
        + (f"; here are {ON_PAGE}" if len(rows) > ON_PAGE else "")
        + ". Look at them: some are in the wrong folder, others are only hard."
    )
    shown = [show(files[row], _caption(result, row)) for row in rows[:ON_PAGE]]
    return Section("Doubtful labels", [text if len(rows) else "No label is doubtful."], photos=shown)


def _pairs(result: Audit, files: list[Path]) -> Section:
    evaluation, own, pairs = result.scored, result.own[result.judged], []
    column = {name: i for i, name in enumerate(evaluation.class_names)}
    for true, answer, count, total in evaluation.confused_pairs()[:PAIRS]:
        wrong = np.flatnonzero((evaluation.target == column[true]) & (evaluation.predicted == column[answer]))
        usual = np.flatnonzero((evaluation.target == column[answer]) & evaluation.right)
        usual = usual[np.argsort(-own[usual], kind="stable")]
        surest = wrong[np.argsort(-evaluation.confidence[wrong])]
        left, right = ([show(files[row]) for row in evaluation.rows[part][:PER_SIDE]] for part in (surest, usual))
        some = f"{count} of {number_of(total, 'photo')} of {printable(true)}"
        first = f"{some} {is_or_are(count)} taken for {printable(answer)}"
        pairs.append((Side(first, left), Side(f"usual photos of {printable(answer)}", right)))
    return Section("Classes that are confused most", [] if pairs else ["None is."], pairs=pairs)


def _classes(result: Audit) -> Section:
    scores = result.scored.class_scores()
    counts = {score.name: score.photos for score in scores} | result.unjudged
    few = [f"{printable(name)} ({count})" for name, count in counts.items() if count < FEW_TO_LEARN]
    most, least = max(counts.values()), min(counts.values())
    each = f"Each class has {number_of(most, 'photo')}."
    texts = [each if most == least else f"The largest class has {most} photos, the smallest {least}."]
    texts += [f"Fewer than {FEW_TO_LEARN} photos: {', '.join(few)}."] if few else []
    rows = []
    for score in scores:
        low, high = interval(score.right, score.photos)
        taken = f"{printable(score.taken_for[0])} ({score.taken_for[1]})" if score.taken_for else ""
        right = f"{score.percent:.0f}" if score.tested else "untested"
        rows.append((printable(score.name), score.photos, right, f"{low:.0f} to {high:.0f}", taken))
    rows += [(printable(name), count, "not judged", "", "") for name, count in result.unjudged.items()]
    header = ("class", "photos", "right %", "95 % interval", "most often taken for")
    return Section("Each class", texts, header=header, rows=rows)


def _far(result: Audit, files: list[Path]) -> Section:
    rows = result.farthest()
    text = "Photos much farther from the middle of their class than nearly all others are, the farthest first."
    names, target = result.evaluation.class_names, result.evaluation.target
    far = {row: f"in {names[target[row]]}, {result.distance[row]:.2f} times as far as most" for row in rows[:ON_PAGE]}
    shown = [show(files[row], caption) for row, caption in far.items()]
    return Section("Photos unlike the others of their class", [text if len(rows) else "There are none."], photos=shown)


def small_photos(files: list[Path], size: int) -> dict[int, int]:
    """Find photos whose short side is smaller than the model's images.

    Args:
        files: the photos.
        size: side of the model's images in pixels.

    Returns:
        Position → short side in pixels, the smallest first.
    """
    sizes = {}
    for row, file in enumerate(files):
        try:
            with Photo(file).open() as image:
                side = min(image.size)
        except UnreadableImage:
            continue
        if side < size:
            sizes[row] = side
    return dict(sorted(sizes.items(), key=lambda item: (item[1], item[0])))


def _small(small: dict[int, int], files: list[Path], size: int) -> Section:
    count = number_of(len(small), "photo has", "photos have")
    text = f"{count} fewer pixels on the short side than the {size} that the network looks at."
    shown = [show(files[row], f"{side} pixels") for row, side in list(small.items())[: ON_PAGE // 4]]
    return Section("Tiny photos", [text], photos=shown)


def audited_classes_csv(result: Audit) -> str:
    """Return CSV with a row for each class; of classes that cannot be judged only the number of photos is there."""
    return classes_csv(result.scored) + "".join(
        to_csv([name, str(count), *[""] * 4, "false", "", ""], []) for name, count in result.unjudged.items()
    )


def photos_csv(result: Audit, files: list[Path], small: dict[int, int]) -> str:
    """Return CSV with a row for each photo, the most doubtful label first, and last what cannot be judged.

    Args:
        result: of the audit, of n photos.
        files: the n photos.
        small: row of each tiny photo → its shorter side in pixels.
    """
    evaluation, doubtful = result.evaluation, set(result.doubtful().tolist())
    names = evaluation.class_names
    rows = []
    for row in np.lexsort((result.own, ~result.judged)).tolist():
        answer = [f"{result.own[row]:.6f}", names[evaluation.predicted[row]], f"{evaluation.confidence[row]:.6f}"]
        cells: list[str | None] = [*answer, str(row in doubtful).lower()] if result.judged[row] else [None] * 4
        distance = f"{result.distance[row]:.4f}" if result.judged[row] else None
        copied = str(bool(result.copied[row])).lower()
        rows.append([str(files[row]), names[evaluation.target[row]], *cells, copied, distance, small.get(row)])
    header = ["file", "class", "probability_of_class", "looks_like", "probability"]
    return to_csv([*header, "doubtful", "near_copy", "distance", "tiny_side"], rows)


def audit(
    model: str,
    output: str,
    images: str | None = None,
    cache_folder: str = "~/.cache/cifnet_pl",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Make a page about labelled photos: doubtful labels, odd photos, confusions, and whether more would help.

    Every photo is judged by an exact classifier that learned all the others, on the model's embeddings.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        output: folder for audit.html, its pictures (PNG) and tables (CSV).
        images: folder or Zip archive with one sub-folder of photos per class; those of the run if it is not given.
        cache_folder: embeddings that are there already are not computed again, and others are added.
        overwrite: whether files in output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

    Raises:
        UsageError: no photos are given and the model names none, or output holds files already.
        DataError: fewer than two classes, none with two different photos, or photos that cannot be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    target = expanded(Path(output))
    with exclusive(target):
        refuse_files(target, overwrite)
        audited_model = load(model, trust=trust)
        if not audited_model.backbone.takes_images:
            raise UsageError("this model learned embeddings that were computed elsewhere: an audit needs photos")
        root = expanded(Path(images if images is not None else photos_of_run(Path(model).expanduser())))
        fraction, seed = audited_model.held_back or (0.2, 0)
        if not root.exists():
            raise UsageError(f"no folder {printable(str(root))}: give the photos with --images")
        source = class_folders(SourceOptions(root, fraction, seed))
        unreadable: list[Unreadable] = []
        cache = Path(cache_folder).expanduser()
        with embeddings_of(audited_model, source, cache, unreadable, progress=True) as (z, labels, files):
            present = np.unique(labels)
            names = [source.class_names[label] for label in present]
            if len(names) < 2:
                raise DataError(f"{printable(str(root))} has photos of one class: an audit compares at least two")
            labels = np.searchsorted(present, labels)
            result = audited(z, labels, names)
            if not result.judged.any():
                raise DataError(
                    f"{printable(str(root))} has one photo of each class, or near-copies of one: an audit judges each "
                    "photo by others of its class"
                )
            curve = learning_curve(z, labels, len(names))
        warn([], unreadable)
        note = write_audit(target, result, curve, files, audited_model)
    if note:
        print(note)
    low, high = result.scored.interval
    right = f"{result.scored.accuracy:.1f} % right"
    print(f"{number_of(len(files), 'photo')} of {len(names)} classes, each judged by all others: {right}")
    print(f"(with 95 % certainty {low:.1f} to {high:.1f} %); {number_of(len(result.doubtful()), 'doubtful label')}")
    for sentence in (about_unjudged(result), about_copies(result)):
        if sentence:
            print(sentence)
    print(more_photos(curve, names))
    print(f"the page: {target / 'audit.html'}")


def photos_of_run(model: Path) -> str:
    """Return the folder of photos that a run learned from, by its configuration.

    Raises:
        UsageError: it has none, or the photos were no class folders.
    """
    versions = sorted(model.glob("version_*"), key=lambda path: path.stat().st_mtime, reverse=True)
    places = [model, *versions, *model.parents[:2]]
    config = next((folder / "config.yaml" for folder in places if (folder / "config.yaml").is_file()), None)
    data = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("data", {}) if config is not None else {}
    if data.get("source") != "folder" or not data.get("root"):
        raise UsageError(f"{model} does not say where its photos are: give them with --images")
    return str(data["root"])
