"""``audit``: write a page about label errors, outliers, confusions, and missing images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from cifnet_pl.cli.evaluate import (
    CLASS_HEADER,
    accuracy_line,
    class_rows,
    confusion_line,
    write_class_tables,
)
from cifnet_pl.cli.outputs import IMAGES_SHOWN, warn, writing
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import (
    expanded,
    write_bytes,
    write_text,
)
from cifnet_pl.utilities.run_folders import images_of_run
from cifnet_pl.utilities.text import (
    LISTED_NAMES,
    listed,
    number_of,
    print_text,
    printable,
)

if TYPE_CHECKING:
    from cifnet_pl.data.samples import Source
    from cifnet_pl.model.audit import Audit, CurvePoint
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.labelled_images import Unreadable
    from cifnet_pl.report.page import Captions, Section

IMAGE_COLUMNS = [
    "file",
    "class",
    "probability_of_class",
    "predicted",
    "probability",
    "label_error",
    "near_duplicate",
    "novelty",
]
"""Columns of images.csv."""

CONFUSION_LEGEND = (
    "Rows are true classes, columns predicted classes, in percent of the row; classes that are"
    " confused with each other are neighbours."
)


@dataclass(frozen=True)
class AuditedImages:
    """The results of an audit.

    Attributes:
        result: verdict on each image; its table has their ``file``, too.
        curve: accuracy by number of images.
        ambiguous: other images, which lie in two classes → these classes.
        unreadable: images that cannot be decoded.
    """

    result: Audit
    curve: list[CurvePoint]
    ambiguous: Captions
    unreadable: list[Unreadable]


def audit(
    model: str,
    output: str,
    images: str | None = None,
    cache_folder: str = "~/.cache/cifnet_pl",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Write a page about labelled images: label errors, outliers, confusions, missing images.

    Each image is judged by an exact classifier that learned all others, on the model's embeddings.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        output: folder for audit.html, its figures (PNG) and tables (CSV).
        images: folder or Zip archive with one sub-folder of images per class; those of the run if
            it is not given.
        cache_folder: cache of embeddings, which are read and added.
        overwrite: whether files in output may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.

    Raises:
        UsageError: no images are given and the model names none, or output holds files already.
        DataError: fewer than two classes, none with two different images, or images that cannot be
            read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.store import load

    target = expanded(output)
    with writing(target, overwrite, "folder"):
        loaded = load(model, trust=trust)
        source = _images_to_audit(loaded, model, images)
        audited = audit_images(loaded, source, expanded(cache_folder))
        warn(source.notes, audited.unreadable)
        lines = summary_lines(audited)
        write_audit(target, audited, lines)
    label_errors = number_of(len(audited.result.label_errors()), "probable label error")
    for line in [*lines, label_errors, curve_line(audited.curve)]:
        print_text(line)
    print_text(f"Page {target / 'audit.html'}")


def _images_to_audit(model: Classifier, name: str, images: str | None) -> Source:
    """Return the images that are given, else those of the run; UsageError if there are none."""
    from cifnet_pl.data.samples import SourceOptions
    from cifnet_pl.data.sources import build_source

    given = images or images_of_run(expanded(name))
    if given is None:
        raise UsageError(
            f"{name} does not say where its images are: give them with --images"
        )
    options = SourceOptions(expanded(given), *(model.held_out or (0.2, 0)))
    return build_source("folder", options)


def audit_images(
    model: Classifier,
    source: Source,
    cache_folder: Path,
) -> AuditedImages:
    """Audit all images of a source.

    Args:
        model: its backbone embeds.
        source: of the images.
        cache_folder: of embeddings.

    Raises:
        DataError: fewer than two classes, or none with two different images.
    """
    import numpy as np

    from cifnet_pl.model import audit as auditing

    embedded = auditing.embeddings_of(model, source, cache_folder)
    present, labels = np.unique(embedded.labels, return_inverse=True)
    names = [source.class_names[label] for label in present]
    if len(names) < 2:
        raise DataError("the images are of one class: an audit compares at least two")
    result = auditing.audit(embedded.z, labels, names)
    if not result.scored.images:
        raise DataError(
            "each class has one image, or near-duplicates of one: an audit judges each image by"
            " others of its class"
        )
    result.images["file"] = embedded.files
    curve = auditing.learning_curve(embedded.z, labels, len(names))
    return AuditedImages(result, curve, embedded.undecided, embedded.unreadable)


# ---------------------------------------------------------------------- sentences


def summary_lines(audited: AuditedImages) -> list[str]:
    """Return lines on accuracy, ambiguous images, unjudged classes and near-duplicates.

    Args:
        audited: images and results.
    """
    result = audited.result
    lines = [accuracy_line("Leave-one-out accuracy", result.scored)]
    if audited.ambiguous:
        names = [f"{file.name} ({where})" for file, where in audited.ambiguous.items()]
        count = number_of(len(names), "image")
        lines.append(
            f"{count} in two classes, not judged: {listed(names)}; remove the wrong one"
        )
    if result.unjudged:
        count = number_of(len(result.unjudged), "class")
        reason = "one image, or near-duplicates of one"
        lines.append(f"{count} not judged ({reason}): {listed(list(result.unjudged))}")
    copied = int(result.images["near_duplicate"].sum())
    if copied:
        lines.append(f"{number_of(copied, 'near-duplicate')} within a class")
    return lines


def curve_line(curve: Sequence[CurvePoint]) -> str:
    """Return a line on what the last doubling of images brought."""
    last = curve[-1]
    if len(curve) < 2:
        images = number_of(last.images, "image")
        return f"{images} per class: too few for a learning curve"
    before = curve[-2]
    gain = max(0.0, last.accuracy - before.accuracy)
    return (
        f"{last.images} instead of {before.images} images per class: +{gain:.1f} points"
    )


# ---------------------------------------------------------------------- files


def write_audit(target: Path, audited: AuditedImages, lines: Sequence[str]) -> None:
    """Write the page, its figures and tables.

    Args:
        target: folder.
        audited: images and results.
        lines: of all of them, see :func:`summary_lines`.
    """
    from cifnet_pl.model.drawing import draw_confusion, png
    from cifnet_pl.report.page import TEMPLATES, Section, draw_learning_curve

    result = audited.result
    evaluation = result.scored
    title = f"Leave-one-out accuracy {evaluation.accuracy:.1f} % on {evaluation.images} images"
    confusion = draw_confusion(evaluation.confusion, evaluation.class_names, title)
    drawn = draw_learning_curve(audited.curve)
    write_bytes(target / "confusion.png", png(confusion))
    write_bytes(target / "learning_curve.png", png(drawn))
    write_class_tables(target, evaluation, result.unjudged)
    write_text(target / "images.csv", images_csv(result))
    sections = [
        _label_error_section(result),
        _pair_section(result),
        Section("Confusion matrix", [CONFUSION_LEGEND], confusion),
        _class_section(result),
        _outlier_section(result),
        Section("Learning curve", [f"{curve_line(audited.curve)}."], drawn),
    ]
    if audited.ambiguous:
        text = "Remove each from the wrong folder."
        ambiguous = _image_section("Images in two classes", text, audited.ambiguous)
        sections.insert(0, ambiguous)
    tables = "All results are in images.csv, classes.csv and confusion.csv."
    page = TEMPLATES.get_template("audit.html").render(
        title="Audit of images",
        lead=[*(f"{line}." for line in lines), tables],
        sections=sections,
    )
    write_text(target / "audit.html", page)


def images_csv(result: Audit) -> str:
    """Return CSV with a row per image, the most probable label error first, unjudged ones last."""
    by = ["judged", "probability_of_class"]
    images = result.images.sort_values(by, ascending=[False, True], kind="stable")
    for name in ("label_error", "near_duplicate"):
        images[name] = images[name].map({True: "true", False: "false"})
    verdict = images.columns.difference(["file", "class", "near_duplicate", "judged"])
    images.loc[~images["judged"], verdict] = None
    table = images.to_csv(columns=IMAGE_COLUMNS, index=False, float_format="%.6g")
    return str(table)


# ---------------------------------------------------------------------- sections of the page


def _image_section(name: str, text: str, captions: Captions) -> Section:
    """Return a section with the first images, each with its caption."""
    from cifnet_pl.report.page import Section

    if not captions:
        text = "None."
    shown = islice(captions.items(), IMAGES_SHOWN)
    return Section(name, [text], images=dict(shown))


def _label_error_section(result: Audit) -> Section:
    captions = {}
    for image in result.label_errors().to_dict("records"):
        own = f"{image['class']} {100 * image['probability_of_class']:.0f} %"
        other = f"{image['predicted']} {100 * image['probability']:.0f} %"
        captions[image["file"]] = f"{own}, predicted {other}"
    text = (
        f"{number_of(len(captions), 'image')}, the most probable first. Check them: some are in the"
        " wrong folder, others are only difficult."
    )
    return _image_section("Label errors", text, captions)


def _pair_section(result: Audit) -> Section:
    """Return the most confident confused images, and typical images of the predicted class."""
    from cifnet_pl.report.page import Section

    images = result.images.query("judged")
    pairs = []
    for pair in result.scored.confused_pairs()[:LISTED_NAMES]:
        predicted = images[images["predicted"] == pair.predicted]
        confused = predicted[predicted["class"] == pair.target]
        typical = predicted[predicted["class"] == pair.predicted]
        shown = confused.nlargest(LISTED_NAMES, "probability")
        beside = typical.nlargest(LISTED_NAMES, "probability")
        title = f"typical images of {printable(pair.predicted)}"
        rows = [
            (confusion_line(pair), dict.fromkeys(shown["file"], "")),
            (title, dict.fromkeys(beside["file"], "")),
        ]
        pairs.append(rows)
    return Section("Most confused classes", [] if pairs else ["None."], pairs=pairs)


def _class_section(result: Audit) -> Section:
    from cifnet_pl.report.page import Section

    rows = class_rows(result.scored)
    for name, count in result.unjudged.items():
        rows.append((printable(name), str(count), "not judged", "", ""))
    return Section("Classes", [], header=CLASS_HEADER, rows=rows)


def _outlier_section(result: Audit) -> Section:
    captions = {
        image["file"]: f"{image['class']}, novelty {image['novelty']:.3g}"
        for image in result.outliers().to_dict("records")
    }
    text = "Images unlike all classes, the most novel first."
    return _image_section("Outliers", text, captions)
