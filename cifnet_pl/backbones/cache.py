"""Keep embeddings, in memory during a run and on disk between runs, so that no image passes the
backbone again.

On disk: one safetensors file per class and set, below a folder for everything that an embedding
depends on apart from the image: what the network computes, its preprocessing, image size, crop,
precision and decoder. A file is a hit only if the images are those that it was made from: the same
names with, for every file, the same size, inode and change times — or, where those differ (a copied
folder), the same content hashes. So a stale hit is impossible.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.utilities.files import write_atomic

log = logging.getLogger(__name__)


TOLERANCE = 1e-4
"""Largest difference of the outputs of one network, as a share of the largest of them: threads and
processors round.
"""


def pipeline_folder(
    cache: Path,
    outputs: Tensor,
    weights: str,
    image_size: int,
    crop_ratio: float,
    precision: str,
    engine: str,
) -> Path:
    """Return the folder for the embeddings that a network computes from images prepared in one way.

    Weights do not tell what is done with them: two classes of a user may have the same ones, and
        code is edited. So a
    folder keeps outputs of its network on fixed images, and a network that gives others has another
    folder.

    Args:
        cache: of all embeddings.
        outputs: (m, d) embeddings of fixed images by the network.
        weights: hash of its weights and preprocessing.
        image_size: side in pixels.
        crop_ratio: share of the short side that is cropped.
        precision: one of Lightning's names.
        engine: "torch" or "onnxruntime".
    """
    given = outputs.float().cpu().numpy()
    parts = (PIL.__version__, weights, image_size, crop_ratio, precision, engine)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    for number in count():
        folder = cache / (f"{key}-{number}" if number else key)
        try:
            stored = np.load(folder / OUTPUTS)
        except (OSError, ValueError, EOFError):  # not there yet, or damaged
            write_atomic(folder / OUTPUTS, lambda file: np.save(file, given))
            break
        if (
            stored.shape == given.shape
            and np.abs(stored - given).max() <= TOLERANCE * np.abs(stored).max()
        ):
            break
    return folder


OUTPUTS = "outputs.npy"
"""File with what the network of a folder makes of fixed images."""


class Images(Protocol):
    """What is asked of a set of images, such as :class:`cifnet_pl.data.sets.SampleSet`."""

    labels: np.ndarray
    names: Sequence[str]

    @property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Label → positions of its images."""

    def mark(self, index: int) -> tuple[int, ...] | int:
        """Return what changes with the image, without reading it where that is possible."""

    def hashes(self, rows: np.ndarray) -> np.ndarray:
        """Return content hashes."""

    def note_hashes(self, rows: np.ndarray, hashes: np.ndarray) -> None:
        """Take over content hashes that are known."""


