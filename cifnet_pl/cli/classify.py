"""``classify``: name what any number of photos show, and write the names into a CSV file."""

from __future__ import annotations

import csv
import heapq
import io
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from cifnet_pl.backbones.engines import EngineChoice
from cifnet_pl.backbones.precision import check_precision
from cifnet_pl.cli.gallery import IN_GALLERY, SHOWN, write_gallery
from cifnet_pl.data.photos import find_photos
from cifnet_pl.model.classifier import Classifier, Prediction
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import exclusive, write_atomic
from cifnet_pl.utilities.progress import counted, on_terminal
from cifnet_pl.utilities.text import number_of, printable


def classify(
    model: str,
    images: list[str],
    output: str,
    top: int = 5,
    strict: bool = False,
    gallery: str | None = None,
    show: Literal["random", "unsure", "wrong"] = "random",
    precision: str | None = None,
    engine: EngineChoice = "auto",
    overwrite: bool = False,
    trust: bool = False,
    unknown: float | None = None,
    coverage: float | None = None,
    per_class: bool = False,
) -> None:
    """Classify photos into a CSV file: file, class, probability, and the next most probable classes.

    With ``unknown`` follow ``known`` (true or false), ``novelty`` (larger is more foreign) and ``p_value`` (the share
    of photos of known classes that are at least as foreign), with ``coverage`` the ``answers`` between semicolons.

    Photos that cannot be read are named and left out. Rows come in the order of the names, in folders of up to 10,000
    entries; beyond that as the file system lists them, so that memory does not grow with their number.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: photos, folders (with all their sub-folders), Zip archives, or patterns in quotes, e.g. "trip/**/*.jpg";
            for a model that learned embeddings, files of these (.npz, .safetensors, .parquet, .arrow).
        output: the CSV file.
        top: number of classes per photo.
        strict: whether to stop at a photo that cannot be read.
        gallery: picture (PNG) of up to 24 of the photos with their three most probable classes.
        show: which photos the gallery has: random ones, those that the model is least sure of, or those in a folder of
            another class's name (wrong), the surest first.
        precision: of the network, 32-true, bf16-mixed or 16-mixed; null for the one that the model was learned in.
        engine: what runs the network: auto, torch or onnxruntime; auto is ONNX Runtime on a CPU, torch on a GPU.
        overwrite: whether existing files may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.
        unknown: share of photos of known classes that may be called unknown, such as 0.05; null not to tell.
        coverage: chance that the right class is among the answers, such as 0.95; null for no answers.
        per_class: whether every class is to have that chance by itself.

    Raises:
        UsageError: ``top`` below one, an unknown precision, a file that exists, or another process that is writing it;
            a share outside (0, 1), or a model without calibration samples.
        UnsupportedError: a head that cannot tell what is asked.
        DataError: no photo there that can be read, or with ``strict`` one that cannot.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    if top < 1:
        raise UsageError(f"--top is {top}, expected at least 1")
    if precision is not None:
        check_precision(precision)
    target, picture = Path(output).expanduser(), Path(gallery).expanduser() if gallery else None
    if picture is not None and picture.suffix.lower() != ".png":
        raise UsageError(f"--gallery {picture} is a PNG picture: give it a name that ends in .png")
    if picture is not None and picture.resolve() == target.resolve():
        raise UsageError(f"--output and --gallery are one file, {target}: give two names")
    with exclusive(target), exclusive(picture) if picture is not None else nullcontext():
        for path in (target, picture):
            if path is not None and path.is_dir():
                raise UsageError(f"{path} is a folder, expected a file")
            if path is not None and path.exists() and not overwrite:
                raise UsageError(f"{path} exists already: choose another name, or add --overwrite true")
        classifier = load(model, engine=engine, trust=trust)
        if picture is not None and not classifier.backbone.takes_images:
            raise UsageError("--gallery needs photos, but this model classifies embeddings: leave it out")
        classifier.precision = precision or classifier.precision
        table = Table(classifier, images, top, strict, show, Asked(unknown, coverage, per_class))
        write_atomic(target, table.write)
        note = write_gallery(table.sample, picture) if picture is not None and table.sample else None
    print(f"{number_of(table.classified, 'photo')} classified in {target}, {table.unreadable} unreadable left out")
    for line in table.verdicts():
        print(line)
    if picture is not None and table.sample:
        print(f"gallery of {len(table.sample)} of them in {picture}" + (f"; {note}" if note else ""))
    elif picture is not None:
        print("no gallery is written: no photo lies in a folder of one class and was taken for another")


@dataclass(frozen=True)
class Asked:
    """Options for further columns about each photo (:class:`cifnet_pl.model.open_set.Judge`)."""

    unknown: float | None = None
    coverage: float | None = None
    per_class: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the further columns."""
        return ["known", "novelty", "p_value"] * (self.unknown is not None) + ["answers"] * (self.coverage is not None)

    def cells(self, prediction: Prediction) -> list[str]:
        """Return the further cells in the row of one photo."""
        cells = []
        if prediction.known is not None:
            cells += [str(prediction.known).lower(), f"{prediction.novelty:.6g}", f"{prediction.p_value:.6f}"]
        if prediction.answers is not None:
            cells.append("; ".join(prediction.answers))
        return cells


