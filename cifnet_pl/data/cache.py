"""Store embeddings on disk, so that a second run over the same images never runs the backbone again.

One safetensors file per class and set, below a folder named by everything that an embedding depends on apart from
the image: backbone weights and preprocessing, image size, crop, precision and decoder. A file is a hit only if the
images are those that it was made from: the same names with, for every file, the same size, inode and change times
— or, where those differ (a copied folder), the same contents. So a stale hit is impossible.
"""

from __future__ import annotations

import hashlib
import logging
from itertools import chain
from pathlib import Path

import numpy as np
import PIL
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.copies import content_hash
from cifnet_pl.data.loading import EMBEDDED_BATCH, EvaluationMemory, Store, pieces
from cifnet_pl.data.sets import SampleSet, Source
from cifnet_pl.utilities.files import of_all_processes, write_atomic

log = logging.getLogger(__name__)


def pipeline_key(backbone: Backbone, image_size: int, crop_ratio: float, precision: str, engine: str = "torch") -> str:
    """Hash everything but the image that an embedding depends on.

    Args:
        backbone: its weights and preprocessing count.
        image_size: side in pixels.
        crop_ratio: share of the short side that is cropped.
        precision: one of Lightning's names.
        engine: "torch" or "onnxruntime"; the hash for torch is that of versions without engines.

    Returns:
        32 hexadecimal digits.
    """
    parts = (backbone.sha256, image_size, crop_ratio, precision, PIL.__version__, *[engine] * (engine != "torch"))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


class EmbeddingCache:
    """The embeddings of one image set, class by class.

    Args:
        images: the set.
        class_names: name of each label of the set.
        folder: where the files of this set and pipeline are.

    Attributes:
        copies: image → its exact copies, which are not embedded: they get its embedding.
    """

    def __init__(self, images: SampleSet, class_names: list[str], folder: Path):
        self.images, self.class_names, self.folder = images, class_names, folder
        self._found: dict[int, Tensor | None] = {}
        self._place = np.full(len(images), -1, dtype=np.int64)
        for rows in images.rows_of.values():
            self._place[rows] = np.arange(len(rows))
        self._collected: dict[int, dict[int, Tensor]] = {}
        self._before: dict[int, str] = {}  # marks of the files before any of a class was decoded
        self._hashes: dict[int, np.ndarray] = {}
        self.copies: dict[int, list[int]] = {}

    # ------------------------------------------------------------------ reading

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return which of the images ``rows`` (n,) have a stored embedding: (n,) bool."""
        labels = self.images.labels[rows]
        hit = {int(c): self._load(int(c)) is not None for c in np.unique(labels)}
        for label in (label for label, there in hit.items() if not there and label not in self._before):
            self._before[label] = _stat(self._marks(label))
        return np.array([hit[int(c)] for c in labels], dtype=bool)

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of images ``rows`` (n,) that are known; files are memory-mapped."""
        parts = []
        labels = self.images.labels[rows]
        for c in dict.fromkeys(labels.tolist()):
            stored = self._load(c)
            assert stored is not None
            parts.append(stored[torch.from_numpy(self._place[rows[labels == c]])])
        order = np.concatenate([np.flatnonzero(labels == c) for c in dict.fromkeys(labels.tolist())])
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))]

    def hashes(self, label: int) -> np.ndarray | None:
        """Return the content hashes of the images of a class, without reading them.

        Args:
            label: of the class.

        Returns:
            (n,) int64; None if none are stored.
        """
        self._load(label)
        return self._hashes.get(label)

    def _load(self, label: int) -> Tensor | None:
        if label not in self._found:
            self._found[label] = self._read(label)
        return self._found[label]

    def _read(self, label: int) -> Tensor | None:
        path = self._path(label)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                z: Tensor = file.get_tensor("z")
                hashes = file.get_tensor("hashes").numpy() if "hashes" in file.keys() else None  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            log.warning("rebuilding damaged cache file %s (%s)", path, error)
            return None
        if z.ndim != 2 or len(z) != len(self.images.rows_of[label]) or about.get("sha256") != _digest(z):
            log.warning("rebuilding damaged cache file %s (its checksum is wrong)", path)
            return None
        marks = self._marks(label)
        if about.get("stat") != _stat(marks) and about.get("content") != self._content(label, marks):
            return None
        if hashes is not None and len(hashes) == len(z) and about.get("hashes_sha256") == _digest_of(hashes):
            self._hashes[label] = hashes
        return z

    # ------------------------------------------------------------------ writing

    def collect(self, rows: Tensor, z: Tensor) -> None:
        """Take in embeddings (n, d) of images ``rows`` (n,); a class is written as soon as it is complete."""
        z = z.float().cpu()
        for row, embedding in zip(rows.tolist(), z, strict=True):
            label = int(self.images.labels[row])
            embeddings = self._collected.setdefault(label, {})
            embeddings.update(dict.fromkeys([row, *self.copies.get(row, ())], embedding))
        for label in {int(c) for c in self.images.labels[rows.cpu().numpy()]}:
            if len(self._collected[label]) == len(self.images.rows_of[label]):
                self._write(label)

    def collected(self) -> list[tuple[list[int], Tensor]]:
        """Take out the embeddings of classes that this process has embedded only a part of.

        Returns:
            Positions of the images and (n, d) tensor, for each class.
        """
        parts = [
            (list(embeddings), torch.stack(list(embeddings.values())))
            for embeddings in self._collected.values()
            if embeddings
        ]
        self._collected = {}
        return parts

    def _write(self, label: int) -> None:
        embeddings = self._collected.pop(label)
        z = torch.stack([embeddings[row] for row in self.images.rows_of[label].tolist()])
        marks = self._marks(label)
        stat = _stat(marks)
        if self._before.pop(label, stat) != stat:
            log.warning("not caching class '%s': its images changed while they were read", self.class_names[label])
            return
        contents: list[int] = []
        tensors = {"z": z}
        about = {"stat": stat, "content": self._content(label, marks, contents), "sha256": _digest(z)}
        if len(contents) == len(z):
            tensors["hashes"] = torch.tensor(contents, dtype=torch.int64)
            about["hashes_sha256"] = _digest_of(tensors["hashes"].numpy())
        write_atomic(self._path(label), lambda file: file.write(save(tensors, metadata=about)))
        self._found.pop(label, None)

    # ------------------------------------------------------------------ identity

    def _path(self, label: int) -> Path:
        digest = hashlib.sha256(self.class_names[label].encode("utf-8", "surrogateescape"))
        for row in self.images.rows_of[label]:
            digest.update(b"\0" + self.images.names[row].encode("utf-8", "surrogateescape"))
        return self.folder / f"{digest.hexdigest()[:32]}.safetensors"

    def _marks(self, label: int) -> list[tuple[int, ...] | str]:
        """Return the files' sizes, inodes and change times; hashes of the contents where there are no files."""
        return [self.images.stat(row) for row in self.images.rows_of[label].tolist()]

    def _content(self, label: int, marks: list[tuple[int, ...] | str], hashes: list[int] | None = None) -> str:
        """Hash the contents of the images of a class.

        Args:
            label: of the class.
            marks: from :meth:`_marks`; one that is a hash of the content already is not computed again.
            hashes: list to which the content hash of every image that was read is appended.
        """
        digest = hashlib.sha256()
        for row, mark in zip(self.images.rows_of[label].tolist(), marks, strict=True):
            if isinstance(mark, str):
                digest.update(bytes.fromhex(mark))
            else:
                content = self.images.content(row)
                digest.update(hashlib.sha256(content).digest())
                if hashes is not None:
                    hashes.append(content_hash(content))
        return digest.hexdigest()


