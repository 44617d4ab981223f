"""Cache embeddings, on disk between runs, or in memory during a run.

No image passes the backbone twice. On disk there is one safetensors file per class and image set,
below a folder for everything that an embedding depends on apart from the image: what the network
computes, its preprocessing, image size, crop, precision and decoder. A file is used only if the
images are those that it was made from: the same names and, for every file, the same size, inode and
change times. Where those differ, as in a copied folder, the content hashes must be the same. So a
stale file is never used.

A damaged file is reported in the log and written again. A cache that cannot be written to only
stops caching.
"""

import hashlib
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import PIL
import simplejpeg
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.backbones.backbone import Backbone
from cifnet_pl.backbones.engines import ENGINE_TOLERANCE, natural_images
from cifnet_pl.data.samples import SampleTable
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import write_atomic, write_bytes

log = logging.getLogger(__name__)

DECODERS = ("Pillow", PIL.__version__, "simplejpeg", simplejpeg.__version__)
"""Packages that decode images: other versions round otherwise, so a cache keeps them apart."""

OUTPUTS_FILE = "outputs.npy"
"""File of a pipeline's folder with the embeddings of fixed images."""


def pipeline_folder(
    cache: Path,
    backbone: Backbone,
    image_size: int,
    crop_ratio: float,
    precision: str,
    device: str,
) -> Path:
    """Find or make the folder for the embeddings of a network from images prepared in one way.

    The hash of the weights does not identify a network: two custom backbones may have the same
    weights, and code is edited. So a folder holds the outputs of its network on fixed images. A
    network with other outputs gets another folder.

    Args:
        cache: folder of all embeddings.
        backbone: the network.
        image_size: side in pixels.
        crop_ratio: share of the short side that is kept.
        precision: one of Lightning's names.
        device: type of the device that embeds.

    Raises:
        CifnetError: it cannot be made: the disk is full or not writable.
    """
    engine = backbone.engine(device, precision)
    images = natural_images(image_size).to(backbone.device)
    outputs = backbone.embed(images).cpu().numpy()
    parts = (*DECODERS, backbone.sha256, image_size, crop_ratio, precision, engine)
    key = _hash(repr(parts))[:32]
    folder = cache / key
    for number in count(1):
        path = folder / OUTPUTS_FILE
        try:
            stored = np.load(path)
        except (OSError, ValueError, EOFError):  # not written yet, or damaged
            write_atomic(path, lambda file: np.save(file, outputs))
            break
        limit = ENGINE_TOLERANCE * np.abs(stored).max()
        if stored.shape == outputs.shape and np.abs(stored - outputs).max() <= limit:
            break
        folder = cache / f"{key}-{number}"
    return folder