class Table:
    """The rows of one classification, written as they are made.

    Attributes:
        classified, unreadable, unknown: photos so far.
        show: which of the predictions the gallery shows.
    """

    def __init__(
        self,
        model: Classifier,
        images: Sequence[str],
        top: int,
        strict: bool,
        show: str = "random",
        asked: Asked | None = None,
    ):
        self.asked = asked or Asked()
        # What cannot be told is refused before the work begins.
        self.warning = model.judge(**vars(self.asked)).warning if self.asked.columns else None
        self.model, self.images, self.strict = model, images, strict
        self.top = min(top, len(model.class_names))
        self.classified = self.unreadable = self.unknown = self.answers = 0
        self.show, self._names = show, set(model.class_names)
        self._kept: list[tuple[float, int, Prediction]] = []
        self._chance = random.Random(0)

    def write(self, file: IO[bytes]) -> None:
        """Write the whole table."""
        header = ["file", "class", "probability"]
        header += [f"{name}_{k}" for k in range(2, self.top + 1) for name in ("class", "probability")]
        header += self.asked.columns
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(header)
        for prediction in self._predictions():
            pairs = zip(prediction.classes, prediction.probabilities, strict=True)
            cells = [cell for name, share in pairs for cell in (name, f"{share:.6f}")]
            rows.writerow([str(prediction.file), *cells[: 2 * self.top], *self.asked.cells(prediction)])
        text.detach()
        if not self.classified:
            where = printable(", ".join(self.images))
            raise DataError(f"no photo of {where} can be read ({number_of(self.unreadable, 'file')})")

    def verdicts(self) -> Iterator[str]:
        """Yield sentences about all photos together."""
        if self.asked.unknown is not None:
            yield (
                f"{self.unknown} of them {'shows' if self.unknown == 1 else 'show'} nothing that this model knows; "
                f"{100 * self.asked.unknown:g} % of photos of known classes are called so, too"
            )
        if self.warning is not None:
            yield self.warning
        if self.asked.coverage is not None:
            yield (
                f"the right class is among the answers with a chance of {100 * self.asked.coverage:g} %; "
                f"they are {self.answers / self.classified:.1f} classes on average"
            )

    def _predictions(self) -> Iterator[Prediction]:
        asked: dict[str, Any] = vars(self.asked)
        wanted = max(self.top, SHOWN)  # the gallery's, too
        if self.model.backbone.takes_images:
            total = sum(1 for _ in self._photos()) if on_terminal() else None
            predictions = self.model.classify(self._photos(), wanted, **asked)
        else:
            total = None
            predictions = chain.from_iterable(self.model.classify_embeddings(f, wanted, **asked) for f in self.images)
        for prediction in counted(predictions, "classifying", total):
            if prediction.unreadable is None:
                self.classified += 1
                self.unknown += prediction.known is False
                self.answers += len(prediction.answers or ())
                self._consider(prediction)
                yield prediction
                continue
            message = f"{printable(str(prediction.file))}: {prediction.unreadable}"
            if self.strict:
                raise DataError(f"cannot read photo {message}; repair or remove it, or leave out --strict")
            self.unreadable += 1
            print(f"skipped {message}", file=sys.stderr)

    def _photos(self) -> Iterator[Path]:
        """Find all photos; every source is opened first, so that a wrong one is reported before the work begins."""
        return chain.from_iterable([find_photos(source) for source in self.images])

    @property
    def sample(self) -> list[Prediction]:
        """Return the photos of the gallery: sorted by name if drawn at random, else the most telling first."""
        if self.show == "random":
            return sorted((p for _, _, p in self._kept), key=lambda prediction: str(prediction.file))
        return [prediction for _, _, prediction in sorted(self._kept, reverse=True)]

    def _consider(self, prediction: Prediction) -> None:
        """Keep a prediction if it is among the ``IN_GALLERY`` of the largest rank so far."""
        rank = self._rank(prediction)
        if rank is not None:
            keep = heapq.heappush if len(self._kept) < IN_GALLERY else heapq.heappushpop
            keep(self._kept, (rank, -self.classified, prediction))

    def _rank(self, prediction: Prediction) -> float | None:
        if self.show == "unsure":
            return -prediction.probabilities[0]
        if self.show == "random":
            return self._chance.random()
        assert prediction.file is not None
        label = prediction.file.parent.name
        return prediction.probabilities[0] if label in self._names and label != prediction.classes[0] else None
