"""A model that learns task by task from embeddings: a frozen backbone, a head, a buffer and class names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from cifnet_pl.backbones.precision import autocast
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.heads.calibration import calibrate
from cifnet_pl.model.description import class_names
from cifnet_pl.model.model_state import ModelState
from cifnet_pl.utilities.errors import CheckpointError, NonFiniteError, UsageError, check_embeddings
from cifnet_pl.utilities.text import printable

M = TypeVar("M", bound="IncrementalClassifier")


@dataclass
class IncrementalClassifier(ModelState):
    """A model that embeds, predicts, and learns task by task; between tasks, its head is solved."""

    # ------------------------------------------------------------------ prediction

    def embed(self, images: Tensor, name: Callable[[int], str] | None = None) -> Tensor:
        """Embed images with the frozen backbone.

        Args:
            images: (n, 3, s, s) uint8 with s = ``image_size``, on any device.
            name: position in ``images`` → what an error calls that image.

        Returns:
            (n, d) float32 embeddings.

        Raises:
            NonFiniteError: an embedding holds NaN or Inf.
        """
        with autocast(self.device.type, self.precision):
            z: Tensor = self.backbone(images.to(self.device))
        try:
            check_embeddings(z, self.head.in_features)
        except NonFiniteError as error:
            if name is None:
                raise
            raise NonFiniteError(f"{name(error.rows[0])}: {error}", error.rows) from error
        return z

    @property
    def engine(self) -> str:
        """Name of what runs the backbone now: "torch" or "onnxruntime"."""
        return self.backbone.engine(self.device.type, self.precision)

    def probabilities(self, images: Tensor) -> Tensor:
        """Return the calibrated probabilities of images.

        Args:
            images: (n, 3, s, s) uint8.

        Returns:
            (n, C) float64, columns as ``class_names``.
        """
        return self.head.probabilities(self.embed(images))

    # ------------------------------------------------------------------ learning

    def begin_task(self, names: Sequence[str], counts: Sequence[int] | None = None) -> None:
        """Open a task that introduces classes.

        Args:
            names: of the new classes.
            counts: their numbers of photos, if known.

        Raises:
            UsageError: no name, a name that is known already, or a buffer too small for so many classes.
        """
        known = [name for name in names if name in set(self.class_names)]
        if known:
            raise UsageError(f"class '{printable(known[0])}' is already learned: a task introduces new classes only")
        if self.buffer is not None:
            self.buffer.discard_pending()
            self.buffer.quota(len(self.class_names) + len(names))
        start = max(self.head.classes, default=-1) + 1
        self.head.note_names(dict(enumerate(names, start)))
        self.head.begin_task(range(start, start + len(names)), counts)
        self.class_names += names

    def observe(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Add samples of the task begun last: to the head's sums, and as candidates to the buffer.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels, as ``labels`` gives them.
            key: (n,) int64 identity of each photo, see :func:`cifnet_pl.data.loading.sample_key`.
        """
        self.head.observe(z, y)
        self.offer(z, y, key)

    def offer(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Offer samples to the buffer only.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels.
            key: (n,) int64 identity of each sample.
        """
        if self.buffer is not None:
            self.buffer.add(z, y, key)

    def note_engines(self, names: Iterable[str]) -> None:
        """Note the engines that embed what is learned from now on.

        Args:
            names: "torch", "onnxruntime".
        """
        self.engines += [name for name in dict.fromkeys(names) if name not in self.engines]

    def finish_task(self) -> None:
        """End the task: update the buffer, then solve the head (the paper's Algorithm 1)."""
        self.update_buffer()
        self.solve()

    def update_buffer(
        self, new_classes: bool = True, gather: Callable[[CalibrationBuffer], None] | None = None
    ) -> None:
        """Show the buffer's samples to the new neurons, oversampled; then select among the task's candidates.

        Args:
            new_classes: whether the task brought classes, not only more samples of known ones.
            gather: brings the candidates of all processes into the buffer; None for one process.
        """
        if self.buffer is None:
            return
        if new_classes:
            self.buffer.show_to(self.head)
        if gather is not None:
            gather(self.buffer)
        self.buffer.commit()

    def rename(self, old: str, new: str) -> None:
        """Rename class ``old`` to ``new``; labels, statistics and the buffer stay as they are.

        Raises:
            UsageError: ``old`` is not known, ``new`` is the name of another class, or it could not be stored.
        """
        label = self.labels([old])[0]
        if new != old and new in self.class_names:
            raise UsageError(f"cannot rename class '{printable(old)}': there is a class '{printable(new)}' already")
        try:
            class_names([new], "the request")
        except CheckpointError as error:
            raise UsageError(str(error)) from error
        self.class_names[self.head.classes.index(label)] = new

    def abort_task(self) -> None:
        """Forget the task that is under way, and all that was observed since it began."""
        self.head.abort_task()
        del self.class_names[len(self.head.classes) :]
        if self.buffer is not None:
            self.buffer.discard_pending()

    def merge(self, head: Head) -> None:
        """Add what ``head`` saw of classes that are known already, and the buffer's candidates of them, and solve.

        Args:
            head: of the same settings and classes.

        Raises:
            UnsupportedError: this head's statistics are not additive.
        """
        self.head.merge_(head)
        if self.buffer is not None:
            self.buffer.commit()
        self.solve()

    def add_photos(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        """Keep the content hashes (n,) of photos with ``labels`` (n,), if hashes are kept; before the solve."""
        if self.photos is not None:
            before = self.photos.copies
            self.photos.add(labels, hashes)
            self.count_copies(before)

    def count_copies(self, before: int) -> None:
        """Tell the head how many copies were learned since there were ``before``; call it before the solve."""
        if self.photos is not None:
            self.head.note_copies(self.photos.copies - before)

    def solve(self) -> None:
        """Solve the head, and fit its temperature again."""
        self.head.solve()
        self.head.refresh()
        self.calibrate()

    def calibrate(self) -> None:
        """Let the head decide how to score, and fit the temperature if that is wanted or was done before."""
        if self.buffer is None or not len(self.buffer.y):
            return
        stored = self.buffer.items()
        self.head.decide(*stored)
        wanted = self.calibrated or float(self.head.temperature) != 1
        if wanted and self.head.leaves_one_out:
            calibrate(self.head, *stored)

    def remove_classes(self, names: Sequence[str]) -> None:
        """Take classes out of the label space and the buffer; what their samples left in the sums stays.

        Raises:
            UsageError: a class that is not known, or all of them.
        """
        labels, known = self.labels(names), self.head.classes
        self.head.remove_classes(labels)
        pairs = zip(self.class_names, known, strict=True)
        self.class_names = [name for name, label in pairs if label not in set(labels)]
        if self.buffer is not None:
            self.buffer.remove_classes(labels)
        if self.photos is not None:
            self.photos.remove(labels)
        if self.head.solved:
            self.calibrate()
        else:
            self.solve()
