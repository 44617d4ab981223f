"""The state of a learned model: a frozen backbone, a head, a buffer, class names and a history."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.backbones.precision import FLOAT32
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.model.description import Event, outside_parts
from cifnet_pl.model.photo_hashes import PhotoHashes
from cifnet_pl.utilities.errors import unknown_name
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
        precision: what the backbone computes in (:mod:`cifnet_pl.backbones.precision`), as in the run; another one is
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