class EmbeddingCache:
    """The embeddings of one image set on disk, class by class.

    Args:
        samples: the set; it learns the content hashes of what is embedded or stored.
        class_names: name of each label of the set.
        folder: where the files of this set and pipeline are; None to keep embeddings in memory.

    Attributes:
        left_out: (n,) bool, images that need no embedding: a class is complete without them.
    """

    def __init__(
        self,
        samples: SampleTable,
        class_names: list[str],
        folder: Path | None,
    ):
        self.samples = samples
        self.class_names = class_names
        self.folder = folder
        self.left_out = np.zeros(len(samples), dtype=bool)
        self._writable = True
        self._classes: dict[int, Tensor | None] = {}
        self._embedded = np.zeros(len(samples), dtype=bool)  # in ``_classes``
        self._unwritten: set[int] = set()  # classes with embeddings that no file has
        # Of classes that are not written, when they were first asked for.
        self._stamps_before: dict[int, str] = {}

    def _by_class(
        self,
        rows: np.ndarray,
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, Tensor | None]]:
        """Yield each class in ``rows``; its file is read when it is first asked for.

        Yields:
            The label, where the class is in ``rows``, its images' places in the class, and the
            embeddings (n, d) of the class, as far as there are any.
        """
        labels = self.samples.labels[rows]
        for label in np.unique(labels).tolist():
            if self.folder is not None and label not in self._classes:
                self._classes[label] = self._stored(self.folder, label)
            own = np.flatnonzero(labels == label)
            places = np.searchsorted(self.samples.rows_of[label], rows[own])
            yield label, own, places, self._classes.get(label)

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return which images have a stored embedding.

        Args:
            rows: (n,) positions of the images.

        Returns:
            (n,) bool.
        """
        for _ in self._by_class(rows):
            pass  # what is stored is read
        known: np.ndarray = self._embedded[rows]
        return known

    def get(self, rows: np.ndarray) -> Tensor:
        """Return embeddings that are known; files are memory-mapped.

        Args:
            rows: (n,) positions of the images, at least one.

        Returns:
            (n, d) float32.
        """
        parts = []
        order = []
        for _, own, places, z in self._by_class(rows):
            assert z is not None
            parts.append(z[places])
            order.append(own)
        place_in_parts = np.argsort(np.concatenate(order))
        return torch.cat(parts)[place_in_parts]

    def _stored(self, folder: Path, label: int) -> Tensor | None:
        """Read the embeddings (n, d) of a class from the disk.

        Returns:
            None where there are none of exactly its images, and, with a warning in the log, where
            the file is damaged.
        """
        path = self._path(folder, label)
        rows = self.samples.rows_of[label]
        # The files' sizes, inodes and change times; the contents where there are no files.
        stamps = _hash(repr([self.samples.change_stamp(row) for row in rows.tolist()]))
        self._stamps_before.setdefault(label, stamps)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                z: Tensor = file.get_tensor("z")
                hashes = file.get_tensor("hashes")
        except (SafetensorError, OSError, MemoryError) as error:
            log.warning("rebuilding damaged cache file %s (%s)", path, error)
            return None
        if metadata.get("sha256") != _digest(z, hashes):
            log.warning("rebuilding damaged cache file %s (wrong checksum)", path)
            return None
        if metadata.get("stamps") == stamps:
            self.samples.hash_of[rows] = hashes.numpy()
        else:
            self.samples.hash_of[rows] = -1  # perhaps of files that were replaced
            if not np.array_equal(hashes.numpy(), self.samples.hashes(rows)):
                return None
        self._embedded[rows] = ~z[:, 0].isnan().numpy()
        return z

    def collect(self, rows: Tensor, hashes: Tensor, z: Tensor) -> None:
        """Add embeddings; write a class as soon as it is complete.

        Args:
            rows: (n,) positions of the images.
            hashes: (n,) their content hashes.
            z: (n, d) their embeddings.
        """
        embeddings = z.float().cpu()
        embedded = rows.numpy()
        self.samples.hash_of[embedded] = hashes.cpu().numpy()
        for label, own, places, of_class in self._by_class(embedded):
            if of_class is None:
                # What is left out stays NaN.
                count_of_class = len(self.samples.rows_of[label])
                of_class = torch.full((count_of_class, embeddings.shape[1]), np.nan)
                self._classes[label] = of_class
            if self._embedded[embedded[own]].all():
                continue
            of_class[places] = embeddings[own]
            self._embedded[embedded[own]] = True
            self._unwritten.add(label)
            self._write_if_complete(label)

    def leave_out(self, rows: np.ndarray) -> None:
        """Leave out images that are unreadable; write the classes that are complete without them.

        Args:
            rows: (n,) positions of the images.
        """
        self.left_out[rows] = True
        for label in np.unique(self.samples.labels[rows]).tolist():
            self._write_if_complete(label)

    def _is_complete(self, label: int) -> bool:
        rows = self.samples.rows_of[label]
        return bool((self._embedded[rows] | self.left_out[rows]).all())

    def take_incomplete(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Remove and return the embeddings of incomplete classes.

        Returns:
            For each class the arguments of :meth:`collect`. Together with those of the other
            processes they are complete.
        """
        parts = []
        for label, z in list(self._classes.items()):
            if z is None or self._is_complete(label):
                continue
            rows_of_class = self.samples.rows_of[label]
            embedded = self._embedded[rows_of_class]
            rows = rows_of_class[embedded]
            hashes = self.samples.hash_of[rows]
            parts.append(
                (torch.from_numpy(rows), torch.from_numpy(hashes), z[embedded])
            )
            # Whoever completes the class writes it, and it is read when it is needed.
            del self._classes[label]
            self._embedded[rows] = False
            self._unwritten.discard(label)
        return parts

    def _write_if_complete(self, label: int) -> None:
        """Write a class and free its memory; the file is mapped when it is needed.

        Where that is impossible, as in a shared cache of someone else, it stays in memory, with one
        warning.
        """
        z = self._classes.get(label)
        if self.folder is None or z is None or label not in self._unwritten:
            return
        if not self._writable or not self._is_complete(label):
            return
        rows = self.samples.rows_of[label]
        # Those of unreadable images may not be known yet.
        hashes = torch.from_numpy(self.samples.hashes(rows))
        # Where images changed while they were read, these are no longer their stamps, and nobody
        # uses the file.
        metadata = {
            "stamps": self._stamps_before[label],
            "sha256": _digest(z, hashes),
        }
        content = save({"z": z, "hashes": hashes}, metadata=metadata)
        try:
            write_bytes(self._path(self.folder, label), content)
        except CifnetError as error:
            self._writable = False
            log.warning("no more embeddings are cached: %s", error)
            return
        del self._classes[label]
        del self._stamps_before[label]
        self._unwritten.remove(label)
        self._embedded[rows] = False

    def _path(self, folder: Path, label: int) -> Path:
        """Return the file of a class: a hash of the class name and the names of its images."""
        names = self.samples.names_of(self.samples.rows_of[label])
        key = _hash("\0".join([self.class_names[label], *names]))[:32]
        return folder / f"{key}.safetensors"


def _hash(text: str) -> str:
    content = text.encode("utf-8", "surrogateescape")  # names may hold other bytes
    return hashlib.sha256(content).hexdigest()


def _digest(z: Tensor, hashes: Tensor) -> str:
    digest = hashlib.sha256(z.contiguous().numpy().data)
    digest.update(hashes.contiguous().numpy().data)
    return digest.hexdigest()
