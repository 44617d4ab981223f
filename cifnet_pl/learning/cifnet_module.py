"""The training-free LightningModule: it feeds a model with the task stream, and stores it in
checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.engines import EngineChoice
from cifnet_pl.backbones.patches import Patches
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.loading import Batch, EmbeddingBatch
from cifnet_pl.heads import CIFNetHead, Head
from cifnet_pl.heads import confidence as calibration
from cifnet_pl.heads.ridge import about_choices
from cifnet_pl.learning.strategy import check_trainer
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.bundle import Description, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.testing import try_head
from cifnet_pl.utilities.errors import CheckpointError, UnsupportedError, UsageError, explained
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.growing_tensors import state_of
from cifnet_pl.utilities.plugins import about, import_name, names_import, naming

LEARNED_FROM = 5000
"""Images that a backbone which is to be learned gets at most."""


class CIFNetModule(TaskModule):
    """A frozen backbone and a closed-form head: Lightning's side of
    :class:`~cifnet_pl.model.classifier.Classifier`.

    ``training_step`` embeds a batch and shows it to the model; at the end of the epoch the sums are
    added over processes, the buffer is updated, and the head is solved. Nothing has a gradient.

    Args:
        backbone: name of the frozen network, see :mod:`cifnet_pl.backbones`.
        head: makes the head from the width of the embeddings; on the command line, a class of
            ``cifnet_pl.heads``, in Python also a head of that width; null for CIFNetHead.
        buffer: the calibration buffer, or null for none; left empty by heads that have no use for
            it.
        architecture: of backbone ``file:…``: a torchvision model, resnet32_cifar, resnet18_cifar or
            ``timm:<model>``.
        download: whether weights that are not on this machine may be fetched.
        calibrate: whether to set the head's temperature after each task, from the leave-one-out
            scores of the buffer's samples (:mod:`cifnet_pl.heads.confidence`); needs a buffer,
            whether or not the head learns from it.
        engine: what runs the backbone: torch, onnxruntime, or auto for ONNX Runtime on a CPU where
            the network can be exported, and torch elsewhere (:mod:`cifnet_pl.backbones.engines`).

    Attributes:
        model: the classifier that learns. Its parts are modules of this one, so that Lightning
            moves and stores them.
        evaluated: (n, d) embeddings of the evaluation batch seen last.
    """

    evaluated: Tensor

    def __init__(
        self,
        backbone: str = "embedded:efficientnet_lite0",
        head: Callable[[int], Head] | None = None,
        buffer: CalibrationBuffer | None = None,
        architecture: str | None = None,
        download: bool = False,
        calibrate: bool = False,
        engine: EngineChoice = "auto",
    ):
        super().__init__()
        self.backbone = build_backbone(backbone, architecture, download, engine)
        self._given_weights = self.backbone.sha256  # what it learns itself comes after them
        self.head = _head_of(head or CIFNetHead, self.backbone)
        calibration.check(self.head, buffer, calibrate)
        stores = self.head.uses_buffer or self.head.decides or calibrate
        if stores:
            self.buffer: CalibrationBuffer | None = buffer
        else:
            self.buffer = None
        self.images = ImageHashes()
        self.model = Classifier(
            self.backbone, self.head, self.buffer, calibrated=calibrate, images=self.images
        )
        self.calibration = self.model.calibration
        self._told: set[str] = set()
        self._given: list[
            tuple[Tensor, Tensor]
        ] = []  # content hashes of this task's images, and their groups

    def settings(self) -> dict[str, Any]:
        """Return the backbone, head and buffer, by everything that their tensors depend on."""
        head = {"class": import_name(type(self.head)), **self.head.settings()}
        if self.buffer is not None:
            buffer = self.buffer.settings()
        else:
            buffer = {"capacity": 0}
        return {
            **super().settings(),
            "backbone": self._given_weights,
            "head": head,
            "buffer": buffer,
        }

    @property
    def needs_trust(self) -> bool:
        """Whether reading a model of this module imports code from outside the package."""
        return bool(self.model.plugin_imports)

    def imported_parts(self) -> list[str]:
        """Return the names of the classes of this module and its head."""
        return [import_name(type(self)), import_name(type(self.head))]

    # ------------------------------------------------------------------ learning

    def setup(self, stage: str) -> None:
        """Refuse processes that cannot learn together, and tell the model how its images are
        prepared.
        """
        images = self.data.describe_images(self.backbone.preprocessing)
        self.model.image_size = images["image_size"]
        self.model.crop_ratio = images["crop_ratio"]
        self.model.held_out = tuple(images["held_out"]) if images["held_out"] else None
        self.model.precision = str(self.trainer.precision)
        if stage == "fit":
            check_trainer(self.trainer)
            if not self.head.reduces and self.trainer.world_size > 1:
                name = type(self.head).__name__
                processes = self.trainer.world_size
                raise UsageError(
                    f"{name} learns in one process, not in {processes}: --trainer.devices 1"
                )
        self.engine()

    def engine(self) -> str:
        """Return the engine that runs the backbone in this run, and prepare it, which takes seconds
        the first time.
        """
        return self.backbone.engine(
            self.trainer.strategy.root_device.type, str(self.trainer.precision)
        )

    def on_fit_start(self) -> None:
        """Learn the backbone if it is to be, and refuse a run whose classes the buffer cannot
        hold.
        """
        if self.backbone.learning is not None and not self.backbone.learning.learned:
            self._learn_backbone(self.backbone.learning)
        super().on_fit_start()
        if self.buffer is not None:
            self.buffer.quota(len(self.data.stream(self.learned_tasks).classes()))

    def _learn_backbone(self, network: Patches) -> None:
        """Learn the backbone from the first task's images; the first process's is that of all."""
        start = time.perf_counter()
        network.learn_from(self.data.images_of(0, LEARNED_FROM), torch.initial_seed())
        network.load_state_dict(self.trainer.strategy.broadcast(network.state_dict()))
        self.preparing = time.perf_counter() - start
        rank_zero_info(f"backbone {self.backbone.name} is learned in {self.preparing:.0f} s")

    def check_returning(self) -> None:
        """Raise UnsupportedError unless the head can add samples of a class that it has learned."""
        try:
            self.head.require("pools")
        except UnsupportedError as error:
            raise UnsupportedError(
                f"with --data.stream {type(self.data.plan.kind).__name__} classes return with new"
                f" samples, which {type(self.head).__name__} cannot add: {error}; RidgeHead can"
            ) from error

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Open the task in the model: its new classes, and those that return with more samples."""
        self.model.record_engines([self.engine()])
        names = [*names, *self.data.returning_classes(self.data.task)]
        self.model.begin_task(names, self.data.class_counts(names))

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Embed the batch and show it to the model; return its embeddings and labels."""
        z = self.embed(batch)
        self.model.observe(z, batch.label, batch.key)
        if self.data.source.groups is not None:
            given = self.data.source.groups[batch.row.cpu().numpy()]
            self._given.append((batch.key.cpu(), torch.from_numpy(given)))
        return {"z": z, "label": batch.label}

    def finish_task(self) -> None:
        """Add up over all processes, and let the model solve its head.

        Raises:
            DataError: a class of which no image could be learned.
        """
        self.data.begin_task(len(self.learned_tasks))
        self.add_up(self.model)
        self.refuse_empty(
            [self.class_names[label] for label, n in self.head.class_counts().items() if not n]
        )
        for key, given in (pair for pairs in of_all_processes(self._given) for pair in pairs):
            self.calibration.add_given_groups(key, given)
        self._given.clear()
        self.model.finish_task()
        for remark, sentence in about_choices(self.head.choices()).items():
            if remark not in self._told:  # once in a run
                rank_zero_info(sentence)
            self._told.add(remark)

    def add_up(self, model: Classifier) -> None:
        """Add up over all processes what a model has observed."""
        strategy = self.trainer.strategy
        alone = self.trainer.world_size == 1
        model.add_up(None if alone else lambda tensor: strategy.reduce(tensor, reduce_op="sum"))

    def abort_task(self, labels: list[int]) -> None:
        """Remove the task that was under way from the model."""
        self._given.clear()
        self.model.abort_task()

    def embed(self, batch: Batch) -> Tensor:
        """Return (n, d) float32 embeddings of a batch: those that it brings, or of its images,
        offered to the cache.

        Raises:
            NonFiniteError: an embedding holds NaN or Inf; names the batch of a task, counted from
                0, and the image.
        """
        if isinstance(batch, EmbeddingBatch):
            return batch.embedding
        z = self.model.embed(batch.image, lambda row: self._name_of(int(batch.row[row])))
        self.data.remember(batch, z)
        return z

    def _name_of(self, row: int) -> str:
        """Return what an error calls an image of the set that is being fed."""
        learning = self.trainer.training
        source = self.data.source
        if learning:
            where = f"batch {self.trainer.fit_loop.batch_idx}, "
        else:
            where = "evaluation, "
        return f"{where}image {(source.train if learning else source.val).names[row]}"

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, h, w)."""
        return self.model.probabilities(images)

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probabilities of an evaluation batch."""
        self.evaluated = self.embed(batch)
        return self.head.probabilities(self.evaluated)

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks, by component; the head's own, and the buffer's."""
        return self.model.state_elements()

    def bytes_of(self, component: str) -> int:
        """Return the bytes of one number of the buffer, or of the head's statistics."""
        if component == "buffer":
            return 4
        return self.head.dtype.itemsize

    def describe(self) -> dict[str, Any]:
        """Return the head, the backbone and their settings, for ``summary.json``."""
        return {
            **super().describe(),
            "engine": self.engine(),
            "head": type(self.head).__name__,
            **about(type(self.head)),
            "head_settings": self.head.settings(),
            "learned_images": sum(self.model.counts.values()),
            "buffer_settings": self.buffer.settings() if self.buffer is not None else None,
            "groups": self.calibration.known,
            "loo_accuracy": self.calibration.loo_accuracy,
            "new_group_accuracy": self.calibration.new_group_accuracy,
        }

    # ------------------------------------------------------------------ checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the model's description, as a bundle has it."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["cifnet"]["model"] = self.model.describe()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint belongs to this module, and take over what it says of the
        model.

        Engines may change, as their embeddings agree.
        """
        with explained(CheckpointError, "the checkpoint does not fit the head"):
            self.head.expect(state_of(checkpoint["state_dict"], "head."))
        super().on_load_checkpoint(checkpoint)
        about = parse(Description, checkpoint["cifnet"].get("model"), "the checkpoint")
        self.model.class_names = list(self.class_names)
        self.model.engines = list(about.engines)
        self.model.history = list(about.history)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return everything but a backbone that is given: its hash is stored instead."""
        state = super().state_dict(*args, **kwargs)
        return {key: value for key, value in state.items() if not self._is_given(key)}

    def _is_given(self, key: str) -> bool:
        """Return whether a tensor is of a backbone that never changes."""
        return key.startswith("backbone.") and self.backbone.learning is None

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load everything but a backbone that is given.

        Raises:
            CheckpointError: tensors are missing, of another shape, or do not fit each other.
        """
        with explained(CheckpointError, "the checkpoint does not fit the head"):
            result = super().load_state_dict(state_dict, strict=False, assign=assign)
        missing = [key for key in result.missing_keys if not self._is_given(key)]
        if strict and (missing or result.unexpected_keys):
            raise CheckpointError(
                f"the checkpoint does not fit the head: missing {missing[:3]}, unexpected"
                f" {result.unexpected_keys[:3]}"
            )
        if self.class_names and sorted(self.head.classes) != list(range(len(self.class_names))):
            raise CheckpointError(
                f"the checkpoint is damaged: it names {len(self.class_names)} classes, "
                f"but its head has learned {len(self.head.classes)}"
            )
        return result


def _head_of(head: Callable[[int], Head] | Head, backbone: Backbone) -> Head:
    """Return a head for a backbone; UsageError for a name, or one of another width, or that has
    learned already.
    """
    if not callable(head):
        raise UsageError(
            f"head is {head!r}, expected a class such as cifnet_pl.heads.RidgeHead, or a head of"
            " that width"
        )
    if isinstance(head, Head):
        made = head
    else:
        made = head(backbone.features)
    name = type(made).__name__
    if made.in_features != backbone.features:
        raise UsageError(
            f"{name} is for embeddings of {made.in_features} numbers, and backbone {backbone.name}"
            f" gives {backbone.features}: head={name}({backbone.features}), or head={name}, which"
            " gets the width by itself"
        )
    if made.classes:
        raise UsageError(f"{name} has learned {len(made.classes)} classes already: give a new head")
    part = import_name(type(made))
    if names_import(part):
        with naming(part):
            try_head(made)
    return made
