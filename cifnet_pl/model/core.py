"""A model: a frozen backbone, a head, a buffer and class names. It embeds, learns task by task,
describes itself.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.backbones import Backbone
from cifnet_pl.backbones.engines import FLOAT32, autocast
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.heads.confidence import CalibrationSamples, calibrate
from cifnet_pl.model.bundle import Event, class_names, now, plugin_imports
from cifnet_pl.model.calibration import FEWEST_NEW, Calibration
from cifnet_pl.utilities.errors import (
    NonFiniteError,
    UsageError,
    check_embeddings,
    prefixed,
    unknown_name,
)
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.growing_tensors import GrowingModule, fingerprint
from cifnet_pl.utilities.plugins import import_name
from cifnet_pl.utilities.text import listed, number_of, printable, similar_spellings_message

AT_ONCE = 256
"""Embeddings that are added to the sums at once, at least: a Gram matrix is read and written for
each addition.
"""


class ImageHashes(GrowingModule):
    """Content hashes of the images of each class; an image that was learned twice has its hash
    twice.

    Buffers:
        labels: (C,) int64 label of each class that has hashes, ascending.
        counts: (C,) int64 number of its images.
        content: (n,) int64 hashes, class after class, ascending within a class.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.counts: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.content: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))

    def by_label(self) -> dict[int, np.ndarray]:
        """Return the hashes of each class: label → (n_c,) int64, ascending."""
        parts = np.split(self.content.cpu().numpy(), np.cumsum(self.counts.cpu().numpy())[:-1])
        return dict(zip(self.labels.tolist(), parts, strict=False))

    def of(self, label: int) -> np.ndarray:
        """Return the hashes of one class, ascending; none if it has no hashes."""
        return self.by_label().get(label, np.zeros(0, dtype=np.int64))

    @property
    def copies(self) -> int:
        """Number of images that are copies of another one, of any class."""
        return len(self.content) - len(torch.unique(self.content))

    def add(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        """Add images: (n,) labels and (n,) hashes."""
        groups = self.by_label()
        for label in np.unique(labels).tolist():
            groups[label] = np.concatenate([groups.get(label, hashes[:0]), hashes[labels == label]])
        self._set(groups)

    def subtract(self, other: ImageHashes) -> None:
        """Remove the images of ``other``, each as often as it occurs there."""
        groups = self.by_label()
        for label, hashes in other.by_label().items():
            if label in groups:
                left = Counter(groups[label].tolist()) - Counter(hashes.tolist())
                groups[label] = np.fromiter(left.elements(), dtype=np.int64)
        self._set(groups)

    def remove(self, labels: Sequence[int]) -> None:
        """Drop the hashes of classes."""
        self._set(
            {label: hashes for label, hashes in self.by_label().items() if label not in set(labels)}
        )

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename classes, old label → new one."""
        self._set({labels[label]: hashes for label, hashes in self.by_label().items()})

    def _set(self, groups: Mapping[int, np.ndarray]) -> None:
        kept = {label: np.sort(groups[label]) for label in sorted(groups) if len(groups[label])}
        device = self.content.device
        self.labels = torch.tensor(list(kept), dtype=torch.int64, device=device)
        self.counts = torch.tensor(
            [len(hashes) for hashes in kept.values()], dtype=torch.int64, device=device
        )
        joined = np.concatenate([np.zeros(0, dtype=np.int64), *kept.values()])
        self.content = torch.from_numpy(joined).to(device)


def embed_images(
    backbone: Backbone, images: Tensor, name: Callable[[int], str] | None = None
) -> Tensor:
    """Embed images with a frozen backbone, and check the embeddings.

    Args:
        backbone: the network.
        images: (n, 3, s, s) uint8, on its device.
        name: position in ``images`` → what an error calls that image.

    Returns:
        (n, d) float32.

    Raises:
        NonFiniteError: an embedding holds NaN or Inf.
    """
    z: Tensor = backbone(images)
    try:
        check_embeddings(z, backbone.features)
    except NonFiniteError as error:
        if name is None:
            raise
        raise NonFiniteError(f"{name(error.rows[0])}: {error}", error.rows) from error
    return z


@dataclass
class TaskUnderWay:
    """What a model has observed of a task, and not yet added to its sums.

    Attributes:
        more: a head that learns more samples of known classes; None if there are none.
        waiting: embeddings and labels of batches that are added together.
        hashes: labels and content hashes of the images observed.
    """

    more: Head | None
    waiting: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    hashes: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)


def show_stored(buffer: CalibrationBuffer, head: Head) -> None:
    """Show the samples in a buffer to the neurons of a head's current task, oversampled
    (OversampleBuffer).

    Args:
        buffer: its samples are of past tasks.
        head: it has observed all samples of its current task.
    """
    if len(buffer.y):
        counts = head.class_counts()
        n_max = max(counts[label] for label in head.tasks[-1])
        head.observe_past(*buffer.items(), buffer.oversampling(n_max))


M = TypeVar("M", bound="Model")


@dataclass
class Model:
    """A model that embeds, predicts, and learns task by task; between tasks, its head is solved.

    A task is ``begin_task``, ``observe`` for every batch, then ``finish_task``. That is how a run,
    ``extend``, the sums of shards and the service learn alike.

    Attributes:
        backbone: the frozen network.
        head: the closed-form classifier.
        buffer: the calibration buffer, or None where the head has no use for one.
        class_names: name of each column of the head's scores.
        image_size: side in pixels of the squares that the backbone gets; 0 for the backbone's own,
            and its crop ratio.
        crop_ratio: share of an image's short side that is cropped.
        held_out: share and seed by which the run held images back for testing; None if it did not
            split by itself.
        history: the model's life, oldest first.
        precision: what the backbone computes in (:mod:`cifnet_pl.backbones.engines`), as in the
            run; another one is good enough to predict, but not to forget.
        engines: what ran the backbone when the model learned (:mod:`cifnet_pl.backbones.engines`),
            each once: "torch", "onnxruntime".
        calibrated: whether to fit the temperature from the first task on; a model whose temperature
            was fitted once is calibrated again after every change in any case.
        images: content hashes of the images learned, so that each is counted once.
        calibration: the samples by which the model is calibrated, and how many of them it names
            right.
    """

    backbone: Backbone
    head: Head
    buffer: CalibrationBuffer | None = None
    class_names: list[str] = field(default_factory=list)
    image_size: int = 0
    crop_ratio: float = 1.0
    held_out: tuple[float, int] | None = None
    history: list[Event] = field(default_factory=list)
    precision: str = FLOAT32
    calibrated: bool = False
    engines: list[str] = field(default_factory=list)
    images: ImageHashes = field(default_factory=ImageHashes)
    calibration: Calibration = field(default_factory=Calibration)
    _task: TaskUnderWay | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.image_size:
            images = self.backbone.preprocessing
            self.image_size = images.image_size
            self.crop_ratio = images.crop_ratio

    # ------------------------------------------------------------------ what is known

    @property
    def tasks(self) -> list[list[str]]:
        """Class names of each task, in the order learned."""
        name_of = self.name_of
        return [[name_of[label] for label in task] for task in self.head.tasks]

    @property
    def label_of(self) -> dict[str, int]:
        """Class name → label in the head."""
        return dict(zip(self.class_names, self.head.classes, strict=True))

    @property
    def name_of(self) -> dict[int, str]:
        """Label in the head → class name."""
        return dict(zip(self.head.classes, self.class_names, strict=True))

    @property
    def counts(self) -> dict[str, int]:
        """Distinct images learned of each class."""
        return dict(zip(self.class_names, self.head.class_counts().values(), strict=True))

    @property
    def identity(self) -> str:
        """Hash of class names and all tensors, 16 hex digits: what later models name as their
        parent.
        """
        tensors = {
            name: tensor
            for name, tensor in self.tensors().items()
            if not name.startswith("images.")
        }
        return fingerprint(repr(self.class_names), tensors)[:16]

    @property
    def sample(self) -> str:
        """What a sample is called: an image, or a sample where the model learned embeddings."""
        if self.backbone.takes_images:
            return "image"
        return "sample"

    @property
    def plugin_imports(self) -> list[str]:
        """Imports from outside the package that whoever reads this model from a file must trust."""
        return plugin_imports(
            import_name(type(self.head)), self.backbone.name, self.backbone.architecture
        )

    @property
    def device(self) -> torch.device:
        """Device of the head's tensors."""
        return self.head.labels.device

    @property
    def engine(self) -> str:
        """Name of what runs the backbone now: "torch" or "onnxruntime"."""
        return self.backbone.engine(self.device.type, self.precision)

    @property
    def stored_samples(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """The buffer's embeddings (n, d), labels (n,) and content hashes (n,); None if there are
        none.
        """
        if self.buffer is None or not len(self.buffer.y):
            return None
        return (*self.buffer.items(), self.buffer.key)

    def labels(self, names: Iterable[str]) -> list[int]:
        """Return the head's label of each class name.

        Raises:
            UsageError: a name that is not known.
        """
        label = self.label_of
        names = list(names)
        missing = [name for name in names if name not in label]
        if missing:
            raise unknown_name(
                "class", printable(missing[0]), [printable(name) for name in self.class_names]
            )
        return [label[name] for name in names]

    def warnings_of(self, names: Iterable[str]) -> list[str]:
        """Return what to tell who teaches the classes ``names``: those written in two ways, or
        removed before.
        """
        names = list(names)
        spellings = similar_spellings_message(names, self.class_names)
        warnings = [spellings] if spellings else []
        new = [printable(name) for name in names if name not in set(self.class_names)]
        if new and self.remembers_removed:
            warnings.append(
                "note: a class was removed from this model without its images; if it is among"
                f" {listed(new)}, those images count against it"
            )
        return warnings

    @property
    def removals(self) -> list[Event]:
        """Steps in which classes were removed without their images."""
        return [event for event in self.history if event.what == "forget" and event.images is None]

    @property
    def remembers_removed(self) -> bool:
        """Whether images of a class that was removed may still count against what is learned."""
        return bool(self.removals) and self.head.counterexamples

    def accuracy_sentences(self) -> list[str]:
        """Say how many images of these days and of another day the model names right, as far as
        that is known.
        """
        buffer = self.buffer
        if buffer is None:
            counted = 0
        else:
            counted = int(self.calibration.counted(buffer.y, buffer.key).sum())
        return self.calibration.sentences(sum(self.head.class_counts().values()), counted)

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept, by component: the head's own, and the buffer's."""
        return {
            **self.head.state_elements(),
            "buffer": self.buffer.state_elements() if self.buffer else 0,
        }

    # ------------------------------------------------------------------ copies and storage

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules whose tensors are stored, by name; the backbone is among them where it was
        learned.
        """
        kept = {
            "head": self.head,
            "buffer": self.buffer,
            "images": self.images,
            "calibration": self.calibration,
        }
        learned = {"backbone": self.backbone if self.backbone.stored else None}
        return {name: part for name, part in {**kept, **learned}.items() if part is not None}

    def to(self: M, device: torch.device | str) -> M:
        """Move everything to a device, in place."""
        for module in (self.backbone, *self.parts.values()):
            module.to(device)
        return self

    def clone(self: M) -> M:
        """Return a copy that learns on its own; the frozen backbone is shared."""
        own: dict[str, Any] = {
            name: copy.deepcopy(part) for name, part in self.parts.items() if name != "backbone"
        }
        own |= {name: list(getattr(self, name)) for name in ("class_names", "history", "engines")}
        return replace(self, **own)

    def describe(self) -> dict[str, Any]:
        """Return everything but the tensors, as plain numbers, strings, lists and dictionaries."""
        return {
            "backbone": self.backbone.describe(),
            "precision": self.precision,
            "engines": list(self.engines),
            "images": {
                "image_size": self.image_size,
                "crop_ratio": self.crop_ratio,
                "held_out": list(self.held_out) if self.held_out else None,
            },
            "head": {"class": import_name(type(self.head)), **self.head.settings()},
            "buffer": self.buffer.settings() if self.buffer is not None else None,
            "class_names": list(self.class_names),
            "task_sizes": [len(task) for task in self.head.tasks],
            "history": [asdict(event) for event in self.history],
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors on the CPU, by part: ``head.…``, ``buffer.…``, ``images.…``,
        ``calibration.…``.

        A backbone that was learned adds ``backbone.…``.
        """
        return {
            f"{name}.{key}": value.detach().cpu().contiguous()
            for name, module in self.parts.items()
            for key, value in module.state_dict().items()
        }

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
            return embed_images(self.backbone, images.to(self.device), name)

    def probabilities(self, images: Tensor) -> Tensor:
        """Return the calibrated probabilities of images.

        Args:
            images: (n, 3, s, s) uint8.

        Returns:
            (n, C) float64, columns as ``class_names``.
        """
        return self.head.probabilities(self.embed(images))

    # ------------------------------------------------------------------ learning

    def check_task(self, names: Sequence[str]) -> None:
        """Check that this model can learn classes ``names``, new ones and more samples of known
        ones.

        Raises:
            UnsupportedError: a class that is known, and a head that cannot take in more samples of
                it.
            UsageError: a buffer that is too small for so many classes.
        """
        known = [name for name in names if name in set(self.class_names)]
        if known:
            with prefixed(
                f"cannot add images to class '{printable(known[0])}', which is learned already"
            ):
                self.head.require("pools")
        if self.buffer is not None:
            self.buffer.quota(max(1, len(self.class_names) + len(names) - len(known)))

    def begin_task(self, names: Sequence[str], counts: Sequence[int] | None = None) -> None:
        """Open a task of new classes, and of more samples of known ones.

        Args:
            names: of its classes.
            counts: their numbers of samples, if known.

        Raises:
            UsageError, UnsupportedError: no name, or as for :meth:`check_task`.
        """
        self.check_task(names)
        label = self.label_of
        old = [i for i, name in enumerate(names) if name in label]
        new = [i for i, name in enumerate(names) if name not in label]

        def counts_of(positions: list[int]) -> list[int] | None:
            if counts is None:
                return None
            return [counts[i] for i in positions]

        more = None
        if old:
            more = self.head.fresh()
            more.begin_task([label[names[i]] for i in old], counts_of(old))
        if self.buffer is not None:
            self.buffer.discard_pending()
        if new or not old:
            start = max(label.values(), default=-1) + 1
            self.head.begin_task(range(start, start + len(new)), counts_of(new))
            self.class_names += [names[i] for i in new]
        self._task = TaskUnderWay(more)

    def observe(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Add samples of the task begun last: to the head's sums, and as candidates to the buffer.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels, as ``labels`` gives them.
            key: (n,) int64 content hash of each image.
        """
        task = self._under_way()
        z, y, key = (column.to(self.device) for column in (z, y, key))
        if self.buffer is not None:
            self.buffer.add(z, y, key)
        task.hashes.append((y.cpu().numpy(), key.cpu().numpy()))
        task.waiting.append((z, y))
        if sum(len(labels) for _, labels in task.waiting) >= AT_ONCE:
            self._add_waiting(task)

    def _under_way(self) -> TaskUnderWay:
        if self._task is None:
            raise UsageError("no task has begun: call begin_task() first")
        return self._task

    def _add_waiting(self, task: TaskUnderWay) -> None:
        if not task.waiting:
            return
        z, y = (torch.cat(parts) for parts in zip(*task.waiting, strict=True))
        task.waiting.clear()
        if task.more is not None:
            known = torch.isin(y, task.more.labels)
            task.more.observe(z[known], y[known])
            z = z[~known]
            y = y[~known]
        if len(y):
            self.head.observe(z, y)

    def add_up(self, reduce: Callable[[Tensor], object] | None = None) -> None:
        """Bring into the sums all that was observed, in every process.

        Args:
            reduce: replaces a tensor by its sum over all processes; None where one process learns
                alone.
        """
        task = self._under_way()
        self._add_waiting(task)
        hashes = task.hashes
        task.hashes = []
        if reduce is not None:
            if self.head.under_way:
                self.head.reduce_(reduce)
            if task.more is not None:
                task.more.reduce_(reduce)
            hashes = [pair for pairs in of_all_processes(hashes) for pair in pairs]
            if self.buffer is not None:
                self.buffer.offered = sum(of_all_processes(self.buffer.offered))
                candidates = of_all_processes([part.cpu() for part in self.buffer.pending()])
                parts = [part for part in candidates if len(part[1])]
                if parts:
                    z, y, key = (
                        torch.cat(group).to(self.device) for group in zip(*parts, strict=True)
                    )
                    self.buffer.replace_pending(z, y, key)
        if hashes:
            before = self.images.copies
            self.images.add(*(np.concatenate(column) for column in zip(*hashes, strict=True)))
            self.count_duplicates(before)

    def finish_task(self) -> None:
        """End the task: update the buffer, then solve the head (the paper's Algorithm 1)."""
        self.add_up()
        task = self._under_way()
        self._task = None
        introduces = bool(self.head.under_way)
        if self.buffer is not None and introduces:
            show_stored(self.buffer, self.head)
        if task.more is not None:
            if introduces:
                self.head.solve()
            self.head.merge_(task.more)
        self.head.solve()
        self.head.refresh()
        self.calibrate(self._commit(self.buffer) if self.buffer is not None else None)

    def _commit(self, buffer: CalibrationBuffer) -> Tensor | None:
        """Let the buffer select among the samples offered, whole groups where it must draw.

        A stored image's twins come along: left in the sums alone, they would vouch for it. A head
        that learns from the buffer gets the draw of the buffer's own strategy, calibrated or not.

        Returns:
            The number of each stored sample's group (n,) int64, where whole ones were kept.
        """
        candidates = buffer.candidates() if self.calibrates and not self.head.uses_buffer else None
        groups = None if candidates is None else self.calibration.groups_of(self.head, *candidates)
        if candidates is None or groups is None:
            buffer.commit()
            return None
        buffer.commit_groups(candidates, groups)
        key, order = candidates[2].sort()
        return groups[order][torch.searchsorted(key, buffer.key)]

    def abort_task(self) -> None:
        """Forget the task that is under way, and all that was observed since it began."""
        self.head.abort_task()
        del self.class_names[len(self.head.classes) :]
        if self.buffer is not None:
            self.buffer.discard_pending()
        self._task = None

    def note(self, what: str, images: int | None = None, **about: Any) -> None:
        """Add a step to the history, with the number of classes and the date of now; see
        :class:`Event`.
        """
        self.history.append(Event(what, len(self.class_names), images, date=now(), **about))

    def note_engines(self, names: Iterable[str]) -> None:
        """Note the engines ("torch", "onnxruntime") that embed what is learned from now on."""
        self.engines += [name for name in dict.fromkeys(names) if name not in self.engines]

    def count_duplicates(self, before: int) -> None:
        """Tell the head how many copies were learned since there were ``before``; call it before
        the solve.
        """
        self.head.note_duplicates(self.images.copies - before)

    def solve(self) -> None:
        """Solve the head, and fit its temperature again."""
        self.head.solve()
        self.head.refresh()
        self.calibrate()

    def calibrate(self, groups: Tensor | None = None) -> None:
        """Let the head decide how to score, and fit the temperature if that is wanted or was done
        before.

        Images of one group are found first, so that they do not vouch for each other.

        Args:
            groups: (n,) int64 number of each stored sample's group, if they were found already.
        """
        buffer = self.buffer
        wanted = self.fits_temperature
        self.calibration.forget_stored()
        with self.head.keeping_left_out():
            if buffer is not None and len(buffer.y) and self.calibrates:
                self.calibration.find(self.head, buffer.z, buffer.y, buffer.key, groups)
            self.calibration.measure(self.head, self.images.content)
            samples = self.calibration_samples() if wanted else None
            if samples is not None and (not samples.learned or self.head.leaves_one_out):
                calibrate(samples)

    @property
    def fits_temperature(self) -> bool:
        """Whether the temperature is fitted after every change: it is wanted, or was done
        before.
        """
        return self.calibrated or float(self.head.temperature) != 1

    @property
    def calibrates(self) -> bool:
        """Whether stored samples are looked at after every change, to calibrate or to decide how to
        score.
        """
        return self.head.leaves_one_out and (self.fits_temperature or self.head.decides)

    def calibration_samples(self) -> CalibrationSamples | None:
        """Return the samples by which this model is calibrated; None if there are none."""
        return self.calibration.samples(self.head, self.stored_samples)

    def recalibrated(self: M, z: Tensor, y: Tensor, key: Tensor) -> M:
        """Return this model calibrated by images of a new place, which are not learned, instead of
        its stored samples.

        Temperature, sets of answers and what is called unknown are those of these images from now
        on, after every change; of images that are learned later they are no longer.

        Args:
            z: (n, d) embeddings.
            y: (n,) labels, as ``labels`` gives them.
            key: (n,) int64 content hash of each image.

        Raises:
            UsageError: fewer than 20 images that were not learned.
        """
        model = self.clone()
        model.calibration.take(z, y, key)
        model.calibrated = True
        model.calibrate()
        if len(model.calibration.y) < FEWEST_NEW:
            few = number_of(len(model.calibration.y), "labelled image")
            raise UsageError(
                f"{few} that the model has not learned cannot calibrate it: give at least"
                f" {FEWEST_NEW}"
            )
        right = model.calibration.new_group_accuracy
        model.note("recalibrate", accuracy=right, parents=[self.identity])
        return model

    # ------------------------------------------------------------------ changes of classes

    def rename(self, old: str, new: str) -> None:
        """Rename class ``old`` to ``new``; labels, statistics and the buffer stay as they are.

        Raises:
            UsageError: ``old`` is not known, ``new`` is the name of another class, or it could not
                be stored.
        """
        label = self.labels([old])[0]
        if new != old and new in self.class_names:
            raise UsageError(
                f"cannot rename class '{printable(old)}': there is a class '{printable(new)}'"
                " already"
            )
        class_names([new], "the request", UsageError)
        self.class_names[self.head.classes.index(label)] = new

    def remove_classes(self, names: Sequence[str]) -> None:
        """Take classes out of the label space and the buffer; what their samples left in the sums
        stays.

        Raises:
            UsageError: a class that is not known, or all of them.
        """
        labels = self.labels(names)
        self.head.remove_classes(labels)
        self.class_names = [name for name in self.class_names if name not in set(names)]
        if self.buffer is not None:
            self.buffer.remove_classes(labels)
        self.images.remove(labels)
        if self.head.solved:
            self.calibrate()
        else:
            self.solve()
