"""Read images in class folders, embed them, and find those that a model has learned already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, cut_batches
from cifnet_pl.data.samples import SampleTable, labelled
from cifnet_pl.data.sources.folders import class_samples, find_splits
from cifnet_pl.data.sources.python_objects import read_samples
from cifnet_pl.data.sources.tables import open_table
from cifnet_pl.images import duplicates as image_duplicates
from cifnet_pl.images.duplicates import Duplicates, Repeats
from cifnet_pl.images.files import require_folder
from cifnet_pl.images.image import EncodedImage, ImageLike, Look
from cifnet_pl.images.reader import (
    LEFT_OUT,
    decode_images,
    image_location,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import counted, listed, printable


class Unreadable(NamedTuple):
    """An image that cannot be decoded, and why."""

    file: Path
    reason: str


@dataclass(frozen=True)
class LabelledImages:
    """Images in class folders, or embeddings with labels.

    Attributes:
        class_names: name of each class.
        files: the images, or rows of embeddings; labels are positions in ``class_names``.
        looks: (n,) hash, time and thumbnail of each image once it was embedded with them; None
            where they are not known.
        unreadable: those of the images that could not be decoded when they were embedded.
    """

    class_names: list[str]
    files: SampleTable
    looks: list[Look | None] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    @classmethod
    def find(
        cls,
        folder: Path | str,
        option: str,
        tested: bool = False,
    ) -> LabelledImages:
        """Find the images of all class folders in a folder or a Zip archive.

        Args:
            folder: the folder or archive; of one with ``train`` and ``val`` one of these is taken.
            option: of the command line that named it, for messages.
            tested: whether the images are to be predicted and not learned, so that ``val`` is
                taken.

        Raises:
            DataError: no such folder, no class folder in it, one without an image, or a name that
                cannot be stored.
        """
        root = expanded(folder)
        require_folder(
            root,
            option,
            "a folder or Zip archive with one sub-folder of images per class",
        )
        notes = []
        splits = find_splits(root)
        if splits is not None:
            root = splits.parts["train"]
            notes += splits.notes
            held_out = splits.parts.get("test") or splits.parts.get("val")
            if held_out is not None:
                names = f"{root.name} and {held_out.name}"
                if tested:
                    root = held_out
                notes.append(f"note: {folder} has {names}: taking {root.name}")
        samples = class_samples(root, notes=notes)
        class_names, files = labelled(samples)
        return cls(class_names, files)

    def of_classes(self, wanted: set[str]) -> LabelledImages:
        """Select the images of the classes in ``wanted``."""
        is_wanted = np.array([name in wanted for name in self.class_names])
        return self.select(is_wanted[self.files.labels])

    def select(self, mask: np.ndarray) -> LabelledImages:
        """Select the images of a mask (n,) bool, and the classes that still have one."""
        rows = np.flatnonzero(mask)
        classes, places = np.unique(self.files.labels[rows], return_inverse=True)
        files = self.files.subset(rows).with_columns(label=places)
        names = [self.class_names[label] for label in classes]
        return LabelledImages(names, files)

    def all_embedded(
        self,
        model: Classifier,
        title: str,
        **options: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Embed all images that can be read.

        Args:
            model, title, options: as for :meth:`embedded`.

        Returns:
            (n, d) float32 embeddings, and (n,) bool which images could be read.
        """
        count = len(self.files)
        z = np.empty((count, model.head.in_features), np.float32)
        readable = np.zeros(count, dtype=bool)
        for rows, batch_z in self.embedded(model, title, **options):
            z[rows] = batch_z.cpu().numpy()
            readable[rows] = True
        return z, readable

    def embedded(
        self,
        model: Classifier,
        title: str,
        progress: bool = False,
        look: Callable[[EncodedImage], Look] = EncodedImage.identify,
        skip: Callable[[int, int], bool] | None = None,
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Embed all images that can be read in batches, each opened once; or yield the embeddings.

        Args:
            model: its backbone embeds.
            title: of the progress bar.
            progress: whether to draw a bar on a terminal.
            look: what else is read of each image, which is then in ``looks``.
            skip: whether the image of a row and hash is left out.

        Yields:
            Rows (m,) of the images and their embeddings (m, d).
        """
        if not self.files.are_images:
            every_row = np.arange(len(self.files))
            for rows in cut_batches(every_row, EMBEDDED_BATCH):
                yield rows, self.files.get(rows).to(model.device)
            return
        count = len(self.files)
        files: Iterator[ImageLike] = map(self.files.given, range(count))
        if progress:
            files = counted(files, title, count)
        self.looks.clear()
        self.unreadable.clear()
        for batch in decode_images(
            files,
            model.image_size,
            model.crop_ratio,
            look,
            skip,
            model.backbone.device.type,
        ):
            readable = []
            for image, seen, reason in zip(
                batch.files, batch.looks, batch.unreadable, strict=True
            ):
                row = len(self.looks)
                self.looks.append(seen)
                if seen is not None:
                    self.files.hash_of[row] = seen.hash
                if reason is None:
                    readable.append(row)
                elif reason != LEFT_OUT:
                    file = image
                    if not isinstance(image, Path):
                        file = Path(image_location(image))
                    self.unreadable.append(Unreadable(file, reason))
            z = model.embed(batch.images, batch.location)
            yield np.array(readable, dtype=np.int64), z


def samples_of(
    model: Classifier,
    given: Any,
    option: str,
    tested: bool = False,
) -> LabelledImages:
    """Find what a model learns from: images in class folders, a file of embeddings, or arrays.

    Args:
        model: that is to learn or to be tested.
        given: folder, archive or file; or what
            :func:`~cifnet_pl.data.sources.python_objects.read_samples` takes.
        option, tested: as for :meth:`LabelledImages.find`.

    Raises:
        UsageError: another kind of file than one of embeddings; arrays that do not fit.
        DataError: as :meth:`LabelledImages.find`; embeddings or labels that are missing, or do not
            fit.
    """
    if not isinstance(given, Path | str):
        table = read_samples(given)
    elif model.backbone.takes_images:
        return LabelledImages.find(given, option, tested)
    else:
        table = open_table(Path(given)).samples()
    names, samples = labelled(table)
    width = model.head.in_features
    z = samples.embeddings
    if z is not None and z.shape[1] != width:
        raise DataError(
            f"{samples.where}: embeddings of width {z.shape[1]}, expected the model's {width}"
        )
    return LabelledImages(names, samples)


# ---------------------------------------------------------------------- duplicates


def find_repeats(
    images: LabelledImages,
    learned: Mapping[int, frozenset[str]],
) -> tuple[Repeats, dict[int, str]]:
    """Compare images with each other and with those that a model has learned.

    Args:
        images: those that cannot be read are no duplicates.
        learned: what the model has learned, as :meth:`Classifier.classes_of_hashes` returns it.

    Returns:
        The positions of duplicates, and how messages name the images that are in another class,
        too.
    """
    class_of = [images.class_names[label] for label in images.files.labels]
    every_row = np.arange(len(images.files))
    hashes = images.files.hashes(every_row).tolist()
    repeats = image_duplicates.find_repeats(enumerate(hashes), class_of, learned)
    in_two_classes = {}
    for row, other in sorted(repeats.undecided.items()):
        image = printable(images.files.names[row])
        relation = "also in"
        if other in learned.get(hashes[row], ()):
            relation = "learned as"
        in_two_classes[row] = f"{image} ({relation} {printable(other)})"
    return repeats, in_two_classes


def duplicates_among(
    images: LabelledImages,
    learned: Mapping[int, frozenset[str]],
    treatment: Duplicates,
) -> tuple[np.ndarray, list[str]]:
    """Find images that a model has learned, that occur twice, or that lie in two classes.

    Args:
        images: what a model is to learn from.
        learned: as for :func:`find_repeats`.
        treatment: "leave_out" if they are left out, "keep" if they are only reported.

    Returns:
        (n,) bool, which images are not left out, and sentences for the user. Images in two classes
        are learned as neither, as it is not known which label is wrong; one that was learned in
        another class before stays there.

    Raises:
        DataError: no image is left.
    """
    repeats, in_two_classes = find_repeats(images, learned)
    repeated = sorted([*repeats.learned, *repeats.twice])
    ambiguous = list(in_two_classes.values())
    taken = np.ones(len(images.files), dtype=bool)
    if treatment == "leave_out":
        taken[[*repeated, *in_two_classes]] = False
    if not taken.any():
        reason = "every image is learned already"
        if ambiguous:
            reason += (
                f" or lies in two classes, {listed(ambiguous)}; to correct a learned label, cifnet"
                " forget its class with --images, then extend"
            )
        raise DataError(f"{reason}: there is nothing to learn")
    names = [printable(images.files.names[row]) for row in repeated]
    return taken, image_duplicates.duplicates_notes(names, ambiguous, treatment)
