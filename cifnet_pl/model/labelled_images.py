"""Read images in class folders or elsewhere, embed them, and tell which of them a model has learned
already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, pieces
from cifnet_pl.data.sets import FileSet
from cifnet_pl.data.sources.folders import (
    file_set,
    nesting_message,
    require_classes,
    split_folders,
    strays_message,
)
from cifnet_pl.data.sources.tables import EmbeddingSet, open_table
from cifnet_pl.data.splitting import held_out, held_out_together
from cifnet_pl.images.duplicates import (
    Duplicates,
    Repeats,
    conflicting_labels_message,
    duplicates_message,
)
from cifnet_pl.images.duplicates import find_repeats as compared
from cifnet_pl.images.files import expanded, listing, require_folder, shown_path, sub_folders
from cifnet_pl.images.image import UNREADABLE_HASH, EncodedImage, Look
from cifnet_pl.images.reader import LEFT_OUT, DecodedBatch, decode_images, decoding_batch_size
from cifnet_pl.model.bundle import class_names
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import counted, printable


class Unreadable(NamedTuple):
    """An image that cannot be decoded, and why."""

    file: Path
    reason: str


@dataclass(frozen=True)
class LabelledImages:
    """Images in class folders.

    Attributes:
        class_names: name of each class.
        files: the images, or rows of embeddings; labels are positions in ``class_names``.
        looks: (n,) what is small of each image once it was embedded with it; None where that is not
            known yet.
        notes: sentences for the user about what was read.
    """

    class_names: list[str]
    files: FileSet | EmbeddingSet
    looks: list[Look | None] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @classmethod
    def find(cls, folder: Path | str, option: str, tested: bool = False) -> LabelledImages:
        """Find the images of all class folders in a folder or a Zip archive.

        Args:
            folder: the folder or archive; of one with ``train`` and ``val`` one of these is taken.
            option: of the command line that named it, for messages.
            tested: whether the images are to be named, and not learned, so that ``val`` is taken.

        Raises:
            DataError: no such folder, no class folder in it, one without an image, or a name that
                cannot be stored.
        """
        root = expanded(Path(folder))
        require_folder(
            root, option, "a folder or Zip archive with one sub-folder of images per class"
        )
        with listing():
            parts = split_folders(root)
            notes = []
            if parts is not None:
                root = parts[tested]
                notes.append(
                    f"note: {folder} has {parts[0].name} and {parts[1].name}: taking {root.name}"
                )
            names = [path.name for path in sub_folders(root)]
            require_classes(names, root)
            class_names(names, shown_path(root), DataError)
            strays = strays_message(root)
            return cls(names, file_set(root, names), notes=(*notes, *([strays] if strays else [])))

    def of(self, wanted: set[str]) -> LabelledImages:
        """Select the images of the classes in ``wanted``."""
        return self.select(
            np.isin(self.files.labels, [i for i, n in enumerate(self.class_names) if n in wanted])
        )

    def select(self, kept: np.ndarray) -> LabelledImages:
        """Select the images of a mask (n,), and the classes that still have one."""
        labels = self.files.labels[kept]
        positions = np.unique(labels)
        selected = self.files.subset(np.flatnonzero(kept))
        names = [self.class_names[i] for i in positions]
        selected.labels = np.searchsorted(positions, labels)
        if self.looks:
            looks = [look for look, keep in zip(self.looks, kept, strict=True) if keep]
        else:
            looks = []
        return type(self)(names, selected, looks)

    def held_out(self, rows: np.ndarray, share: float) -> np.ndarray:
        """Choose the images of one class that are scored first; those that look alike are on the
        same side.

        Embeddings are chosen by a hash of their names.

        Args:
            rows: (n,) positions of the class's images.
            share: of them, never all.

        Returns:
            (n,) bool.
        """
        names = [self.files.names[i] for i in rows]
        if isinstance(self.files, EmbeddingSet):
            return held_out(names, share, 0)
        return held_out_together(
            names, [self.looks[i] or Look(UNREADABLE_HASH, None, None) for i in rows], share, 0
        )

    def embedded(
        self,
        model: Classifier,
        title: str,
        unreadable: list[Unreadable],
        progress: bool = False,
        look: Callable[[EncodedImage], Look] = EncodedImage.identify,
        skip: Callable[[int, int], bool] | None = None,
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Embed all images that can be read, in batches, each opened once; or yield the embeddings
        that there are.

        Args:
            model: whose backbone embeds.
            title: what the progress bar says.
            unreadable: images that cannot be decoded are appended.
            progress: whether to draw a bar on a terminal.
            look: what else is wanted of each image, which is then in ``looks``.
            skip: whether the image of a row and hash is left out.

        Yields:
            Rows (m,) of the images and their embeddings (m, d).
        """
        if isinstance(self.files, EmbeddingSet):
            for rows in pieces(np.arange(len(self.files)), EMBEDDED_BATCH):
                yield rows, self.files.get(rows).to(model.device)
            return
        start = 0
        files = [self.files.root / name for name in self.files.names]
        batches = decode_images(files, model.image_size, model.crop_ratio, look, skip)
        self.looks.clear()
        size = decoding_batch_size(model.image_size)
        for batch in counted(batches, title, -(-len(files) // size)) if progress else batches:
            readable = np.array([reason is None for reason in batch.unreadable])
            unreadable += unreadable_of(batch)
            known = [
                (start + i, seen.hash) for i, seen in enumerate(batch.looks) if seen is not None
            ]
            self.files.note_hashes(*np.array(known, dtype=np.int64).reshape(-1, 2).T)
            self.looks.extend(batch.looks)
            yield start + np.flatnonzero(readable), model.embed_batch(batch)
            start += len(batch.files)


def unreadable_of(batch: DecodedBatch) -> list[Unreadable]:
    """List the images of a batch of files that could not be decoded."""
    pairs = zip(batch.files, batch.unreadable, strict=True)
    return [
        Unreadable(cast(Path, file), reason)
        for file, reason in pairs
        if reason not in (None, LEFT_OUT)
    ]


def samples_of(
    model: Classifier, place: Path | str, option: str, tested: bool = False
) -> LabelledImages:
    """Find what a model learns from: images in class folders, or a file of embeddings with labels.

    Args:
        model: that is to learn or to be tested.
        place, option, tested: as for :meth:`LabelledImages.find`.

    Raises:
        UsageError: another kind of file than one of embeddings.
        DataError: as :meth:`LabelledImages.find`; embeddings or labels that are missing, or do not
            fit.
    """
    if model.backbone.takes_images:
        return LabelledImages.find(place, option, tested)
    names, samples = open_table(Path(place)).labelled()
    if samples.features != model.head.in_features:
        width = model.head.in_features
        raise DataError(
            f"{samples.file}: the embeddings have {samples.features} numbers, the model's {width}"
        )
    return LabelledImages(names, samples)


# ---------------------------------------------------------------------- copies


def find_repeats(model: Classifier, images: LabelledImages) -> tuple[Repeats, dict[int, str]]:
    """Compare images with each other and with those that a model has learned.

    Args:
        model: a learned model.
        images: those that cannot be read are never copies.

    Returns:
        The positions of copies, and how messages name those that are in another class, too.
    """
    names = list(dict.fromkeys([*images.class_names, *model.class_names]))
    hashes = images.files.hashes(np.arange(len(images.files)))
    repeats = compared(
        enumerate(hashes.tolist()), images.files.labels, classes_of_hashes(model, names)
    )
    pairs = sorted(repeats.undecided.items())
    return repeats, {
        row: f"{_shown(images, row)} (also in {printable(names[other])})" for row, other in pairs
    }


def classes_of_hashes(model: Classifier, names: Sequence[str]) -> dict[int, set[int]]:
    """Return the classes in which a model has learned each image.

    Args:
        model: a learned model.
        names: of classes; those of others are left out.

    Returns:
        Content hash → positions in ``names``.
    """
    position = {name: i for i, name in enumerate(names)}
    name_of = model.name_of
    known: dict[int, set[int]] = {}
    for label, hashes in model.images.by_label().items():
        if name_of[label] in position:
            for value in hashes.tolist():
                known.setdefault(value, set()).add(position[name_of[label]])
    return known


def duplicates_among(
    model: Classifier, images: LabelledImages, duplicates: Duplicates
) -> tuple[np.ndarray, list[int], list[str]]:
    """Find images that the model has learned, that occur twice, or lie in two classes.

    Args:
        model: what is to learn.
        images: what it is to learn from.
        duplicates: "leave_out" if they are left out, "keep" if they are only named.

    Returns:
        The positions of copies, ascending, and of images in two classes, and sentences for the
        user. An image in two classes is learned as neither, as it is not known which label is
        wrong; one that was learned in another class before stays there.

    Raises:
        DataError: no image is left.
    """
    repeats, undecided = find_repeats(model, images)
    copies = np.sort(np.array([*repeats.learned, *repeats.twice], dtype=np.int64))
    sentences = [
        (
            nesting_message(images.files, images.class_names)
            if isinstance(images.files, FileSet)
            else None
        ),
        conflicting_labels_message(list(undecided.values()), duplicates),
        duplicates_message([_shown(images, row) for row in copies.tolist()], duplicates),
    ]
    if duplicates == "leave_out" and len(copies) + len(undecided) == len(images.files):
        also = " or lies in two classes" if undecided else ""
        raise DataError(f"every image is learned already{also}: there is nothing to learn")
    return copies, list(undecided), [sentence for sentence in sentences if sentence]


def _shown(images: LabelledImages, row: int) -> str:
    return printable(images.files.names[row])
