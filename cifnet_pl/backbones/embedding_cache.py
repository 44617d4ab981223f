"""Cache embeddings, on disk between runs and in memory during a run.

No image passes the backbone twice. On disk there is one safetensors file per class and image set,
below a folder for everything that an embedding depends on apart from the image: what the network
computes, its preprocessing, image size, crop, precision and decoder. A file is used only if the
images are those that it was made from: the same names and, for every file, the same size, inode and
change times. Where those differ, as in a copied folder, the content hashes must be the same. So a
stale file is never used.

A damaged file is reported in the log and written again. A cache that cannot be written to only
stops caching.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol
from zipfile import BadZipFile

import numpy as np
import PIL
import simplejpeg
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.backbones.engines import ENGINE_TOLERANCE
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import write_atomic

log = logging.getLogger(__name__)

DECODERS = ("Pillow", PIL.__version__, "simplejpeg", simplejpeg.__version__)
"""Packages that decode images: other versions round otherwise, so a cache keeps them apart."""

OUTPUTS_FILE = "outputs.npy"
"""File of a pipeline's folder with the embeddings of fixed images."""


def pipeline_folder(
    cache: Path,
    outputs: Tensor,
    weights: str,
    image_size: int,
    crop_ratio: float,
    precision: str,
    engine: str,
) -> Path:
    """Find or make the folder for the embeddings of a network from images prepared in one way.

    The hash of the weights does not identify a network: two custom backbones may have the same
    weights, and code is edited. So a folder holds the outputs of its network on fixed images. A
    network with other outputs gets another folder.

    Args:
        cache: folder of all embeddings.
        outputs: (m, d) embeddings of fixed images by the network.
        weights: hash of its weights and preprocessing.
        image_size: side in pixels.
        crop_ratio: share of the short side that is kept.
        precision: one of Lightning's names.
        engine: "torch" or "onnxruntime".

    Raises:
        CifnetError: it cannot be made: the disk is full or not writable.
    """
    expected = outputs.float().cpu().numpy()
    parts = (*DECODERS, weights, image_size, crop_ratio, precision, engine)
    digest = hashlib.sha256(repr(parts).encode())
    key = digest.hexdigest()[:32]
    for number in count():
        if number:
            name = f"{key}-{number}"
        else:
            name = key
        folder = cache / name
        stored = _stored_outputs(folder / OUTPUTS_FILE)
        if stored is None:
            write_atomic(folder / OUTPUTS_FILE, lambda file: np.save(file, expected))
            break
        if _agree(stored, expected):
            break
    return folder


def _stored_outputs(path: Path) -> np.ndarray | None:
    """Return the outputs in a file; None if it is not written yet, damaged, or of another kind."""
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        # Mapped: the file says how large the array is.
        stored = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, BadZipFile):
        return None
    if isinstance(stored, np.ndarray) and stored.dtype == np.float32:
        return stored
    return None


def _agree(stored: np.ndarray, outputs: np.ndarray) -> bool:
    """Return whether outputs are those of the same network up to rounding."""
    if stored.shape != outputs.shape:
        return False
    differences = np.abs(stored - outputs)
    difference = differences.max()
    largest = np.abs(stored).max()
    limit = ENGINE_TOLERANCE * largest
    return bool(difference <= limit)


