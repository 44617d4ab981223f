"""Read photos in class folders, embed them by a learned model, and tell which of them it has learned already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, pieces
from cifnet_pl.data.sets import FileSet
from cifnet_pl.data.sources.embeddings import EmbeddingSet, open_table
from cifnet_pl.data.sources.folders import about_nesting, about_strays, file_set, parts_of, require_classes
from cifnet_pl.model.bundle import class_names
from cifnet_pl.model.core import Model
from cifnet_pl.photos.copies import Duplicates, about_copies, about_labels, held_back, held_back_together
from cifnet_pl.photos.copies import find_repeats as compared
from cifnet_pl.photos.files import expanded, listing, place, require_folder, sub_folders
from cifnet_pl.photos.photo import Look, Photo
from cifnet_pl.photos.reading import SKIPPED, PhotoBatch, batch_size, look_at, place_of, squares
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import counted, printable


class Unreadable(NamedTuple):
    """A photo that cannot be decoded, and why."""

    file: Path
    reason: str


@dataclass(frozen=True)
class ClassPhotos:
    """Photos in class folders.

    Attributes:
        class_names: name of each class.
        files: the photos, or rows of embeddings; labels are positions in ``class_names``.
        looks: (n,) what is small of each photo once it was embedded with it; None where that is not known yet.
        notes: sentences for the user about what was read.
    """

    class_names: list[str]
    files: FileSet | EmbeddingSet
    looks: list[Look | None] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @classmethod
    def find(cls, folder: Path | str, option: str, tested: bool = False) -> ClassPhotos:
        """Find the photos of all class folders in a folder or a Zip archive.

        Args:
            folder: the folder or archive; of one with ``train`` and ``val`` one of these is taken.
            option: of the command line that named it, for messages.
            tested: whether the photos are to be named, and not learned, so that ``val`` is taken.

        Raises:
            DataError: no such folder, no class folder in it, one without a photo, or a name that cannot be stored.
        """
        root = expanded(Path(folder))
        require_folder(root, option, "a folder or Zip archive with one sub-folder of photos per class")
        with listing():
            parts = parts_of(root)
            notes = []
            if parts is not None:
                root = parts[tested]
                notes.append(f"note: {folder} has {parts[0].name} and {parts[1].name}: taking {root.name}")
            names = [path.name for path in sub_folders(root)]
            require_classes(names, root)
            class_names(names, place(root), DataError)
            strays = about_strays(root)
            return cls(names, file_set(root, names), notes=(*notes, *([strays] if strays else [])))

    def of(self, wanted: set[str]) -> ClassPhotos:
        """Select the photos of the classes in ``wanted``."""
        return self.select(np.isin(self.files.labels, [i for i, n in enumerate(self.class_names) if n in wanted]))

    def select(self, kept: np.ndarray) -> ClassPhotos:
        """Select the photos of a mask (n,), and the classes that still have one."""
        labels = self.files.labels[kept]
        positions = np.unique(labels)
        selected = self.files.subset(np.flatnonzero(kept))
        names = [self.class_names[i] for i in positions]
        selected.labels = np.searchsorted(positions, labels)
        looks = [look for look, keep in zip(self.looks, kept, strict=True) if keep] if self.looks else []
        return type(self)(names, selected, looks)

    def held_back(self, rows: np.ndarray, share: float) -> np.ndarray:
        """Choose the photos of one class that are scored first; those that look alike are on the same side.

        Args:
            rows: (n,) positions of the class's photos.
            share: of them, never all.

        Returns:
            (n,) bool.
        """
        names = [self.files.names[i] for i in rows]
        known = [self.looks[i] if self.looks else None for i in rows]
        looks = [look or look_at(self.files.root / name) for name, look in zip(names, known, strict=True)]
        return held_back_together(names, looks, share, 0)

    def embedded(
        self,
        model: Model,
        title: str,
        unreadable: list[Unreadable],
        progress: bool = False,
        look: Callable[[Photo], Look] = Photo.identify,
        skip: Callable[[int, int], bool] | None = None,
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Embed all photos that can be read, in batches; each is opened once.

        Args:
            model: whose backbone embeds.
            title: what the progress bar says.
            unreadable: photos that cannot be decoded are appended.
            progress: whether to draw a bar on a terminal.
            look: what else is wanted of each photo, which is then in ``looks``.
            skip: whether the photo of a row and hash is left out.

        Yields:
            Rows (m,) of the photos and their embeddings (m, d).
        """
        start = 0
        files = [self.files.root / name for name in self.files.names]
        batches = squares(files, model.image_size, model.crop_ratio, look, skip)
        self.looks.clear()
        size = batch_size(model.image_size)
        for batch in counted(batches, title, -(-len(files) // size)) if progress else batches:
            readable = np.array([reason is None for reason in batch.unreadable])
            unreadable += unreadable_of(batch)
            known = [(start + i, seen.hash) for i, seen in enumerate(batch.seen) if seen is not None]
            self.files.note_hashes(*np.array(known, dtype=np.int64).reshape(-1, 2).T)
            self.looks.extend(batch.seen)
            yield start + np.flatnonzero(readable), embed_batch(model, batch)
            start += len(batch.files)


def embed_batch(model: Model, batch: PhotoBatch) -> Tensor:
    """Embed the photos of a batch that could be read.

    Args:
        model: whose backbone embeds.
        batch: decoded photos.

    Returns:
        (m, d) float32.

    Raises:
        NonFiniteError: an embedding holds NaN or Inf; names the photo.
    """
    files = [file for file, reason in zip(batch.files, batch.unreadable, strict=True) if reason is None]
    return model.embed(batch.image, lambda row: place_of(files[row]))


def unreadable_of(batch: PhotoBatch) -> list[Unreadable]:
    """List the photos of a batch of files that could not be decoded."""
    pairs = zip(batch.files, batch.unreadable, strict=True)
    return [Unreadable(cast(Path, file), reason) for file, reason in pairs if reason not in (None, SKIPPED)]


@dataclass(frozen=True)
class ClassEmbeddings(ClassPhotos):
    """:class:`ClassPhotos` of which ``files`` are embeddings."""

    @classmethod
    def find(cls, folder: Path | str, option: str, tested: bool = False) -> ClassEmbeddings:
        """Open the file that ``option`` named: embeddings with labels.

        Raises:
            UsageError: another kind of file.
            DataError: the file is missing or damaged; columns that are missing or do not fit.
        """
        return cls(*open_table(Path(folder)).labelled())

    def held_back(self, rows: np.ndarray, share: float) -> np.ndarray:
        """Choose the samples of one class that are scored first, by a hash of their names.

        Args:
            rows: (n,) positions of the class's samples.
            share: of them.

        Returns:
            (n,) bool.
        """
        return held_back([self.files.names[i] for i in rows], share, 0)

    def embedded(
        self,
        model: Model,
        title: str,
        unreadable: list[Unreadable],
        progress: bool = False,
        look: Callable[[Photo], Look] = Photo.identify,
        skip: Callable[[int, int], bool] | None = None,
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the embeddings in pieces, as :meth:`ClassPhotos.embedded` does.

        Args:
            model: whose device they go to.
            title, unreadable, progress, look, skip: not used, as every embedding can be read, and at once.

        Yields:
            (m,) rows, and their (m, d) embeddings.

        Raises:
            DataError: embeddings of another width than the model's.
        """
        samples = cast(EmbeddingSet, self.files)
        if samples.features != model.head.in_features:
            raise DataError(
                f"{samples.file}: the embeddings have {samples.features} numbers, the model's {model.head.in_features}"
            )
        for rows in pieces(np.arange(len(samples)), EMBEDDED_BATCH):
            yield rows, samples.get(rows).to(model.device)


def samples_of(model: Model) -> type[ClassPhotos]:
    """Return what a model learns from: photos in class folders, or a file of embeddings."""
    return ClassPhotos if model.backbone.takes_images else ClassEmbeddings


# ---------------------------------------------------------------------- copies


class Repeats(NamedTuple):
    """Photos whose content occurs elsewhere.

    Attributes:
        learned: (n,) bool: those that a model has learned in the same class.
        twice: (n,) bool: those that are copies of an earlier one of their class, which was not learned.
        undecided: those that are in another class, too → how messages name them.
    """

    learned: np.ndarray
    twice: np.ndarray
    undecided: dict[int, str]


def find_repeats(model: Model, photos: ClassPhotos) -> Repeats:
    """Compare photos with each other and with those that a model has learned.

    Args:
        model: a learned model.
        photos: those that cannot be read are never copies.
    """
    names = list(dict.fromkeys([*photos.class_names, *model.class_names]))
    hashes = photos.files.hashes(np.arange(len(photos.files)))
    repeats = compared(enumerate(hashes.tolist()), photos.files.labels, classes_of_hashes(model, names))
    learned, twice = np.zeros((2, len(hashes)), dtype=bool)
    learned[repeats.learned], twice[list(repeats.twice)] = True, True
    pairs = sorted(repeats.undecided.items())
    undecided = {row: f"{_shown(photos, row)} (also in {printable(names[other])})" for row, other in pairs}
    return Repeats(learned, twice, undecided)


def classes_of_hashes(model: Model, names: Sequence[str]) -> dict[int, set[int]]:
    """Return the classes in which a model has learned each photo.

    Args:
        model: a learned model.
        names: of classes; those of others are left out.

    Returns:
        Content hash → positions in ``names``.
    """
    position, name_of = {name: i for i, name in enumerate(names)}, model.name_of
    known: dict[int, set[int]] = {}
    for label, hashes in model.photos.by_label().items():
        if name_of[label] in position:
            for value in hashes.tolist():
                known.setdefault(value, set()).add(position[name_of[label]])
    return known


def copies_among(model: Model, photos: ClassPhotos, duplicates: Duplicates) -> tuple[Repeats, list[str]]:
    """Find photos that the model has learned, that occur twice, or lie in two classes.

    Args:
        model: what is to learn.
        photos: what it is to learn from.
        duplicates: "leave_out" if they are left out, "keep" if they are only named.

    Returns:
        The photos, and sentences for the user. A photo in two classes is learned as neither, as it is not known which
        label is wrong; one that was learned in another class before stays there.

    Raises:
        DataError: no photo is left.
    """
    repeats = find_repeats(model, photos)
    copy = repeats.learned | repeats.twice
    sentences = [
        about_nesting(photos.files, photos.class_names) if isinstance(photos.files, FileSet) else None,
        about_labels(list(repeats.undecided.values()), duplicates),
        about_copies([_shown(photos, int(i)) for i in np.flatnonzero(copy)], duplicates),
    ]
    if duplicates == "leave_out" and copy.sum() + len(repeats.undecided) == len(copy):
        also = " or lies in two classes" if repeats.undecided else ""
        raise DataError(f"every photo is learned already{also}: there is nothing to learn")
    return repeats, [sentence for sentence in sentences if sentence]


def _shown(photos: ClassPhotos, row: int) -> str:
    return printable(photos.files.names[row])
