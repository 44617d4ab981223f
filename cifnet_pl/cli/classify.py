"""``classify``: predict the classes of any number of images, and write them into a CSV file."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cifnet_pl.cli.commands import Engine
from cifnet_pl.cli.outputs import (
    IMAGES_SHOWN,
    warn,
    writing,
)
from cifnet_pl.images.files import PassedOver, find_images
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.files import (
    csv_line,
    expanded,
    list_cell,
    write_atomic,
)
from cifnet_pl.utilities.text import (
    counted,
    families,
    number_of,
    print_text,
    printable,
    shortened,
)

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier, Prediction

LONGEST_NAME = 22
"""Characters of a name that a gallery shows."""

UNKNOWN_COLOUR = "#b2182b"


def classify(
    model: str,
    images: Sequence[str],
    output: str,
    top: int = 5,
    gallery: str | None = None,
    precision: str | None = None,
    engine: Engine = "auto",
    overwrite: bool = False,
    trust: bool = False,
    unknown: float | None = None,
    coverage: float | None = None,
) -> None:
    """Classify images into a CSV file: file, class, probability, class_2, probability_2, ….

    With ``unknown``, the columns ``known`` (true or false), ``novelty`` (larger is more novel) and
    ``p_value`` follow: the share of images of known classes that are at least as novel. With
    ``coverage``, the column ``prediction_set`` follows, with semicolons between the classes.

    Images that cannot be read are named and left out. Rows are sorted by name within folders of up
    to 10,000 entries. Beyond that they have the order of the file system, so that memory does not
    grow with the number of images.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: images, folders (with all their sub-folders), Zip archives, or patterns in quotes,
            e.g. "trip/**/*.jpg"; for a model that learned embeddings, files of these (.npz,
            .parquet).
        output: the CSV file, or - for the standard output; messages are then on standard error.
        top: number of classes per image.
        gallery: picture (PNG) of up to 24 of the images, drawn at random, with their most
            probable classes.
        precision: of the backbone: 32-true, bf16-mixed or 16-mixed; null for the one that the model
            was learned in.
        engine: what runs the backbone: auto, torch or onnxruntime;
            auto is ONNX Runtime on a CPU, torch on a GPU.
        overwrite: whether existing files may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.
        unknown: share of images of known classes that may be called unknown, such as 0.05; null to
            call none unknown.
        coverage: probability that the prediction set holds the true class, such as 0.95; null for
            no prediction sets.

    Raises:
        UsageError: ``top`` below one, an unknown precision, a file that exists, or another process
            that is writing it; a share outside (0, 1), or a model without calibration samples.
        UnsupportedError: the head cannot tell unknown images or make prediction sets.
        DataError: no image that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.backbones.engines import check_precision
    from cifnet_pl.model.store import load

    check_that(top >= 1, "--top", top, "at least 1")
    if precision is not None:
        check_precision(precision)
    target = None if output == "-" else expanded(output)
    picture = expanded(gallery) if gallery else None
    with writing(target, overwrite), writing(picture, overwrite):
        classifier = load(model, engine=engine, trust=trust)
        if picture is not None and not classifier.backbone.takes_images:
            raise UsageError(
                "--gallery needs images, but this model classifies embeddings: leave it out"
            )
        classifier.precision = precision or classifier.precision
        table = ClassificationTable(classifier, images, top, unknown, coverage)
        if target is None:
            table.write(sys.stdout.buffer)
        else:
            write_atomic(target, table.write)
        if picture is not None:
            write_gallery(table.gallery, classifier.image_size, picture)
    count = number_of(table.classified, classifier.backbone.sample)
    place = target or "the standard output"
    said = [f"{count} classified in {place}, {table.unreadable} unreadable"]
    said += table.summary()
    if picture is not None:
        said.append(f"Gallery in {picture}")
    for sentence in said:
        print_text(sentence, sys.stderr if target is None else sys.stdout)
    for note in (*table.passed_over.notes(), *classifier.calibration_notes()):
        print_text(note, sys.stderr)