class Images(Protocol):
    """An image set as the cache uses it, such as :class:`cifnet_pl.data.samples.SampleTable`."""

    labels: np.ndarray
    names: Sequence[str]

    @property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Label → positions of its images."""

    def change_stamp(self, index: int) -> tuple[int, ...] | int:
        """Return a cheap fingerprint (size, inode, times) that detects changes."""

    def hashes(self, rows: np.ndarray) -> np.ndarray:
        """Return content hashes."""

    def note_hashes(self, rows: np.ndarray, hashes: np.ndarray) -> None:
        """Take over content hashes that are known."""


class CachedEmbedding(NamedTuple):
    """The embedding of one image, before its class is complete.

    Attributes:
        hash: content hash of the image.
        z: (d,) float32.
    """

    hash: int
    z: Tensor


class EmbeddingCache:
    """The embeddings of one image set on disk, class by class.

    Args:
        images: the set; it learns the content hashes that are stored beside the embeddings.
        class_names: name of each label of the set.
        folder: where the files of this set and pipeline are.

    Attributes:
        duplicates: image → its exact duplicates, which are not embedded: they get its embedding.
    """

    def __init__(self, images: Images, class_names: list[str], folder: Path):
        self.images = images
        self.class_names = class_names
        self.folder = folder
        self.duplicates: dict[int, list[int]] = {}
        self._writable = True
        self._stored: dict[int, Tensor | None] = {}
        self._collected: dict[int, dict[int, CachedEmbedding]] = {}
        self._stamps_before: dict[int, str] = {}  # of classes that are being embedded
        n_images = len(images.labels)
        self._place_in_class = np.full(n_images, -1, dtype=np.int64)
        for rows in images.rows_of.values():
            self._place_in_class[rows] = np.arange(len(rows))

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return which images have a stored embedding.

        Args:
            rows: (n,) positions of the images.

        Returns:
            (n,) bool.
        """
        labels = self.images.labels[rows]
        known = np.zeros(len(rows), dtype=bool)
        for label in np.unique(labels).tolist():
            if self._load(label) is not None:
                known[labels == label] = True
            elif label not in self._stamps_before:
                self._stamps_before[label] = self._stamps(label)
        return known

    def get(self, rows: np.ndarray) -> Tensor:
        """Return embeddings that are known; files are memory-mapped.

        Args:
            rows: (n,) positions of the images.

        Returns:
            (n, d) float32.
        """
        labels = self.images.labels[rows]
        parts = []
        positions = []
        for label in dict.fromkeys(labels.tolist()):
            stored = self._load(label)
            assert stored is not None
            of_class = np.flatnonzero(labels == label)
            places = self._place_in_class[rows[of_class]]
            rows_of_class = torch.from_numpy(places)
            parts.append(stored[rows_of_class])
            positions.append(of_class)
        all_positions = np.concatenate(positions)
        order = np.argsort(all_positions)
        in_order = torch.from_numpy(order)
        return torch.cat(parts)[in_order]

    def _load(self, label: int) -> Tensor | None:
        if label not in self._stored:
            self._stored[label] = self._read(label)
        return self._stored[label]

    def _read(self, label: int) -> Tensor | None:
        """Read the embeddings of a class.

        Returns:
            None where there are none of exactly its images, and, with a warning in the log, where
            the file is damaged.
        """
        path = self._path(label)
        rows = self.images.rows_of[label]
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                z: Tensor = file.get_tensor("z")
                hashes: Tensor = file.get_tensor("hashes")
        except (SafetensorError, OSError, MemoryError) as error:
            log.warning("rebuilding damaged cache file %s (%s)", path, error)
            return None
        if not _fits(z, hashes, len(rows)):
            log.warning("rebuilding cache file %s (it holds something else)", path)
            return None
        if metadata.get("sha256") != _digest(z, hashes):
            log.warning(
                "rebuilding damaged cache file %s (its checksum is wrong)", path
            )
            return None
        if metadata.get("stamps") == self._stamps(label):
            self.images.note_hashes(rows, hashes.numpy())
        elif not np.array_equal(hashes.numpy(), self.images.hashes(rows)):
            return None
        return z

    def collect(self, rows: Tensor, hashes: Tensor, z: Tensor) -> None:
        """Add embeddings; write a class as soon as it is complete.

        Args:
            rows: (n,) positions of the images.
            hashes: (n,) their content hashes.
            z: (n, d) their embeddings.
        """
        embeddings = z.float().cpu()
        for row, content_hash, embedding in zip(
            rows.tolist(), hashes.tolist(), embeddings, strict=True
        ):
            label = int(self.images.labels[row])
            of_class = self._collected.setdefault(label, {})
            duplicates = self.duplicates.get(row, ())
            for same in (row, *duplicates):
                of_class[same] = CachedEmbedding(content_hash, embedding)
        collected_rows = rows.cpu().numpy()
        labels = np.unique(self.images.labels[collected_rows])
        for label in labels.tolist():
            if len(self._collected[label]) == len(self.images.rows_of[label]):
                self._write(label)

    def take_incomplete(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Remove and return the embeddings of incomplete classes.

        Returns:
            For each class the arguments of :meth:`collect`. Together with those of the other
            processes they are complete.
        """
        parts = []
        for of_class in self._collected.values():
            if of_class:
                rows = torch.tensor(list(of_class))
                embeddings = list(of_class.values())
                hashes, z = _stacked(embeddings)
                parts.append((rows, hashes, z))
        self._collected = {}
        return parts

    def _write(self, label: int) -> None:
        of_class = self._collected.pop(label)
        stamps = self._stamps(label)
        before = self._stamps_before.pop(label, stamps)
        if before != stamps:
            log.warning(
                "not caching class '%s': its images changed while they were read",
                self.class_names[label],
            )
            return
        rows = self.images.rows_of[label]
        in_order = [of_class[row] for row in rows.tolist()]
        hashes, z = _stacked(in_order)
        metadata = {"stamps": stamps, "sha256": _digest(z, hashes)}
        tensors = {"z": z, "hashes": hashes}
        content = save(tensors, metadata=metadata)
        if self._writable:
            self._store(self._path(label), content)
        self._stored.pop(label, None)

    def _store(self, path: Path, content: bytes) -> None:
        """Write a file; warn once if that is impossible, as in a shared cache of someone else."""
        try:
            write_atomic(path, lambda file: file.write(content))
        except CifnetError as error:
            self._writable = False
            log.warning("no more embeddings are cached: %s", error)

    def _path(self, label: int) -> Path:
        """Return the file of a class: a hash of the class name and the names of its images."""
        class_name = _encoded(self.class_names[label])
        digest = hashlib.sha256(class_name)
        for row in self.images.rows_of[label]:
            name = _encoded(self.images.names[row])
            digest.update(b"\0" + name)
        file_name = f"{digest.hexdigest()[:32]}.safetensors"
        return self.folder / file_name

    def _stamps(self, label: int) -> str:
        """Hash the files' sizes, inodes and change times; the contents where there are no files."""
        rows = self.images.rows_of[label]
        stamps = [self.images.change_stamp(row) for row in rows.tolist()]
        content = repr(stamps).encode()
        return hashlib.sha256(content).hexdigest()


def _encoded(name: str) -> bytes:
    """Encode a name, which may hold bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def _stacked(embeddings: list[CachedEmbedding]) -> tuple[Tensor, Tensor]:
    """Return the content hashes (n,) int64 and embeddings (n, d)."""
    values = [embedding.hash for embedding in embeddings]
    hashes = torch.tensor(values, dtype=torch.int64)
    z = torch.stack([embedding.z for embedding in embeddings])
    return hashes, z


def _fits(z: Tensor, hashes: Tensor, count: int) -> bool:
    """Return whether stored tensors are finite embeddings and hashes of ``count`` images."""
    shapes = z.ndim == 2 and len(z) == count and hashes.shape == (count,)
    dtypes = z.dtype == torch.float32 and hashes.dtype == torch.int64
    return shapes and dtypes and bool(z.isfinite().all())


def _digest(z: Tensor, hashes: Tensor) -> str:
    values = z.contiguous().numpy()
    digest = hashlib.sha256(values.data)
    digest.update(hashes.contiguous().numpy().data)
    return digest.hexdigest()


class EvaluationMemory:
    """Embeddings of evaluation images, each computed once per run, up to a number of bytes.

    Args:
        limit_mb: memory bound in megabytes (10⁶ bytes). Images beyond it are embedded again at
            every task.
    """

    def __init__(self, limit_mb: float = 1024.0):
        self._embeddings: dict[int, Tensor] = {}
        self._limit = int(limit_mb * 1e6)

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) bool: which rows are in memory."""
        is_known = [row in self._embeddings for row in rows.tolist()]
        return np.array(is_known, dtype=bool)

    def add(self, rows: Tensor, z: Tensor) -> None:
        """Add embeddings (n, d) of images ``rows`` (n,) as far as the bound allows."""
        rows = rows.cpu()
        bytes_each = 4 * z.shape[1]
        places = self._limit // bytes_each
        free = places - len(self._embeddings)
        unknown = np.flatnonzero(~self.known(rows.numpy()))
        fresh = unknown[:free]
        new_z = z[torch.from_numpy(fresh).to(z.device)]
        embeddings = new_z.float().cpu()
        new_rows = rows[fresh].tolist()
        self._embeddings.update(zip(new_rows, embeddings, strict=True))

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of rows that are known."""
        embeddings = [self._embeddings[row] for row in rows.tolist()]
        return torch.stack(embeddings)
