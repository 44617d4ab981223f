"""``audit``: write a page about the images: doubtful labels, outliers, confusions, and whether more
would help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.cli.commands import warn, writing
from cifnet_pl.cli.evaluate import HEADER, class_rows, tables_of, taken_for
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import write_bytes, write_text
from cifnet_pl.utilities.run_folders import images_of_run
from cifnet_pl.utilities.text import is_or_are, listed, number_of, printable

if TYPE_CHECKING:
    from cifnet_pl.model.audit import Audit, LearningCurve
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.report.page import Section

ON_PAGE = 60
"""Images in one section of the page; the tables have all."""

PAIRS = 8
PER_SIDE = 4

FEW_TO_LEARN = 10
"""Images of a class below which the page says that there are few."""

CLASSES_IN_A_SENTENCE = 10
"""Classes that a sentence names."""

READING = (
    "A row is what the images are, a column what they are taken for, in percent of the row; classes"
    " that are confused with each other are neighbours."
)


def audit(
    model: str,
    output: str,
    images: str | None = None,
    cache_folder: str = "~/.cache/cifnet_pl",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Make a page about labelled images: doubtful labels, odd images, confusions, and whether more
    would help.

    Every image is judged by an exact classifier that learned all the others, on the model's
    embeddings.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        output: folder for audit.html, its pictures (PNG) and tables (CSV).
        images: folder or Zip archive with one sub-folder of images per class; those of the run if
            it is not given.
        cache_folder: embeddings that are there already are not computed again, and others are
            added.
        overwrite: whether files in output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.

    Raises:
        UsageError: no images are given and the model names none, or output holds files already.
        DataError: fewer than two classes, none with two different images, or images that cannot be
            read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    import numpy as np

    from cifnet_pl.data.sets import SourceOptions
    from cifnet_pl.data.sources.folders import folder
    from cifnet_pl.images.files import expanded
    from cifnet_pl.model.audit import audit as audited
    from cifnet_pl.model.audit import embeddings_of, learning_curve
    from cifnet_pl.model.store import load

    target = expanded(Path(output))
    with writing(target, overwrite, "folder"):
        loaded = load(model, trust=trust)
        if not loaded.backbone.takes_images:
            raise UsageError(
                "this model learned embeddings that were computed elsewhere: an audit needs images"
            )
        if images is not None:
            given: str | None = images
        else:
            given = images_of_run(Path(model).expanduser())
        if given is None:
            raise UsageError(f"{model} does not say where its images are: give them with --images")
        root = expanded(given)
        if not root.exists():
            raise UsageError(f"no folder {printable(str(root))}: give the images with --images")
        source = folder(SourceOptions(root, *(loaded.held_out or (0.2, 0))))
        unreadable: list[Any] = []
        embedded = embeddings_of(
            loaded, source, Path(cache_folder).expanduser(), unreadable, progress=True
        )
        z = embedded.z
        files = embedded.files
        undecided = {
            file: f"in {source.class_names[label]}, also in {source.class_names[other]}"
            for file, (label, other) in embedded.undecided.items()
        }
        present, labels = np.unique(embedded.labels, return_inverse=True)
        names = [source.class_names[label] for label in present]
        if len(names) < 2:
            raise DataError(
                f"{printable(str(root))} has images of one class: an audit compares at least two"
            )
        result = audited(z, labels, names)
        if not result.judged.any():
            raise DataError(
                f"{printable(str(root))} has one image of each class, or near-duplicates of one: an"
                " audit judges each image by others of its class"
            )
        curve = learning_curve(z, labels, len(names))
        warn(source.notes, unreadable)
        said = findings(result, undecided, loaded)
        write_audit(target, result, curve, files, undecided, said)
    print(
        *said,
        number_of(len(result.label_errors()), "doubtful label"),
        more_images(curve, names),
        sep="\n",
    )
    print(f"the page: {target / 'audit.html'}")


def findings(result: Audit, undecided: Mapping[Path, str], model: Classifier) -> list[str]:
    """Return what screen and page say first: how many images are right, and which are special.

    Args:
        result: verdict on each image.
        undecided: other images, which lie in two classes → these classes, in words.
        model: whose embeddings were used.
    """
    (low, high), classes = (
        result.scored.interval,
        number_of(len(result.scored.class_names), "class"),
    )
    judged = (
        f"{number_of(len(result.judged), 'image')} of {classes}, each judged by all others but its"
        " look-alikes"
    )
    right = f"{result.scored.accuracy:.1f} % right (with 95 % certainty {low:.1f} to {high:.1f} %)"
    return [
        f"{judged}: {right}",
        *about_undecided(undecided),
        *notes(result),
        *model.accuracy_sentences(),
    ]


def notes(result: Audit) -> list[str]:
    """Return sentences about classes that cannot be judged and about look-alikes, as far as there
    are any.
    """
    sentences = []
    unjudged = result.unjudged
    copies = int(result.copied.sum())
    if unjudged:
        have = "has" if len(unjudged) == 1 else "have"
        if max(unjudged.values()) == 1:
            what = "one image"
        else:
            what = "one image, or near-duplicates of one alone,"
        classes = number_of(len(unjudged), "class")
        sentences.append(f"{classes} {have} {what} and cannot be judged: {_listed(unjudged)}")
    if copies:
        without = result.accuracy_without_duplicates
        if without is not None:
            others = f"; of the images without one {without:.1f} % are right"
        else:
            others = ""
        sentences.append(
            f"{copies} images have look-alikes in their class, such as the next of a burst; none is"
            f" judged by its own, unless they are most of the class{others}"
        )
    return sentences


def about_undecided(undecided: Mapping[Path, str]) -> list[str]:
    """Return a sentence about images that lie in two classes; none if there are none.

    Args:
        undecided: image → the classes in which it lies, in words.
    """
    if not undecided:
        return []
    shown = [f"{file.name} ({where})" for file, where in undecided.items()]
    images = number_of(len(shown), "image lies", "images lie")
    return [
        f"{images} in two classes, and {is_or_are(len(shown))} judged in neither and learned by"
        f" neither: remove each from the wrong folder: {_listed(shown)}"
    ]


def more_images(curve: LearningCurve, names: Sequence[str]) -> str:
    """Return one sentence about whether more images would help.

    Args:
        curve: accuracy by number of images.
        names: of the classes.
    """
    (size, _), first, of_others = curve.points[-1], "", ""
    if curve.short:
        have = "has" if len(curve.short) == 1 else "have"
        images = number_of(-(-size // 2), "image")
        short = _listed([names[label] for label in curve.short])
        first = (
            f"{number_of(len(curve.short), 'class')} {have} fewer than {images}: give these more"
            f" first: {short}"
        )
        of_others = " for the classes that have as many"
    if curve.gain is None:
        few = f"{number_of(size, 'image')} per class are too few to tell whether more would help"
        if first:
            return f"{few}; {first}"
        return few
    gain = max(0.0, curve.gain)
    half = curve.points[-2][0]
    verdict = first or ("that is enough" if gain < 1 else "more images would help")
    brought = f"{size} images per class instead of {half} brought {gain:.1f} points{of_others}"
    return f"{brought}; as many again of these days bring about that at most: {verdict}"


def _listed(names: Iterable[str]) -> str:
    return listed([printable(name) for name in names], CLASSES_IN_A_SENTENCE)


# ---------------------------------------------------------------------- files


def write_audit(
    target: Path,
    result: Audit,
    curve: LearningCurve,
    files: list[Path],
    undecided: Mapping[Path, str],
    said: Sequence[str],
) -> None:
    """Write the page, its pictures and tables.

    Args:
        target: folder.
        result: verdict on each image.
        curve: accuracy by number of images.
        files: the images.
        undecided: other images, which lie in two classes → these classes, in words.
        said: of all of them, see :func:`findings`.
    """
    from cifnet_pl.model.drawing import draw_confusion, png
    from cifnet_pl.report.page import Section, audit_page, draw_learning_curve, page_image

    evaluation = result.scored
    names = evaluation.class_names
    title = f"{evaluation.accuracy:.1f} % of {len(evaluation.rows)} images right, each left out"
    confusion = draw_confusion(evaluation.confusion(), names, title)
    drawn = draw_learning_curve(curve)
    write_bytes(target / "confusion.png", png(confusion))
    write_bytes(target / "learning_curve.png", png(drawn))
    for name, table in tables_of(evaluation, result.unjudged).items():
        write_text(target / name, table)
    write_text(target / "images.csv", images_csv(result, files))
    files_say = (
        "images.csv has every image with what is said of it here, classes.csv and confusion.csv the"
        " numbers."
    )
    lead = [*map(_sentence, said), files_say]
    sections = [
        _label_errors(result, files),
        _pairs(result, files),
        Section("Which classes are confused", [READING], confusion),
        _classes(result),
        _far(result, files),
        Section("Have I got enough images?", [_sentence(more_images(curve, names))], drawn),
    ]
    if undecided:
        shown = [page_image(file, where) for file, where in list(undecided.items())[:ON_PAGE]]
        advice = ["Leave each in the folder of its own class alone."]
        sections.insert(0, Section("Images in two classes", advice, images=shown))
    write_text(target / "audit.html", audit_page("Audit of images", lead, sections))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def images_csv(result: Audit, files: list[Path]) -> str:
    """Return CSV with a row for each image, the most doubtful label first, and last what cannot be
    judged.

    Args:
        result: of the audit, of n images.
        files: the n images.
    """
    import numpy as np

    from cifnet_pl.utilities.files import to_csv

    evaluation = result.evaluation
    label_errors = set(result.label_errors().tolist())
    names = evaluation.class_names
    rows = []
    for row in np.lexsort((result.own, ~result.judged)).tolist():
        cells: list[Any] = [None] * 4
        distance = None
        copied = str(bool(result.copied[row])).lower()
        if result.judged[row]:
            answer = names[evaluation.predicted[row]]
            sure = f"{evaluation.confidence[row]:.6f}"
            cells = [f"{result.own[row]:.6f}", answer, sure, str(row in label_errors).lower()]
            distance = f"{result.distance[row]:.4f}"
        rows.append([str(files[row]), names[evaluation.target[row]], *cells, copied, distance])
    header = ["file", "class", "probability_of_class", "looks_like", "probability"]
    return to_csv([*header, "doubtful", "near_copy", "distance"], rows)


# ---------------------------------------------------------------------- sections of the page


def _images(name: str, texts: list[str], files: list[Path], captions: Mapping[int, str]) -> Section:
    """Return a section with images, by their rows."""
    from cifnet_pl.report.page import Section, page_image

    return Section(
        name, texts, images=[page_image(files[row], text) for row, text in captions.items()]
    )


def _label_errors(result: Audit, files: list[Path]) -> Section:
    rows = result.label_errors()
    evaluation = result.evaluation
    names = evaluation.class_names
    captions = {}
    for row in rows[:ON_PAGE].tolist():
        own = f"in {names[evaluation.target[row]]} ({100 * result.own[row]:.0f} %)"
        answer = f"{names[evaluation.predicted[row]]} ({100 * evaluation.confidence[row]:.0f} %)"
        captions[row] = f"{own}, looks like {answer}"
    text = (
        f"{number_of(len(rows), 'image looks', 'images look')} like another class than that of the"
        " folder, the most doubtful first"
        + (f"; here are {ON_PAGE}" if len(rows) > ON_PAGE else "")
        + ". Look at them: some are in the wrong folder, others are only hard."
    )
    return _images(
        "Doubtful labels", [text if len(rows) else "No label is doubtful."], files, captions
    )


def _pairs(result: Audit, files: list[Path]) -> Section:
    import numpy as np

    from cifnet_pl.report.page import ImageRow, Section, page_image

    evaluation = result.scored
    own = result.own[result.judged]
    pairs = []
    column = {name: i for i, name in enumerate(evaluation.class_names)}
    for true, answer, count, total in evaluation.confused_pairs()[:PAIRS]:
        wrong = np.flatnonzero(
            (evaluation.target == column[true]) & (evaluation.predicted == column[answer])
        )
        usual = np.flatnonzero((evaluation.target == column[answer]) & evaluation.correct)
        surest = evaluation.rows[wrong[np.argsort(-evaluation.confidence[wrong])]]
        typical = evaluation.rows[usual[np.argsort(-own[usual], kind="stable")]]
        left = [page_image(files[row]) for row in surest[:PER_SIDE]]
        right = [page_image(files[row]) for row in typical[:PER_SIDE]]
        confused = ImageRow(taken_for(true, answer, count, total), left)
        usual_images = ImageRow(f"usual images of {printable(answer)}", right)
        pairs.append([confused, usual_images])
    return Section("Classes that are confused most", [] if pairs else ["None is."], pairs=pairs)


def _classes(result: Audit) -> Section:
    from cifnet_pl.report.page import Section

    counts = {score.name: score.images for score in result.scored.class_scores()} | result.unjudged
    few = [f"{printable(name)} ({count})" for name, count in counts.items() if count < FEW_TO_LEARN]
    most = max(counts.values())
    least = min(counts.values())
    each = f"Each class has {number_of(most, 'image')}."
    texts = [
        each if most == least else f"The largest class has {most} images, the smallest {least}."
    ]
    texts += [f"Fewer than {FEW_TO_LEARN} images: {', '.join(few)}."] if few else []
    unjudged = [
        (printable(name), str(count), "not judged", "", "")
        for name, count in result.unjudged.items()
    ]
    return Section("Each class", texts, header=HEADER, rows=[*class_rows(result.scored), *unjudged])


def _far(result: Audit, files: list[Path]) -> Section:
    rows = result.farthest()[:ON_PAGE].tolist()
    text = (
        "Images much farther from the middle of their class than nearly all others are, the"
        " farthest first."
    )
    names = result.evaluation.class_names
    target = result.evaluation.target
    far = {
        row: f"in {names[target[row]]}, {result.distance[row]:.2f} times as far as most"
        for row in rows
    }
    return _images(
        "Images unlike the others of their class", [text if rows else "There are none."], files, far
    )
