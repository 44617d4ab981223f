"""A model that learns task by task from embeddings: a frozen backbone, a head, a buffer and class names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.backbones.engines import FLOAT32, autocast
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.heads.confidence import calibrate
from cifnet_pl.model.description import Event, PhotoHashes, class_names, outside_parts
from cifnet_pl.utilities.errors import CheckpointError, NonFiniteError, UsageError, check_embeddings, unknown_name
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.plugins import import_name
from cifnet_pl.utilities.text import about_spellings, printable

S = TypeVar("S", bound="ModelState")


@dataclass
class ModelState:
    """Backbone, head and buffer, and what belongs to them.

    Attributes:
        backbone: the frozen network.
        head: the closed-form classifier; solved, except between ``begin_task`` and ``finish_task``.
        buffer: the calibration buffer, or None where the head has no use for one.
        class_names: name of each column of the head's scores.
        image_size: side in pixels of the squares that the backbone gets.
        crop_ratio: share of a photo's short side that is cropped.
        held_back: share and seed by which the run held photos back for testing; None if it did not split by itself.
        history: the model's life, oldest first.
        precision: what the backbone computes in (:mod:`cifnet_pl.backbones.engines`), as in the run; another one is
            good enough to predict, but not to forget.
        engines: what ran the backbone when the model learned (:mod:`cifnet_pl.backbones.engines`), each once: "torch",
            "onnxruntime".
        calibrated: whether to fit the temperature from the first task on; a model whose temperature was fitted once is
            calibrated again after every change in any case.
        photos: content hashes of the photos learned, so that each is counted once; None to keep none.
    """

    backbone: Backbone
    head: Head
    buffer: CalibrationBuffer | None
    class_names: list[str]
    image_size: int
    crop_ratio: float = 1.0
    held_back: tuple[float, int] | None = None
    history: list[Event] = field(default_factory=list)
    precision: str = FLOAT32
    calibrated: bool = False
    engines: list[str] = field(default_factory=list)
    photos: PhotoHashes | None = field(default_factory=PhotoHashes)

    # ------------------------------------------------------------------ what is known

    @property
    def tasks(self) -> list[list[str]]:
        """Class names of each task, in the order learned."""
        name = dict(zip(self.head.classes, self.class_names, strict=True))
        return [[name[label] for label in task] for task in self.head.tasks]

    @property
    def counts(self) -> dict[str, int]:
        """Distinct photos learned of each class."""
        return dict(zip(self.class_names, self.head.class_counts().values(), strict=True))

    @property
    def knows_photos(self) -> bool:
        """Whether the content hash of every learned photo is known."""
        return self.photos is not None and self.photos.complete(self.head.class_counts())

    @property
    def identity(self) -> str:
        """Hash of class names and all tensors, 16 hex digits: what later models name as their parent."""
        tensors = {name: tensor for name, tensor in self.tensors().items() if not name.startswith("photos.")}
        return fingerprint(repr(self.class_names), tensors)[:16]

    @property
    def outside_parts(self) -> list[str]:
        """Imports from outside the package that whoever reads this model from a file must trust."""
        return outside_parts(import_name(type(self.head)), self.backbone.name, self.backbone.architecture)

    @property
    def device(self) -> torch.device:
        """Device of the head's tensors."""
        return self.head.labels.device

    def labels(self, names: Iterable[str]) -> list[int]:
        """Return the head's label of each class name.

        Raises:
            UsageError: a name that is not known.
        """
        label = dict(zip(self.class_names, self.head.classes, strict=True))
        names = list(names)
        missing = [name for name in names if name not in label]
        if missing:
            raise unknown_name("class", printable(missing[0]), [printable(name) for name in self.class_names])
        return [label[name] for name in names]

    def warnings_of(self, names: Iterable[str]) -> list[str]:
        """Return what to tell who teaches the classes ``names``: those written in two ways, or removed before."""
        names = list(names)
        warnings = [about_spellings(names, self.class_names), self._about_removed(names)]
        return [warning for warning in warnings if warning]

    def _about_removed(self, names: Iterable[str]) -> str | None:
        """Return a warning if one of the classes ``names`` may have been removed without its photos; else None."""
        new = [printable(name) for name in names if name not in set(self.class_names)]
        if not new or not self.remembers_removed:
            return None
        listed = ", ".join(new[:5]) + (", …" if len(new) > 5 else "")
        return (
            f"note: a class was removed from this model without its photos; if it is among {listed}, "
            "those photos count against it"
        )

    @property
    def removals(self) -> list[Event]:
        """Steps in which classes were removed without their photos."""
        return [event for event in self.history if event.what == "forget" and event.photos is None]

    @property
    def remembers_removed(self) -> bool:
        """Whether photos of a class that was removed may still count against what is learned."""
        return bool(self.removals) and self.head.counterexamples

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept, by component: the head's own, and the buffer's."""
        return {**self.head.state_elements(), "buffer": self.buffer.state_elements() if self.buffer else 0}

    # ------------------------------------------------------------------ copies and storage

    def to(self: S, device: torch.device | str) -> S:
        """Move everything to a device, in place."""
        for module in (self.backbone, self.head, self.buffer, self.photos):
            if module is not None:
                module.to(device)
        return self

    def clone(self: S) -> S:
        """Return a copy that learns on its own; the frozen backbone is shared."""
        return replace(
            self,
            head=copy.deepcopy(self.head),
            buffer=copy.deepcopy(self.buffer),
            photos=copy.deepcopy(self.photos),
            class_names=list(self.class_names),
            history=list(self.history),
            engines=list(self.engines),
        )

    def describe(self) -> dict[str, Any]:
        """Return everything but the tensors, as plain numbers, strings, lists and dictionaries."""
        buffer = self.buffer.settings() if self.buffer is not None else None
        return {
            "backbone": self.backbone.describe(),
            "precision": self.precision,
            "engines": list(self.engines),
            "images": {
                "image_size": self.image_size,
                "crop_ratio": self.crop_ratio,
                "held_back": list(self.held_back) if self.held_back else None,
            },
            "head": {"class": import_name(type(self.head)), **self.head.settings()},
            "buffer": buffer,
            "class_names": list(self.class_names),
            "task_sizes": [len(task) for task in self.head.tasks],
            "history": [asdict(event) for event in self.history],
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of head and buffer, on the CPU, named ``head.…`` and ``buffer.…``."""
        state = {f"head.{key}": value for key, value in self.head.state_dict().items()}
        if self.buffer is not None:
            state |= {f"buffer.{key}": value for key, value in self.buffer.state_dict().items()}
        if self.photos is not None:
            state |= {f"photos.{key}": value for key, value in self.photos.state_dict().items()}
        return {key: value.detach().cpu().contiguous() for key, value in state.items()}


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