@dataclass
class ClassificationTable:
    """The rows of one classification, written as they are made.

    Attributes:
        model: that classifies.
        images: images, folders, archives or patterns.
        top: number of classes per image.
        unknown: share of images of known classes that may be called unknown; None for no such
            columns.
        coverage: of the prediction sets; None for no such column.
        classified: number of images so far.
        unreadable: number of images that cannot be read.
        unknown_count: number of images called unknown.
        set_sizes: sum of the sizes of the prediction sets.
        passed_over: files that were skipped although they may be images.
        gallery: predictions that were drawn at random.
    """

    model: Classifier
    images: Sequence[str]
    top: int
    unknown: float | None
    coverage: float | None
    classified: int = 0
    unreadable: int = 0
    unknown_count: int = 0
    set_sizes: int = 0
    passed_over: PassedOver = field(default_factory=PassedOver)
    gallery: list[Prediction] = field(default_factory=list)

    def write(self, file: IO[bytes]) -> None:
        """Classify all images, and write the table.

        Raises:
            UsageError: a share outside (0, 1), or a model without calibration samples.
            UnsupportedError: the head cannot tell unknown images or make prediction sets.
            DataError: no image can be read.
        """
        for prediction in self._predictions():
            cells = self._cells(prediction)
            text = csv_line(cells.values())
            if self.classified == 1:
                text = csv_line(cells) + text
            file.write(text.encode("utf-8", "surrogateescape"))
        if not self.classified:
            where = printable(", ".join(self.images))
            files = number_of(self.unreadable, "file")
            raise DataError(f"no image of {where} can be read ({files})")

    def _cells(self, prediction: Prediction) -> dict[str, str]:
        """Return the cells of a row, by the names of the columns."""
        cells = {"file": str(prediction.file)}
        ranked = zip(prediction.classes, prediction.probabilities, strict=True)
        for rank, (name, probability) in enumerate(ranked, 1):
            ending = f"_{rank}" if rank > 1 else ""
            cells[f"class{ending}"] = name
            cells[f"probability{ending}"] = f"{probability:.6f}"
        if self.unknown is not None:
            cells["known"] = str(prediction.known).lower()
            cells["novelty"] = f"{prediction.novelty:.6g}"
            cells["p_value"] = f"{prediction.p_value:.6f}"
        if prediction.prediction_set is not None:
            cells["prediction_set"] = list_cell(prediction.prediction_set)
        return cells

    def _predictions(self) -> Iterator[Prediction]:
        """Yield the predictions of readable images, and count all.

        Each image gets into the gallery with the same chance as any other.
        """
        sources: list[Any] = list(self.images)  # files of embeddings
        if self.model.backbone.takes_images:
            # All are opened first, so that a wrong one is reported early.
            found = [find_images(source, self.passed_over) for source in self.images]
            sources = [chain.from_iterable(found)]
        shares = {"unknown": self.unknown, "coverage": self.coverage}
        classified = [
            self.model.classify(source, self.top, **shares) for source in sources
        ]
        every = chain.from_iterable(classified)
        lots = random.Random(0)
        for prediction in counted(every, "classifying"):
            if prediction.unreadable is not None:
                self.unreadable += 1
                warn([], [(prediction.file, prediction.unreadable)])
                continue
            self.classified += 1
            self.unknown_count += prediction.known is False
            self.set_sizes += len(prediction.prediction_set or ())
            if self.classified <= IMAGES_SHOWN:
                self.gallery.append(prediction)
            elif (place := lots.randrange(self.classified)) < IMAGES_SHOWN:
                self.gallery[place] = prediction
            yield prediction

    def summary(self) -> Iterator[str]:
        """Yield sentences about unknown images and the sizes of prediction sets."""
        if self.unknown is not None:
            samples = number_of(self.classified, self.model.backbone.sample)
            expected = f"expected of known classes: {100 * self.unknown:g} %"
            yield f"{self.unknown_count} of {samples} unknown ({expected})"
            predictor = self.model.open_set_predictor(self.unknown, self.coverage)
            if predictor.warning is not None:
                yield predictor.warning
        if self.coverage is not None:
            size = self.set_sizes / self.classified
            yield (
                f"Prediction sets: {size:.1f} classes on average, coverage"
                f" {100 * self.coverage:g} % for images of known classes without distribution shift"
            )
        if self.coverage is not None or self.unknown is not None:
            yield from self.model.coverage_notes()


# ---------------------------------------------------------------------- the gallery


def write_gallery(predictions: Sequence[Prediction], side: int, path: Path) -> None:
    """Draw images, sorted by name, each above its most probable classes.

    Args:
        predictions: of the images.
        side: of the squares in pixels.
        path: the PNG file, written atomically.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    import matplotlib
    from matplotlib.figure import Figure

    columns = math.ceil(math.sqrt(len(predictions)))
    rows = math.ceil(len(predictions) / columns)
    texts = []
    for prediction in predictions:
        texts += [str(prediction.file), *prediction.classes]
    with matplotlib.rc_context({"font.family": families(texts)}):
        figure = Figure(figsize=(2.0 * columns, 3.0 * rows), layout="constrained")
        in_order = sorted(predictions, key=lambda prediction: str(prediction.file))
        for place, prediction in enumerate(in_order, 1):
            axes = figure.add_subplot(rows, columns, place, xticks=[], yticks=[])
            _draw(axes, prediction, side)
        write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=110))


def _draw(axes: Any, prediction: Prediction, side: int) -> None:
    """Draw an image with its classes; an unknown one has a frame."""
    from cifnet_pl.images.image import read_square

    assert prediction.file is not None  # the command line names files
    unknown = prediction.known is False
    colour = UNKNOWN_COLOUR if unknown else "black"
    axes.imshow(read_square(prediction.file, side), interpolation="nearest")
    for spine in axes.spines.values():
        spine.set(visible=unknown, color=UNKNOWN_COLOUR, linewidth=4)
    name = f"{prediction.file.parent.name}/{prediction.file.name}"
    title = shortened(name, LONGEST_NAME)
    axes.set_title(title, fontsize=7, color="0.4", pad=4, parse_math=False)
    lines = ["unknown, nearest:"] if unknown else []
    ranked = zip(prediction.classes, prediction.probabilities, strict=True)
    for name, probability in ranked:
        lines.append(f"{shortened(name, LONGEST_NAME)}  {100 * probability:.0f} %")
    axes.set_xlabel("\n".join(lines), fontsize=8, color=colour, parse_math=False)
