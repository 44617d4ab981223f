"""``classify``: name what any number of images show, and write the names into a CSV file."""

from __future__ import annotations

import csv
import heapq
import io
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cifnet_pl.cli.commands import Engine, writing
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.text import counted, families, number_of, on_terminal, printable, shortened

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier, Prediction

IN_GALLERY = 24
"""Images in one picture."""

UNKNOWN_SHARE = 0.05
STRANGERS = 0.25
"""Share of known images that may be taken for unknown, and of unknown ones above which sets of
answers promise nothing.
"""

SHOWN = 3
"""Classes under each image."""

COLUMNS = 6
PIXELS = 160
UNKNOWN = "#b2182b"
"""Colour of what shows nothing known."""

LONGEST = 22
"""Characters of a class name that are shown."""


def classify(
    model: str,
    images: list[str],
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
    """Classify images into a CSV file: file, class, probability, and the next most probable
    classes.

    With ``unknown`` follow ``known`` (true or false), ``novelty`` (larger is more foreign) and
    ``p_value`` (the share of images of known classes that are at least as foreign), with
    ``coverage`` the ``answers`` between semicolons.

    Images that cannot be read are named and left out. Rows come in the order of the names, in
    folders of up to 10,000 entries; beyond that as the file system lists them, so that memory does
    not grow with their number.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: images, folders (with all their sub-folders), Zip archives, or patterns in quotes,
            e.g. "trip/**/*.jpg"; for a model that learned embeddings, files of these (.npz,
            .parquet).
        output: the CSV file.
        top: number of classes per image.
        gallery: picture (PNG) of up to 24 of the images, drawn at random, with their three most
            probable classes.
        precision: of the network, 32-true, bf16-mixed or 16-mixed; null for the one that the model
            was learned in.
        engine: what runs the network: auto, torch or onnxruntime; auto is ONNX Runtime on a CPU,
            torch on a GPU.
        overwrite: whether existing files may be replaced.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.
        unknown: share of images of known classes that may be called unknown, such as 0.05; null not
            to tell.
        coverage: chance that the right class is among the answers, such as 0.95; null for no
            answers.

    Raises:
        UsageError: ``top`` below one, an unknown precision, a file that exists, or another process
            that is writing it; a share outside (0, 1), or a model without calibration samples.
        UnsupportedError: a head that cannot tell what is asked.
        DataError: no image there that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.backbones.engines import check_precision
    from cifnet_pl.model.classifier import able
    from cifnet_pl.model.store import load

    if top < 1:
        raise UsageError(f"--top is {top}, expected at least 1")
    if precision is not None:
        check_precision(precision)
    target = Path(output).expanduser()
    picture = Path(gallery).expanduser() if gallery else None
    with writing(target, overwrite), writing(picture, overwrite):
        classifier = load(model, engine=engine, trust=trust)
        if picture is not None and not classifier.backbone.takes_images:
            raise UsageError(
                "--gallery needs images, but this model classifies embeddings: leave it out"
            )
        classifier.precision = precision or classifier.precision
        if unknown is None and coverage is not None:
            share = able(classifier, UNKNOWN_SHARE)[0]
        else:
            share = unknown
        judged: dict[str, Any] = {"unknown": share, "coverage": coverage}
        # What cannot be told is refused before the work begins.
        warning = (
            classifier.judge(**judged).warning
            if unknown is not None or coverage is not None
            else None
        )
        table = Table(classifier, images, top, judged, told=unknown is not None)
        write_atomic(target, table.write)
        if picture is not None:
            write_gallery(table.sample, picture)
    count = number_of(table.classified, classifier.sample)
    print(f"{count} classified in {target}, {table.unreadable} unreadable left out")
    for sentence in about_verdicts(
        table, unknown, warning if unknown is not None else None, coverage
    ):
        print(sentence)
    if picture is not None:
        print(f"gallery of {len(table.sample)} of them in {picture}")


def about_verdicts(
    table: Table, unknown: float | None, warning: str | None, coverage: float | None
) -> Iterator[str]:
    """Say how many images are called unknown, and how large the sets of answers are.

    Nothing is promised of the answers where many images are unlike all that was learned: strangers,
    or another light.
    """
    if unknown is not None:
        yield (
            f"{table.unknown} of them {'shows' if table.unknown == 1 else 'show'} nothing that this"
            f" model knows; {100 * unknown:g} % of images of known classes are called so, too"
        )
    if warning is not None:
        yield warning
    if coverage is None:
        return
    size = f"{table.answers / table.classified:.1f} classes on average"
    if table.unknown > STRANGERS * table.classified:
        yield (
            f"nothing is promised of the answers, {size}: {table.unknown} of the images are unlike"
            " all that the model learned, by another light, another place or other things on them"
        )
    else:
        day = table.model.calibration.where
        yield (
            f"of images of known classes {day}, the right one is among the answers with a chance of"
            f" {100 * coverage:g} %; they are {size}"
        )


class Table:
    """The rows of one classification, written as they are made.

    Args:
        model: that classifies.
        images: images, folders, archives or patterns.
        top: number of classes per image.
        judged: the options ``unknown`` and ``coverage``.
        told: whether the table says what is unknown.

    Attributes:
        classified, unreadable, unknown, answers: images so far, and classes among their answers.
    """

    def __init__(
        self,
        model: Classifier,
        images: Sequence[str],
        top: int,
        judged: dict[str, Any],
        told: bool,
    ):
        self.told = told
        self.model = model
        self.images = images
        self.judged = judged
        self.top = min(top, len(model.class_names))
        self.classified = self.unreadable = self.unknown = self.answers = 0
        self._kept: list[tuple[float, int, Prediction]] = []
        self._chance = random.Random(0)

    def write(self, file: IO[bytes]) -> None:
        """Write the whole table."""
        header = ["file", "class", "probability"]
        header += [
            f"{name}_{k}" for k in range(2, self.top + 1) for name in ("class", "probability")
        ]
        header += ["known", "novelty", "p_value"] * self.told
        header += ["answers"] * (self.judged["coverage"] is not None)
        text = io.TextIOWrapper(
            file, encoding="utf-8", errors="surrogateescape", newline="", write_through=True
        )
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(header)
        for prediction in self._predictions():
            rows.writerow(self._row(prediction))
        text.detach()
        if not self.classified:
            where = printable(", ".join(self.images))
            raise DataError(
                f"no image of {where} can be read ({number_of(self.unreadable, 'file')})"
            )

    def _row(self, prediction: Prediction) -> list[str]:
        cells = [str(prediction.file)]
        for name, share in zip(
            prediction.classes[: self.top], prediction.probabilities[: self.top], strict=True
        ):
            cells += [name, f"{share:.6f}"]
        if self.told:
            cells += [
                str(prediction.known).lower(),
                f"{prediction.novelty:.6g}",
                f"{prediction.p_value:.6f}",
            ]
        if prediction.answers is not None:
            cells.append("; ".join(prediction.answers))
        return cells

    def _predictions(self) -> Iterator[Prediction]:
        # the gallery's, too
        wanted = max(self.top, SHOWN)
        total = None
        if self.model.backbone.takes_images:
            total = sum(1 for _ in self._images()) if on_terminal() else None
            predictions = self.model.classify(self._images(), wanted, **self.judged)
        else:
            files = (
                self.model.classify_embeddings(file, wanted, **self.judged) for file in self.images
            )
            predictions = chain.from_iterable(files)
        for prediction in counted(predictions, "classifying", total):
            if prediction.unreadable is None:
                self.classified += 1
                self.unknown += prediction.known is False
                self.answers += len(prediction.answers or ())
                if self.told:
                    shown = prediction
                else:
                    shown = replace(prediction, known=None)
                # Those of the largest random numbers so far are the gallery's.
                entry = (self._chance.random(), self.classified, shown)
                if len(self._kept) < IN_GALLERY:
                    heapq.heappush(self._kept, entry)
                else:
                    heapq.heappushpop(self._kept, entry)
                yield shown
                continue
            self.unreadable += 1
            print(
                f"skipped {printable(str(prediction.file))}: {prediction.unreadable}",
                file=sys.stderr,
            )

    def _images(self) -> Iterator[Path]:
        """Find all images; every source is opened first, so that a wrong one is reported before the
        work begins.
        """
        from cifnet_pl.images.files import find_images

        return chain.from_iterable([find_images(source) for source in self.images])

    @property
    def sample(self) -> list[Prediction]:
        """Return the images of the gallery, sorted by name."""
        return sorted(
            (prediction for _, _, prediction in self._kept),
            key=lambda prediction: str(prediction.file),
        )


# ---------------------------------------------------------------------- the picture


def write_gallery(predictions: Sequence[Prediction], path: Path) -> None:
    """Draw images in the order given, each above its most probable classes.

    Args:
        predictions: of the images.
        path: the PNG file, written atomically.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(predictions))
    rows = math.ceil(len(predictions) / columns)
    fonts = families([text for p in predictions for text in (_title(p), *p.classes[:SHOWN])])
    with matplotlib.rc_context({"font.family": fonts}):
        figure = Figure(figsize=(2.0 * columns, 2.85 * rows), layout="constrained")
        for i, prediction in enumerate(predictions):
            _draw(figure.add_subplot(rows, columns, i + 1, xticks=[], yticks=[]), prediction)
        write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=110))


def _title(prediction: Prediction) -> str:
    assert prediction.file is not None  # the command line names files
    return f"{prediction.file.parent.name}/{prediction.file.name}"


def _draw(axes: Any, prediction: Prediction) -> None:
    """Draw an image with its classes; one that shows nothing known has a frame around it, and says
    so.
    """
    from cifnet_pl.images.image import read_square

    assert prediction.file is not None
    unknown = prediction.known is False
    axes.imshow(read_square(prediction.file, PIXELS), interpolation="nearest")
    for spine in axes.spines.values():
        spine.set(visible=unknown, color=UNKNOWN, linewidth=4)
    axes.set_title(
        shortened(_title(prediction), LONGEST + 10),
        fontsize=7,
        color="0.4",
        pad=4,
        parse_math=False,
    )
    shares = zip(prediction.classes[:SHOWN], prediction.probabilities, strict=False)
    lines = [f"{shortened(name, LONGEST)}  {100 * share:.0f} %" for name, share in shares]
    text = "\n".join(["unknown, nearest:"] * unknown + lines)
    colour = UNKNOWN if unknown else "black"
    axes.set_xlabel(text, fontsize=8, color=colour, parse_math=False)