class EmbeddingStores:
    """The stores of one source's embeddings by one backbone: in memory during a run, on disk between runs.

    Args:
        source: training and test images.
        memory_mb: bound in megabytes on test embeddings in memory.
        folder: of the cache of this pipeline (:func:`pipeline_key`), or None to keep nothing on disk.
    """

    def __init__(self, source: Source, memory_mb: float, folder: Path | None):
        self.memory = EvaluationMemory(len(source.val), memory_mb)
        self.train, self.val = (
            EmbeddingCache(images, source.class_names, folder / split) if folder is not None else None
            for images, split in ((source.train, "train"), (source.val, "val"))
        )

    def plan_training(self, batches: list[np.ndarray]) -> list[tuple[np.ndarray, Store | None]]:
        """Find the store of each batch of training images.

        Args:
            batches: positions of the images of each batch.

        Returns:
            Each batch with its store; None if one of its images must be embedded.
        """
        cache = self.train
        return [(batch, cache if cache and cache.known(batch).all() else None) for batch in batches]

    def plan_evaluation(self, rows: np.ndarray, batch_size: int) -> list[tuple[np.ndarray, Store | None]]:
        """Divide test images into large batches from each store, and batches that must be embedded.

        Args:
            rows: (n,) positions of the images.
            batch_size: images in a batch that is embedded.

        Returns:
            Each batch with its store; None if it must be embedded.
        """
        plan: list[tuple[np.ndarray, Store | None]] = []
        for store in (store for store in (self.memory, self.val) if store is not None):
            known = store.known(rows)
            plan += [(batch, store) for batch in pieces(rows[known], EMBEDDED_BATCH)]
            rows = rows[~known]
        return plan + [(batch, None) for batch in pieces(rows, batch_size)]

    def remember(self, rows: Tensor, z: Tensor, training: bool) -> None:
        """Keep embeddings, as far as the bound on memory and the options allow.

        Args:
            rows: (n,) int64 positions of the images.
            z: (n, d) their embeddings.
            training: whether they are of the training set.
        """
        cache = self.train if training else self.val
        if cache is not None:
            cache.collect(rows, z)
        if not training:
            self.memory.add(rows, z)

    def share(self, rank: int, world: int) -> None:
        """Write the classes of which every process has embedded a part; call it in all processes.

        Args:
            rank: number of this process.
            world: number of processes.
        """
        for cache in (self.train, self.val):
            if cache is None or world == 1:
                continue
            parts = of_all_processes(cache.collected())
            for rows, z in chain.from_iterable(parts) if rank == 0 else []:
                cache.collect(torch.tensor(rows), z)


def _stat(marks: list[tuple[int, ...] | str]) -> str:
    return hashlib.sha256(repr(marks).encode()).hexdigest()


def _digest(z: Tensor) -> str:
    return _digest_of(z.contiguous().numpy())


def _digest_of(array: np.ndarray) -> str:
    return hashlib.sha256(array.data).hexdigest()
