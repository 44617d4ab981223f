"""A model: frozen backbone, head, calibration buffer and class names, in plain torch.

It embeds, learns task by task, classifies images, describes and stores itself.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.backbones.engines import FLOAT32, REDUCED, check_precision
from cifnet_pl.buffer import buffer_samples
from cifnet_pl.data.loading import EMBEDDED_BATCH, Batches, Task, cut_batches
from cifnet_pl.data.sources.python_objects import are_embeddings
from cifnet_pl.data.sources.tables import open_table
from cifnet_pl.heads.base import as_tensor
from cifnet_pl.images.reader import GivenImages, decode_images, iterate_images
from cifnet_pl.model.bundle import Event, write_bundle
from cifnet_pl.model.calibration import (
    ACCURACY_ON_NEW_GROUPS,
    MIN_NEW_IMAGES,
    NOT_ESTIMATED,
    UNKNOWN_SHARE,
    OpenSetDecision,
    OpenSetPredictor,
)
from cifnet_pl.model.export import Export, Graph, HeadGraph, Square, onnx_bytes
from cifnet_pl.model.task_learner import ModelLearner
from cifnet_pl.utilities.errors import UsageError, check_embeddings, unknown_name
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.names import class_name, class_names
from cifnet_pl.utilities.plugins import import_name
from cifnet_pl.utilities.text import (
    listed,
    now,
    number_of,
    printable,
    similar_spellings_message,
)


@dataclass(frozen=True)
class Prediction(OpenSetDecision):
    """The most probable classes of one image, and the decision on it as far as it was asked for.

    Attributes:
        file: the image, or ``table#id`` of a file of embeddings; None if it was given as bytes or
            as an image.
        classes: names, the most probable first; empty where the image is unreadable.
        probabilities: of ``classes``.
        unreadable: the reason why it cannot be decoded, or None.
    """

    file: Path | None = None
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    unreadable: str | None = None


@dataclass
class Classifier(ModelLearner):
    """A model that embeds, classifies, and learns task by task as a :class:`ModelLearner`.

    Attributes:
        backbone: the frozen backbone.
        head: the closed-form classifier.
        buffer: the calibration buffer, or None where the head has no use for one.
        class_names: name of each column of the head's scores.
        image_size: side in pixels of the squares that the backbone gets; 0 for the backbone's own
            size and crop ratio.
        crop_ratio: share of an image's short side that is cropped.
        held_out: share and seed by which a run holds images out where the data has no test split;
            None if the user named the groups.
        history: the steps of the model's life, oldest first.
        precision: precision of the backbone (:mod:`cifnet_pl.backbones.engines`), as in the run.
            Another one is good enough to predict, but not to forget.
        calibrated: whether to fit the temperature from the first task on. A model whose
            temperature was fitted once is calibrated again after every change in any case.
        engines: engines that ran the backbone when the model learned, each once: "torch",
            "onnxruntime".
        images: content hashes of the images learned, so that each is counted once.
        calibration: the samples by which the model is calibrated, and its accuracy on them.

    Example::

        model = cifnet_pl.load("lightning_logs/flowers")
        for prediction in model.classify(["a.jpg", "b.jpg"]):
            if prediction.unreadable is None:
                print(prediction.file, prediction.classes[0], prediction.probabilities[0])
        result = cifnet_pl.extend(model, "new_classes")  # one sub-folder of images for each class
        result.model.save("flowers_2")
    """

    image_size: int = 0
    crop_ratio: float = 1.0
    held_out: tuple[float, int] | None = None
    history: list[Event] = field(default_factory=list)
    precision: str = FLOAT32
    engines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.image_size:
            self.image_size = self.backbone.preprocessing.image_size
            self.crop_ratio = self.backbone.preprocessing.crop_ratio

    def prepare(self, images: Mapping[str, Any], precision: str) -> None:
        """Take over how a run prepares images, and in which precision it embeds them.

        Args:
            images: from ``CIFNetDataModule.describe_images``.
            precision: of the Trainer.
        """
        self.image_size = images["image_size"]
        self.crop_ratio = images["crop_ratio"]
        self.held_out = images["held_out"]
        self.precision = precision

    # ------------------------------------------------------------------ what is known

    @property
    def tasks(self) -> list[list[str]]:
        """Class names of each task, in the order learned."""
        name_of = self.name_of
        return [[name_of[label] for label in task] for task in self.head.tasks]

    @property
    def name_of(self) -> dict[int, str]:
        """Label in the head → class name."""
        return dict(zip(self.head.classes, self.class_names, strict=True))

    def classes_of_hashes(self) -> dict[int, frozenset[str]]:
        """Return the classes in which each image was learned, by its content hash."""
        # Images of one class share their set: to make one for each takes most of the time.
        own = {label: frozenset([name]) for name, label in self.label_of.items()}
        classes: dict[int, frozenset[str]] = {}
        labels = self.images.image_labels.tolist()
        hashes = self.images.content.tolist()
        for label, content_hash in zip(labels, hashes, strict=True):
            names = own[label]
            if content_hash in classes:
                names |= classes[content_hash]
            classes[content_hash] = names
        return classes

    @property
    def counts(self) -> dict[str, int]:
        """Class name → number of images learned, duplicates included."""
        return dict(
            zip(self.class_names, self.head.class_counts().values(), strict=True)
        )

    @property
    def identity(self) -> str:
        """Hash of class names and tensors, 16 hex digits; later models name it as their parent."""
        tensors = self.tensors()
        for name in self.images.state_dict(prefix="images."):
            del tensors[name]
        return fingerprint(repr(self.class_names), tensors)[:16]

    @property
    def engine(self) -> str:
        """Engine that runs the backbone now: "torch" or "onnxruntime"."""
        return self.backbone.engine(self.backbone.device.type, self.precision)

    def labels(self, names: Iterable[str]) -> list[int]:
        """Return the head's label of each class name.

        Raises:
            UsageError: a name that is not known.
        """
        label_of = self.label_of
        labels = []
        for name in map(class_name, names):
            if name not in label_of:
                known = [printable(known) for known in self.class_names]
                raise unknown_name("class", printable(name), known)
            labels.append(label_of[name])
        return labels

    def class_name_warnings(self, names: Sequence[str]) -> list[str]:
        """Return warnings about classes to be learned: spelled in two ways, or removed before."""
        warnings = []
        spellings = similar_spellings_message(names, self.class_names)
        if spellings:
            warnings.append(spellings)
        known = set(self.class_names)
        new = [printable(name) for name in names if name not in known]
        if new and self.removals:
            warnings.append(
                "note: a class was removed from this model without its images; if it is among"
                f" {listed(new)}, those images count against it"
            )
        return warnings

    @property
    def removals(self) -> list[Event]:
        """Steps in which classes were removed without their images.

        These may still count as negatives of what is learned; there are none for a head of which
        they do not.
        """
        if not self.head.counterexamples:
            return []
        return [
            event
            for event in self.history
            if event.kind == "forget" and event.images is None
        ]

    def estimated_accuracy(self) -> dict[str, Any]:
        """Return the accuracy that is expected on new images, without any test images.

        Returns:
            ``loo_accuracy``, the leave-one-out accuracy of the buffer samples, and
            ``new_group_accuracy``, that on new groups, in percent; with ``_interval`` behind the
            name the 95 % interval of each, (low, high). None where not known.

        Example::

            model.estimated_accuracy()["loo_accuracy"]
        """
        return self.calibration.describe()

    def accuracy_sentences(self) -> list[str]:
        """Return sentences on decision rule, leave-one-out accuracy and accuracy on new groups."""
        sentences = []
        kind = self.calibration.estimate_kind
        loo, new_groups = self.calibration.estimates
        if loo is not None and self.buffer is not None:
            counted = self.calibration.counted(self.buffer.y, self.buffer.key)
            learned = sum(self.head.class_counts().values())
            facts = [f"{counted.sum()} of {learned} images"]
            if kind == "independent":
                facts.append("no groups found")
            sentences.append(f"Leave-one-out accuracy {loo.sentence(*facts)}")
        if new_groups is not None and kind in ACCURACY_ON_NEW_GROUPS:
            name = ACCURACY_ON_NEW_GROUPS[kind]
            facts = self._lacking_groups()
            sentences.append(f"{name} {new_groups.sentence(*facts)}")
        elif kind in NOT_ESTIMATED:
            reason = NOT_ESTIMATED[kind]
            sentences.append(f"Accuracy on new groups not estimated: {reason}")
        if sentences and self.head.decision_rule is not None:
            sentences.insert(0, f"Decision rule: {self.head.decision_rule}")
        return sentences

    def _lacking_groups(self) -> list[str]:
        """Return of how many classes the buffer holds no group; nothing where each has one."""
        calibration = self.calibration
        if self.buffer is None or calibration.estimate_kind == "measured":
            return []
        if not calibration.leaves_groups_out:
            return []
        labels = self.buffer.y[self.buffer.group >= 0]
        lacking = len(self.class_names) - len(torch.unique(labels))
        if not lacking:
            return []
        return [f"the buffer holds no group of {number_of(lacking, 'class')}"]

    def coverage_notes(self) -> list[str]:
        """Return why prediction sets and the threshold for unknowns may not hold on new groups."""
        reasons = self._lacking_groups()
        if self.calibration.estimate_kind == "incomplete":
            reasons = [NOT_ESTIMATED["incomplete"]]
        return [f"note: on new groups this may not hold: {why}" for why in reasons]

    def calibration_notes(self) -> list[str]:
        """Return how to calibrate the probabilities; nothing where they are calibrated."""
        if self.calibrates:
            return []
        means = "cifnet evaluate --recalibrate true"
        if self.head.leaves_one_out:
            means = f"learn with a buffer and --model.calibrate true, or {means}"
        return [f"probabilities not calibrated: {means}"]

    def state_elements(self) -> dict[str, int]:
        """Count the elements kept between tasks: the head's by component, and the buffer's."""
        elements = self.head.state_elements()
        elements["buffer"] = 0
        if self.buffer is not None:
            elements["buffer"] = self.buffer.z.numel()
        return elements

    # ------------------------------------------------------------------ copies and storage

    @property
    def stored_modules(self) -> dict[str, nn.Module]:
        """Name → module whose tensors are stored; with the backbone only where it was learned."""
        modules: dict[str, nn.Module] = {"head": self.head}
        if self.buffer is not None:
            modules["buffer"] = self.buffer
        modules["images"] = self.images
        modules["calibration"] = self.calibration
        if self.backbone.weights_in_model:
            modules["backbone"] = self.backbone
        return modules

    def to(self, device: torch.device | str) -> Classifier:
        """Move everything to a device, in place; only the backbone to one without float64."""
        self._predictors.clear()
        self.backbone.to(device)
        for module in self.stored_modules.values():
            module.to(device)
        return self

    def clone(self) -> Classifier:
        """Return a copy that learns on its own; the frozen backbone is shared."""
        shared = {id(self.backbone): self.backbone, id(self._predictors): {}}
        return copy.deepcopy(self, shared)

    def describe(self) -> dict[str, Any]:
        """Return everything but the tensors, as plain numbers, strings, lists and dictionaries."""
        return {
            "backbone": self.backbone.describe(),
            "precision": self.precision,
            "engines": self.engines,
            "images": {
                "image_size": self.image_size,
                "crop_ratio": self.crop_ratio,
                "held_out": self.held_out,
            },
            "head": {"class": import_name(type(self.head)), **self.head.settings()},
            "buffer": self.buffer and self.buffer.settings(),
            "class_names": self.class_names,
            "history": [asdict(event) for event in self.history],
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors on the CPU, by module and name, such as ``head.weights``."""
        stored = nn.ModuleDict(self.stored_modules).state_dict()
        return {name: value.cpu().contiguous() for name, value in stored.items()}

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a bundle (see :mod:`cifnet_pl.model.bundle`).

        Args:
            folder: of the bundle; it is made if it is missing.
            overwrite: whether a bundle that is there may be replaced.

        Raises:
            UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds
                other files; the model has an unknown precision.
            DataError: a class name that could not be read back.
            CifnetError: the disk is full or not writable; an old bundle is left as it was.
        """
        class_names(self.class_names, "this model")
        check_precision(self.precision)
        write_bundle(self.describe(), self.tensors(), Path(folder), overwrite)

    def to_onnx(self) -> Export:
        """Return this model as one ONNX graph that classifies anywhere.

        It takes images, or embeddings if the model has learned those, and gives probabilities and,
        if the head has it, novelty. Its metadata have the class names, the preprocessing and the
        novelty threshold for ``UNKNOWN_SHARE``.

        Returns:
            The content of a file, and its largest differences from torch.

        Raises:
            CifnetError: this backbone or head cannot be expressed, or the check failed.

        Example::

            Path("flowers.onnx").write_bytes(model.to_onnx().content)
        """
        # A copy, of the backbone, too: another thread may use it.
        model = copy.deepcopy(self).to("cpu")
        graph = HeadGraph(model.head)
        if model.backbone.takes_images:
            square = Square(model.image_size, model.crop_ratio)
            graph = Graph(model.head, model.backbone, square)
        metadata = {
            "class_names": json.dumps(model.class_names),
            "backbone": f"{model.backbone.name} sha256 {model.backbone.sha256}",
            "image_size": str(model.image_size),
            "crop_ratio": str(model.crop_ratio),
        }
        shares = model.available_shares(unknown=UNKNOWN_SHARE)
        reference = model.open_set_predictor(*shares).reference
        if reference is not None:
            limit = reference.threshold(1 - UNKNOWN_SHARE)
            above = limit if math.isfinite(limit) else None
            metadata["unknown_above"] = json.dumps({f"{UNKNOWN_SHARE:g}": above})
        return onnx_bytes(graph, metadata)

    # ------------------------------------------------------------------ prediction

    def embed(self, images: Tensor, name: Callable[[int], str] | None = None) -> Tensor:
        """Embed square images with the frozen backbone.

        Args:
            images: (n, 3, s, s) uint8 with s = ``image_size``, on any device.
            name: position in ``images`` → what an error calls that image.

        Returns:
            (n, d) float32 embeddings, on the device of the statistics.

        Raises:
            NonFiniteError: an embedding holds NaN or infinity.
        """
        z = self.embed_unchecked(images)
        check_embeddings(z, z.shape[1], name)
        return z

    def embed_unchecked(self, images: Tensor) -> Tensor:
        """Embed as :meth:`embed`, but without looking at the embeddings, for which a GPU waits."""
        device = self.backbone.device
        dtype = REDUCED.get(check_precision(self.precision))
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            z: Tensor = self.backbone(images.to(device))
        return z.to(self.device)

    def probabilities(self, images: Tensor) -> Tensor:
        """Return the calibrated probabilities of images.

        Args:
            images: (n, 3, s, s) uint8.

        Returns:
            (n, C) float64, columns as ``class_names``.
        """
        return self.head.probabilities(self.embed(images))

    def classify(
        self,
        images: GivenImages,
        top: int = 5,
        *,
        unknown: float | None = None,
        coverage: float | None = None,
    ) -> Iterator[Prediction]:
        """Yield the ``top`` most probable classes of each image, in order and constant memory.

        Args:
            images: one image or many, see :data:`~cifnet_pl.images.reader.GivenImages`; or
                embeddings (n, d) of floats in an array or tensor. For a model of embeddings, a
                single path is a file .npz or .parquet with ``embeddings`` (n, d) and, if wanted,
                ``ids`` (n,).
            top: number of classes.
            unknown: share of images of known classes that may be called unknown; None not to tell.
            coverage: probability with which a prediction set holds the true class; None for none.

        Raises:
            DataError: a single path where there is no image; something that is no image; a file of
                embeddings is missing or damaged.
            UsageError: a share outside (0, 1), or no calibration samples.
            UnsupportedError: this model's head cannot tell what is asked.
            CifnetError: the embeddings have another width than those that were learned, or hold NaN
                or infinity.
        """
        # Built before the first image is read, so that errors come at once.
        predictor = self.open_set_predictor(unknown, coverage)
        if are_embeddings(images):
            return self._predict(as_tensor(images, self.device), top, predictor)
        if isinstance(images, str | Path) and not self.backbone.takes_images:
            return self._classify_embeddings(Path(images), top, predictor)
        return self._classify_images(images, top, predictor)

    def _classify_images(
        self,
        images: GivenImages,
        top: int,
        predictor: OpenSetPredictor,
    ) -> Iterator[Prediction]:
        for batch in decode_images(
            iterate_images(images),
            self.image_size,
            self.crop_ratio,
            device=self.backbone.device.type,
        ):
            z = self.embed(batch.images, batch.location)
            readable = self._predict(z, top, predictor)
            for image, reason in zip(batch.files, batch.unreadable, strict=True):
                prediction = Prediction(unreadable=reason)
                if reason is None:
                    prediction = next(readable)
                if isinstance(image, Path):
                    prediction = replace(prediction, file=image)
                yield prediction

    def _classify_embeddings(
        self,
        file: Path,
        top: int,
        predictor: OpenSetPredictor,
    ) -> Iterator[Prediction]:
        samples = open_table(file).samples(labels=None)
        for rows in cut_batches(np.arange(len(samples)), EMBEDDED_BATCH):
            z = samples.get(rows).to(self.device)
            predictions = self._predict(z, top, predictor)
            for name, prediction in zip(
                samples.names_of(rows), predictions, strict=True
            ):
                yield replace(prediction, file=Path(f"{file}#{name}"))

    def _predict(
        self,
        z: Tensor,
        top: int,
        predictor: OpenSetPredictor,
    ) -> Iterator[Prediction]:
        """Yield the predictions for embeddings (n, d)."""
        probabilities = self.head.probabilities(z)
        best = probabilities.topk(min(top, len(self.class_names)), dim=1)
        decisions = predictor.decisions(z, probabilities)
        for row, decision in enumerate(decisions):
            columns = best.indices[row].tolist()
            yield Prediction(
                **vars(decision),
                classes=tuple(self.class_names[column] for column in columns),
                probabilities=tuple(best.values[row].tolist()),
            )

    def available_shares(
        self,
        unknown: float | None = None,
        coverage: float | None = None,
    ) -> tuple[float | None, float | None]:
        """Return the two shares, with None in place of one that this model cannot promise.

        Args:
            unknown, coverage: as for :meth:`classify`.
        """
        samples = self.calibration_samples()
        if samples is None:
            return None, None
        if not self.head.tells_novelty:
            unknown = None
        if samples.learned and not self.head.leaves_one_out:
            coverage = None
        return unknown, coverage

    def open_set_predictor(
        self,
        unknown: float | None = None,
        coverage: float | None = None,
    ) -> OpenSetPredictor:
        """Return the predictor of unknown samples and prediction sets for the present model.

        A changed model needs another one.

        Args:
            unknown, coverage: as for :meth:`classify`.

        Raises:
            UsageError, UnsupportedError: as for
                :class:`~cifnet_pl.model.calibration.OpenSetPredictor`.
        """
        key = (self.head.revision, unknown, coverage)
        if key not in self._predictors:
            samples = None
            if unknown is not None or coverage is not None:
                samples = self.calibration_samples()
            self._predictors[key] = OpenSetPredictor(
                self.head, self.class_names, samples, unknown, coverage
            )
        return self._predictors[key]

    # ------------------------------------------------------------------ learning

    def observe_all(self, batches: Batches) -> None:
        """Embed and observe the samples of the task begun last.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or infinity; names the image.
        """
        samples = batches.loader.samples
        for batch in batches.with_keys():
            z = batch[0]
            if samples.are_images:
                places = [samples.place(row) for row in batch.row.tolist()]
                z = self.embed(z, places.__getitem__)
            self.observe(z, batch.label, batch.key)

    def learn(self, task: Task) -> None:
        """Learn one task; for a custom training loop without Lightning.

        Args:
            task: the next one of a :class:`~cifnet_pl.data.datamodule.CIFNetDataModule`.

        Raises:
            UsageError: the model knows another number of classes than the tasks before it have.
            UnsupportedError: samples of earlier classes return, which the head cannot add.

        Example::

            for task in data:
                model.learn(task)
        """
        if len(self.class_names) != task.classes_before:
            raise UsageError(
                f"the model knows {number_of(len(self.class_names), 'class')}, but"
                f" {task.classes_before} come before task {task.number + 1}: give the tasks of one"
                " stream in their order to a model that knows none"
            )
        loader = task.train.loader
        if loader.samples.are_images:
            self.image_size = loader.size
            self.crop_ratio = loader.crop_ratio
        self.begin_task([*task.class_names, *task.returning])
        self.observe_all(task.train)
        self.finish_task()

    # ------------------------------------------------------------------ history

    def record_event(self, kind: str, images: int | None = None, **values: Any) -> None:
        """Add a step to the history, with the number of classes and the date.

        Args:
            kind: of the step.
            images: number of images taken in or out.
            values: other fields of :class:`~cifnet_pl.model.bundle.Event`.
        """
        self.history.append(
            Event(kind, len(self.class_names), images, date=now(), **values)
        )

    def record_engines(self, names: Iterable[str]) -> None:
        """Record engines that embed what is learned from now on."""
        for name in names:
            if name not in self.engines:
                self.engines.append(name)

    # ------------------------------------------------------------------ calibration

    def recalibrated(self, z: Tensor, y: Tensor, key: Tensor) -> Classifier:
        """Return this model calibrated by labelled images that it has not learned.

        Temperature, prediction sets and the novelty threshold are fitted to these images from now
        on, after every change. Images that are learned later are no longer among them.

        Args:
            z: (n, d) embeddings.
            y: (n,) labels, as ``labels`` gives them.
            key: (n,) int64 content hash of each image.

        Raises:
            UsageError: fewer than 20 images that were not learned.
        """
        model = self.clone()
        model.calibration.replace_new_images(buffer_samples(z, y, key))
        model.calibrated = True
        model.calibrate()
        count = len(model.calibration.y)
        if count < MIN_NEW_IMAGES:
            raise UsageError(
                f"{number_of(count, 'labelled image')} that the model has not learned cannot"
                f" calibrate it: give at least {MIN_NEW_IMAGES}"
            )
        accuracy = model.calibration.describe()["new_group_accuracy"]
        model.record_event("recalibrate", accuracy=accuracy, parents=[self.identity])
        return model

    # ------------------------------------------------------------------ changes of classes

    def rename(self, old: str, new: str) -> None:
        """Rename class ``old`` to ``new``; labels, statistics and the buffer stay as they are.

        Raises:
            UsageError: ``old`` is not known, ``new`` is the name of another class, or it could not
                be stored.
        """
        label = self.labels([old])[0]
        (new,) = class_names([new], "the request", UsageError)
        if new != class_name(old) and new in self.class_names:
            raise UsageError(
                f"cannot rename class '{printable(old)}': there is a class '{printable(new)}'"
                " already"
            )
        self.class_names[self.head.classes.index(label)] = new
        self._predictors.clear()

    def remove_classes(self, names: Sequence[str]) -> None:
        """Remove classes from the label space and the buffer; their statistics stay.

        Raises:
            UsageError: a class that is not known, or all of them.
        """
        labels = self.labels(names)
        name_of = self.name_of
        self.head.remove_classes(labels)
        self.class_names = [name_of[label] for label in self.head.classes]
        if self.buffer is not None:
            self.buffer.remove_classes(labels)
        self.images.remove(labels)
        chosen = self.calibration.chosen
        is_learned = torch.isin(chosen, self.images.content)
        self.calibration.chosen = chosen[is_learned]
        if self.head.solved:
            self.calibrate()
        else:
            self.solve()