class EmbeddingCache:
    """The embeddings of one image set on disk, class by class.

    Args:
        images: the set; it learns the content hashes that are stored beside the embeddings.
        class_names: name of each label of the set.
        folder: where the files of this set and pipeline are.

    Attributes:
        copies: image → its exact copies, which are not embedded: they get its embedding.
    """

    def __init__(self, images: Images, class_names: list[str], folder: Path):
        self.images = images
        self.class_names = class_names
        self.folder = folder
        self.copies: dict[int, list[int]] = {}
        self._found: dict[int, Tensor | None] = {}
        self._place = np.full(len(images.labels), -1, dtype=np.int64)
        for rows in images.rows_of.values():
            self._place[rows] = np.arange(len(rows))
        self._collected: dict[int, dict[int, tuple[int, Tensor]]] = {}
        self._before: dict[int, str] = {}  # marks of the files before any of a class was decoded

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return which of the images ``rows`` (n,) have a stored embedding: (n,) bool."""
        labels = self.images.labels[rows]
        hit = {int(c): self._load(int(c)) is not None for c in np.unique(labels)}
        for label in (
            label for label, there in hit.items() if not there and label not in self._before
        ):
            self._before[label] = self._marks(label)
        return np.array([hit[int(c)] for c in labels], dtype=bool)

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of images ``rows`` (n,) that are known; files are
        memory-mapped.
        """
        labels = self.images.labels[rows]
        parts = []
        order = []
        for c in dict.fromkeys(labels.tolist()):
            stored = self._load(c)
            mine = np.flatnonzero(labels == c)
            assert stored is not None
            parts.append(stored[torch.from_numpy(self._place[rows[mine]])])
            order.append(mine)
        return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate(order)))]

    def _load(self, label: int) -> Tensor | None:
        if label not in self._found:
            self._found[label] = self._read(label)
        return self._found[label]

    def _read(self, label: int) -> Tensor | None:
        path = self._path(label)
        rows = self.images.rows_of[label]
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                z: Tensor = file.get_tensor("z")
                hashes: Tensor = file.get_tensor("hashes")
        except (SafetensorError, OSError) as error:
            log.warning("rebuilding damaged cache file %s (%s)", path, error)
            return None
        if (
            z.ndim != 2
            or not len(z) == len(hashes) == len(rows)
            or about.get("sha256") != _digest(z, hashes)
        ):
            log.warning("rebuilding damaged cache file %s (its checksum is wrong)", path)
            return None
        if about.get("marks") == self._marks(label):
            self.images.note_hashes(rows, hashes.numpy())
        elif not np.array_equal(hashes.numpy(), self.images.hashes(rows)):
            return None
        return z

    def collect(self, rows: Tensor, hashes: Tensor, z: Tensor) -> None:
        """Take in embeddings; a class is written as soon as it is complete.

        Args:
            rows: (n,) positions of the images.
            hashes: (n,) their content hashes.
            z: (n, d) their embeddings.
        """
        for row, value, embedding in zip(
            rows.tolist(), hashes.tolist(), z.float().cpu(), strict=True
        ):
            of_class = self._collected.setdefault(int(self.images.labels[row]), {})
            of_class.update(dict.fromkeys([row, *self.copies.get(row, ())], (value, embedding)))
        for label in {int(c) for c in self.images.labels[rows.cpu().numpy()]}:
            if len(self._collected[label]) == len(self.images.rows_of[label]):
                self._write(label)

    def collected(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Take out what :meth:`collect` took in of classes that this process has embedded only a
        part of.
        """
        parts = []
        for part in self._collected.values():
            if part:
                hashes, z = zip(*part.values(), strict=True)
                parts.append((torch.tensor(list(part)), torch.tensor(hashes), torch.stack(z)))
        self._collected = {}
        return parts

    def _write(self, label: int) -> None:
        collected = self._collected.pop(label)
        marks = self._marks(label)
        if self._before.pop(label, marks) != marks:
            log.warning(
                "not caching class '%s': its images changed while they were read",
                self.class_names[label],
            )
            return
        hashes, z = zip(
            *(collected[row] for row in self.images.rows_of[label].tolist()), strict=True
        )
        tensors = {"z": torch.stack(z), "hashes": torch.tensor(hashes, dtype=torch.int64)}
        about = {"marks": marks, "sha256": _digest(tensors["z"], tensors["hashes"])}
        write_atomic(self._path(label), lambda file: file.write(save(tensors, metadata=about)))
        self._found.pop(label, None)

    def _path(self, label: int) -> Path:
        digest = hashlib.sha256(self.class_names[label].encode("utf-8", "surrogateescape"))
        for row in self.images.rows_of[label]:
            digest.update(b"\0" + self.images.names[row].encode("utf-8", "surrogateescape"))
        return self.folder / f"{digest.hexdigest()[:32]}.safetensors"

    def _marks(self, label: int) -> str:
        """Hash the files' sizes, inodes and change times; the contents where there are no files."""
        marks = [self.images.mark(row) for row in self.images.rows_of[label].tolist()]
        return hashlib.sha256(repr(marks).encode()).hexdigest()


def _digest(z: Tensor, hashes: Tensor) -> str:
    digest = hashlib.sha256(z.contiguous().numpy().data)
    digest.update(hashes.contiguous().numpy().data)
    return digest.hexdigest()


class EvaluationMemory:
    """Embeddings of evaluation images, each computed once per run, up to a stated number of bytes.

    Args:
        limit_mb: memory bound in megabytes (10⁶ bytes); images past it are embedded anew at every
            task.
    """

    def __init__(self, limit_mb: float = 1024.0):
        self._kept: dict[int, Tensor] = {}
        self._limit = int(limit_mb * 1e6)

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) bool: which rows are in memory."""
        return np.array([row in self._kept for row in rows.tolist()], dtype=bool)

    def add(self, rows: Tensor, z: Tensor) -> None:
        """Keep embeddings (n, d) of images ``rows`` (n,) as far as the bound allows."""
        rows = rows.cpu()
        fresh = np.flatnonzero(~self.known(rows.numpy()))[
            : self._limit // (4 * z.shape[1]) - len(self._kept)
        ]
        kept = z[torch.from_numpy(fresh).to(z.device)].float().cpu()
        self._kept |= dict(zip(rows[fresh].tolist(), kept, strict=True))

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of rows that are known."""
        return torch.stack([self._kept[row] for row in rows.tolist()])
