"""The LightningModule that learns a stream of tasks, one per epoch, and evaluates over all classes
after each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from pydantic import Field
from torch import Tensor
from torchmetrics import Metric

from cifnet_pl.backbones import Backbone, backbone_imports
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.loading import Batch
from cifnet_pl.model.bundle import FORMAT, ImagesTable, Table, check_format, parse
from cifnet_pl.model.metrics import (
    ECE_BINS,
    TOP_K,
    binned_calibration_error,
    confidence_bins,
    percent,
    raise_predicted,
)
from cifnet_pl.utilities.errors import CheckpointError, DataError, UsageError, explained
from cifnet_pl.utilities.files import flatten, to_csv, write_text
from cifnet_pl.utilities.plugins import about, code_hash, entry_point, import_name, names_import


@dataclass
class Evaluation:
    """Result of one evaluation over all classes seen: percentages, NLL in nats, None if nothing was
    tested.

    Attributes:
        accuracy: A_k, over all test images.
        task_accuracy: on the classes, or the domain, of each task.
        ece: expected calibration error.
        nll: mean of ``−log p`` at the true class.
        seconds: time that the evaluation took.
        top5: share of images whose class is among the five most probable; None with up to five
            classes, when it is 100.
        confusion: (C, C) int64 numbers of images, rows the true classes, columns the answers.
        accuracy_by: accuracy for each way of answering, if the module has more than one.
    """

    accuracy: float | None
    task_accuracy: list[float | None]
    ece: float | None
    nll: float | None
    seconds: float
    top5: float | None
    confusion: np.ndarray = field(compare=False)
    accuracy_by: dict[str, float | None]

    def metrics(self) -> dict[str, float]:
        """Return what was measured: ``A_k``, ``ece``, ``nll``, ``top5``, and ``A_k1``, ``A_k2``, …
        of each task.

        If there are several ways of answering, also ``A_k_classifier`` and so on.
        """
        named: dict[str, float | None] = {
            "A_k": self.accuracy,
            "ece": self.ece,
            "nll": self.nll,
            "top5": self.top5,
        }
        named |= {f"A_k{j}": accuracy for j, accuracy in enumerate(self.task_accuracy, 1)}
        named |= {f"A_k_{way}": accuracy for way, accuracy in self.accuracy_by.items()}
        return {name: value for name, value in named.items() if value is not None}


class EvaluationCounts(Metric):
    """Counts of one evaluation, summed over processes.

    Everything follows from sums: torchmetrics' own ``MulticlassCalibrationError`` keeps every
        confidence, and for a
    million images these small tensors hold a C library's heap apart, hundreds of megabytes.

    Args:
        task_sizes: number of classes of each task learned; columns 0 … C−1 are its classes in this
            order.
        domains: number of domains, where accuracies are by domain; None for accuracies by task.
        ways: names of the ways of answering, where there are several.
    """

    full_state_update = False
    confusion: Tensor  # (C, C) true classes in rows
    among_first: Tensor  # images whose class is among the five most probable
    bins: Tensor  # (bins + 1, 3) images, sum of confidences, and right answers, by confidence
    likelihood: Tensor  # sum of log p at the true class
    by_domain: Tensor  # (domains, 2) right answers, and images
    by_way: Tensor  # (ways,) right answers

    def __init__(
        self, task_sizes: Sequence[int], domains: int | None = None, ways: Sequence[str] = ()
    ):
        super().__init__()
        self._start = time.perf_counter()
        self.task_sizes = task_sizes
        self.domains = domains
        self.ways = ways
        classes = sum(task_sizes)
        self._count("confusion", classes, classes)
        self._count("among_first")
        self._count("bins", ECE_BINS + 1, 3, dtype=torch.float64)
        self._count("likelihood", dtype=torch.float64)
        self._count("by_domain", domains or 1, 2)
        self._count("by_way", max(len(ways), 1))

    def _count(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def update(
        self,
        probabilities: Tensor,
        label: Tensor,
        domain: Tensor | None = None,
        by_way: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Count a batch; of equal probabilities the lower column comes first.

        Args:
            probabilities: (n, C) float64, n at least 1.
            label: (n,) int64 true columns.
            domain: (n,) int64 domain of each image, where accuracies are by domain.
            by_way: way of answering → (n, C) its probabilities.
        """
        raised, answer = raise_predicted(probabilities)
        right = answer == label
        self.confusion.view(-1).index_add_(
            0, label * len(self.confusion) + answer, torch.ones_like(answer)
        )
        at_label = raised.gather(1, label[:, None])
        before = torch.arange(raised.shape[1], device=label.device) < label[:, None]
        rank = ((raised > at_label) | ((raised == at_label) & before)).sum(dim=1)
        self.among_first += (rank < TOP_K).sum()
        self.bins += confidence_bins(probabilities.amax(dim=1), right)
        likelihood = probabilities.gather(1, label[:, None]).clamp_min(
            torch.finfo(probabilities.dtype).tiny
        )
        # As float32 first: such numbers add up in float64 to the same sum in whatever order and
        # batches.
        self.likelihood += likelihood.log().float().double().sum()
        if domain is not None:
            self.by_domain.index_add_(
                0, domain, torch.stack([right, torch.ones_like(right)], dim=1).long()
            )
        for column, way in enumerate(self.ways):
            self.by_way[column] += ((by_way or {})[way].argmax(dim=1) == label).sum()

    def compute(self) -> Evaluation:
        """Turn the counts of all processes into A_k, per-task accuracies, ECE and NLL."""
        confusion = self.confusion.cpu().numpy()
        tested = int(confusion.sum())
        nll = None
        if tested:
            nll = float(-self.likelihood / tested)
        return Evaluation(
            accuracy=percent(int(confusion.trace()), tested),
            task_accuracy=[percent(right, images) for right, images in self._by_task(confusion)],
            ece=binned_calibration_error(self.bins),
            nll=nll,
            seconds=time.perf_counter() - self._start,
            top5=percent(int(self.among_first), tested) if len(confusion) > TOP_K else None,
            confusion=confusion,
            accuracy_by={
                way: percent(int(self.by_way[i]), tested) for i, way in enumerate(self.ways)
            },
        )

    def _by_task(self, confusion: np.ndarray) -> list[list[int]]:
        """Return the right answers and the images of each task, or of its domain."""
        if self.domains is not None:
            counts: list[list[int]] = self.by_domain[: len(self.task_sizes)].tolist()
            return counts
        by_class = np.stack([confusion.diagonal(), confusion.sum(axis=1)], axis=1)
        return [
            part.sum(axis=0).tolist()
            for part in np.split(by_class, np.cumsum(self.task_sizes)[:-1])
        ]


class StoredRun(Table):
    """The part of a checkpoint that :class:`cifnet_pl.learning.task_module.TaskModule` adds and a
    run needs.
    """

    under_way: bool
    closing: bool
    class_names: list[str]
    task_sizes: list[Annotated[int, Field(ge=0)]]
    settings: dict[str, Any]
    images: ImagesTable
    precision: str


class TaskModule(LightningModule):
    """A module for which a task is an epoch: it opens tasks, evaluates after each, and numbers the
    classes.

    Subclasses learn in ``training_step`` and finish a task in ``finish_task``; they score in
    ``probabilities``.

    Attributes:
        title: name in tables and figures; the class's own without "Module" if empty.
        backbone: set by subclasses; says how the data module must prepare images.
        epochs: passes over a task's images that learn from them.
        ways: names of the ways in which the module can answer, where it has several and all are
            evaluated.
        learned_tasks: class names of each task begun, in order.
        evaluation: result of the last evaluation.
        solve_seconds: time that ``finish_task`` took for the last task.
        preparing: seconds that were spent before the first task and count to it.
    """

    title: ClassVar[str] = ""
    backbone: Backbone
    epochs: int = 1
    ways: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.learned_tasks: list[list[str]] = []
        self.evaluation: Evaluation | None = None
        self.solve_seconds = self.preparing = 0.0
        self._evaluated: EvaluationCounts | None = None
        self._under_way = self._closing = False

    # ------------------------------------------------------------------ what subclasses do in their
    # own way

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned, one array per pass.

        It is called more than once for a task, before ``begin_task`` too.

        Args:
            rows: (n,) positions of the task's training images.
            task: number of the task, from 0.
        """
        return [rows]

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the classes of a new task.

        Args:
            names: of its classes.
            labels: of its classes.
        """

    def finish_task(self) -> None:
        """Learn what is left to learn once all batches of a task have been seen."""

    def abort_task(self, labels: list[int]) -> None:
        """Forget what was seen of a task that was under way when the run stopped."""

    @property
    def goes_on_inside(self) -> bool:
        """Whether the task that is opened next was under way when the run stopped, and goes on
        there.
        """
        return False

    @property
    def resumable_now(self) -> bool:
        """Whether a run can go on inside the task from a checkpoint that is written after this
        batch.
        """
        return False

    def check_returning(self) -> None:
        """Check that this module can learn samples of classes that it has learned in an earlier
        task.

        Raises:
            UsageError: it cannot.
        """
        raise UsageError(
            f"{type(self).__name__} learns each class in one task, but with --data.stream"
            f" {type(self.data.plan.kind).__name__} classes return: leave that out, or choose"
            " LongTailed"
        )

    def probabilities(self, batch: Batch) -> Tensor:
        """Return (n, C) float64 class probabilities of an evaluation batch, column c for label
        c.
        """
        raise NotImplementedError

    def probabilities_by_way(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the probabilities that count, and those of each of ``ways``."""
        return self.probabilities(batch), {}

    def settings(self) -> dict[str, Any]:
        """Return what a checkpoint's tensors depend on; compared on loading."""
        return {"module": type(self).__name__}

    def describe(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the model: head with its title and defaults,
        backbone, precision.

        ``network_params`` are those of one network, ``backbone_params`` of all that answer.
        """
        name = self.backbone.name
        parameters = self.backbone.parameters_count
        own = {
            "head": type(self).__name__,
            **about(type(self)),
            "backbone": name,
            "backbone_params": parameters,
        }
        own |= {"network_params": parameters, "precision": str(self.trainer.precision)}
        return {**own, "outside_code": self.outside_code()}

    def outside_code(self) -> dict[str, str | None]:
        """Return the parts from outside the package, with the SHA-256 of the file of each as it was
        at the start.
        """
        source = entry_point("sources", self.data.source_name) or self.data.source_name
        names = [
            *backbone_imports(self.backbone.name, self.backbone.architecture),
            *self.imported_parts(),
            source,
        ]
        return {name: code_hash(name) for name in names if names_import(name)}

    @property
    def needs_trust(self) -> bool:
        """Whether reading a model of this module imports code from outside the package."""
        return bool(backbone_imports(self.backbone.name, self.backbone.architecture))

    def imported_parts(self) -> list[str]:
        """Return the names of the classes that learn, as files have them."""
        return [import_name(type(self))]

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks, by component."""
        return {"parameters": sum(p.numel() for p in self.parameters())}

    def bytes_of(self, component: str) -> int:
        """Return the bytes of one number of a component of :meth:`state_elements`."""
        return 4

    # ------------------------------------------------------------------ the task protocol

    @property
    def data(self) -> CIFNetDataModule:
        """The data module that feeds this module."""
        return cast(CIFNetDataModule, cast(Any, self.trainer).datamodule)

    @property
    def class_names(self) -> list[str]:
        """Name of each label 0, 1, …; append-only, so that a class added later never shifts
        another.
        """
        return [name for names in self.learned_tasks for name in names]

    @property
    def tasks_finished(self) -> int:
        """Number of tasks that are learned completely."""
        return len(self.learned_tasks) - self._under_way

    def configure_optimizers(self) -> list[Any]:
        """Return no optimizer: nothing here is trained by gradients."""
        return []

    def on_fit_start(self) -> None:
        """Count the tasks that are left, and set what every run needs, however its Trainer was
        made.

        A task that was under way when the checkpoint was written (a signal, a SLURM requeue) is
        taken back.
        """
        if self._under_way:
            classes = len(self.class_names)
            names = self.learned_tasks.pop()
            self.abort_task(list(range(classes - len(names), classes)))
            self._under_way = False
        if self.data.plan.kind.samples_return:
            self.check_returning()
        self.outside_code()  # the hashes are kept from here on, whatever is edited while the run goes on
        _ = self.data.found_duplicates  # found before the first task is counted
        trainer = self.trainer
        tasks = len(self.data.stream(self.learned_tasks))
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs < tasks:
            rank_zero_info(
                f"max_epochs is {trainer.max_epochs}, but a task is one epoch, and all {tasks}"
                f" tasks are learned: for fewer give max_tasks={trainer.max_epochs} to the data"
                " module"
            )
        trainer.fit_loop.max_epochs = tasks
        # A module that has learned before goes on where it stopped, with any Trainer.
        epochs = trainer.fit_loop.epoch_progress
        steps = trainer.fit_loop.epoch_loop.manual_optimization
        for counts in (epochs.current, epochs.total, steps.optim_step_progress.total):
            for name in vars(counts):
                setattr(counts, name, self.tasks_finished)
        cast(Any, trainer).reload_dataloaders_every_n_epochs = 1  # a task is an epoch
        # Lightning would evaluate at the start, and before on_train_epoch_end: both times an
        # unsolved head.
        trainer.num_sanity_val_steps = 0
        trainer.check_val_every_n_epoch = 2**62

    def on_train_epoch_start(self) -> None:
        """Open the task of this epoch."""
        names = self.data.task_classes(self.data.task)
        start = len(self.class_names)
        self.learned_tasks.append(names)
        self._under_way = True
        self._closing = False
        self.preparing = 0.0
        self.begin_task(names, list(range(start, len(self.class_names))))

    def on_train_epoch_end(self) -> None:
        """Finish the task, count it as one optimizer step, evaluate."""
        start = time.perf_counter()
        self._closing = True  # no run can go on from a checkpoint that is written now
        self.finish_task()
        self.solve_seconds = time.perf_counter() - start
        self._under_way = self._closing = False
        # Without an optimizer global_step stays 0, and Lightning's ModelCheckpoint silently saves
        # nothing.
        trainer = self.trainer
        progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()
        # Lightning's own validation loop inside the training loop, as it runs it itself mid-epoch.
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    def refuse_empty(self, names: list[str]) -> None:
        """Check that every class has an image.

        Args:
            names: classes of which no image could be learned.

        Raises:
            DataError: there is one.
        """
        if names:
            raise DataError(
                f"no image of class '{names[0]}' was learned: none could be read, or trainer"
                " options limit the batches"
            )

    # ------------------------------------------------------------------ evaluation

    def on_validation_epoch_start(self) -> None:
        """Start counting over all classes seen."""
        if not self.class_names:
            raise UsageError("nothing is learned yet: give a checkpoint with --ckpt_path")
        domains = self.data.plan.evaluated
        sizes = [len(names) for names in self.learned_tasks]
        count = None if domains is None else len(domains.names)
        self._evaluated = EvaluationCounts(sizes, count, self.ways).to(self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count a batch.

        Returns:
            Its probabilities (n, C), which callbacks get as ``outputs``; None if it is empty.
        """
        if not len(batch.label):
            return None
        assert self._evaluated is not None
        probabilities, by_way = self.probabilities_by_way(batch)
        domains = self.data.plan.evaluated
        domain = None
        if domains is not None:  # as positions in the order of learning
            domain = torch.from_numpy(domains.val[batch.row.cpu().numpy()]).to(self.device)
        self._evaluated.update(probabilities, batch.label, domain, by_way)
        return probabilities

    def on_validation_epoch_end(self) -> None:
        """Turn the counts of all processes into A_k, per-task accuracies, ECE and NLL."""
        assert self._evaluated is not None
        self.evaluation = result = self._evaluated.compute()
        if self.trainer.state.fn != "fit":
            self.log_dict(result.metrics(), sync_dist=True)  # what Trainer.validate returns
        elif result.accuracy is not None:
            self.log(
                "A_k", result.accuracy, prog_bar=True, logger=False, sync_dist=True
            )  # the same on all processes

    def on_validation_end(self) -> None:
        """Give the cache what each process embedded."""
        self.data.share_collected()

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_predict_end = on_validation_end

    def predict_step(self, batch: Batch, batch_idx: int) -> tuple[Tensor, Tensor, Tensor]:
        """Predict the most probable class of each image.

        Args:
            batch: n images or embeddings.
            batch_idx: not used.

        Returns:
            (n,) int64 rows of the images in their set, (n,) int64 labels, (n,) float64
            probabilities.
        """
        top = self.probabilities(batch).max(dim=1)
        return batch.row, top.indices, top.values

    # ------------------------------------------------------------------ checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class map, the settings, how images are prepared, and whether a task is under
        way.

        Such a task starts again on resume.
        """
        checkpoint["cifnet"] = {
            "format": FORMAT,
            "under_way": self._under_way,
            "closing": self._closing,
            "class_names": list(self.class_names),
            "task_sizes": [len(names) for names in self.learned_tasks],
            "settings": self.settings(),
            "images": self.data.describe_images(self.backbone.preprocessing),
            "precision": str(self.trainer.precision),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint belongs to this module, and take over its class map.

        Raises:
            CheckpointError: another format, module, backbone, head or buffer than this run's; a
                damaged one; one that holds weights only, or was written while a task was being
                solved, where a run is to go on.
        """
        stored = read_stored(checkpoint)
        require_same(self.settings(), stored.settings)
        names = iter(stored.class_names)
        self.learned_tasks = [[next(names) for _ in range(size)] for size in stored.task_sizes]
        self._under_way = stored.under_way
        if self._trainer is not None:
            images = self.data.describe_images(self.backbone.preprocessing)
            require_same(image_options(images), image_options(stored.images.model_dump()))
        goes_on = self._trainer is not None and self.trainer.state.fn == "fit"
        if stored.closing or (self._under_way and not goes_on):
            if stored.closing:
                moment = "while it was being solved"
            else:
                moment = "in its middle: fit can go on from it, else"
            raise CheckpointError(
                f"the checkpoint does not hold task {len(self.learned_tasks)}, it was written"
                f" {moment}; use another one, such as last.ckpt of the run's folder"
            )
        if goes_on:
            require_same(
                {"precision": str(self.trainer.precision)}, {"precision": stored.precision}
            )
            rewind_checkpoint(checkpoint, self.tasks_finished)


def read_stored(checkpoint: Mapping[str, Any]) -> StoredRun:
    """Read and check what ``TaskModule.on_save_checkpoint`` added to a checkpoint.

    Raises:
        CheckpointError: it is not there, or not as written there.
    """
    stored = checkpoint.get("cifnet")
    if not isinstance(stored, dict):
        raise CheckpointError(
            "the checkpoint is a plain Lightning checkpoint, not one of cifnet_pl"
        )
    check_format(stored.get("format"), "the checkpoint")
    run = parse(StoredRun, stored, "the checkpoint")
    names = run.class_names
    sizes = run.task_sizes
    if len(set(names)) < len(names) or sum(sizes) != len(names) or (run.under_way and not sizes):
        raise CheckpointError(
            "the checkpoint is damaged: its list of classes and tasks does not make sense"
        )
    return run


def rewind_checkpoint(checkpoint: Mapping[str, Any], tasks: int) -> None:
    """Set Lightning's counters to the end of a task, whichever hook the checkpoint was written in.

    Resumed without this, counters of a task that was under way would skip its hooks and its first
    batches.

    Args:
        checkpoint: it is changed in place.
        tasks: number of tasks that are finished.

    Raises:
        CheckpointError: it holds weights only.
    """
    said = (
        "the checkpoint holds weights only, or is damaged: a run can be evaluated with it, but not"
        " go on"
    )
    with explained(CheckpointError, said):
        if not checkpoint.keys() >= {"callbacks", "optimizer_states", "lr_schedulers"}:
            raise KeyError("saved with weights_only")
        fit_loop = checkpoint["loops"]["fit_loop"]
        for counts in (fit_loop["epoch_progress"]["current"], fit_loop["epoch_progress"]["total"]):
            counts.update(dict.fromkeys(("ready", "started", "processed", "completed"), tasks))
        batches = fit_loop["epoch_loop.batch_progress"]
        batches["current"].update(dict.fromkeys(batches["current"], 0))
        batches["is_last_batch"] = False


def require_same(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Compare settings with those in a checkpoint.

    Raises:
        CheckpointError: one of ``settings`` differs from ``stored``; names the first.
    """
    theirs = flatten(stored)
    for key, value in flatten(settings).items():
        stored_value = theirs.get(key)
        if type(stored_value) is not type(value) or stored_value != value:
            raise CheckpointError(
                f"the checkpoint was made with {key} = {stored_value}, this run has {value}: "
                "use the same settings, or start a new experiment"
            )


def image_options(images: Mapping[str, Any]) -> dict[str, Any]:
    """Return how images are prepared and which were held out, by the names of the data module's
    options.

    Args:
        images: from ``CIFNetDataModule.describe_images``.
    """
    fraction, seed = images["held_out"] or (None, None)
    sizes = {"image_size": images["image_size"], "crop_ratio": images["crop_ratio"]}
    return {**sizes, "val_fraction": fraction, "split_seed": seed}


class TaskCallback(Callback):
    """A callback of a run that learns: its hooks get a :class:`TaskModule`, and come during ``fit``
    alone.
    """

    def begin_evaluation(self, trainer: Trainer, module: TaskModule) -> None:
        """Prepare for the evaluation after a task."""

    def see_answers(self, module: TaskModule, probabilities: Tensor, batch: Batch) -> None:
        """Look at what the module answers on a batch of test images.

        Args:
            module: that answers.
            probabilities: (n, C) float64 class probabilities, column c for label c.
            batch: its n images or embeddings, n at least 1.
        """

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Do what is to be done once a task is learned and evaluated; all processes call it."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call :meth:`begin_evaluation`."""
        if trainer.state.fn == "fit":
            self.begin_evaluation(trainer, cast(TaskModule, pl_module))

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Call :meth:`see_answers`, except for an empty batch."""
        if trainer.state.fn == "fit" and outputs is not None:
            self.see_answers(cast(TaskModule, pl_module), outputs, batch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call :meth:`end_task`."""
        if trainer.state.fn == "fit":
            self.end_task(trainer, cast(TaskModule, pl_module))


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, or None for a Trainer without a logger; it asks the first process,
    so all call it.
    """
    if trainer.loggers and trainer.log_dir:
        return Path(trainer.log_dir)
    return None


def write_table(
    trainer: Trainer, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Write a CSV file into the run's folder, if there is one; all processes call it, and the first
    one writes.

    Args:
        trainer: of the run.
        name: of the file.
        header: names of the columns.
        rows: the cells of each row.
    """
    folder = run_folder(trainer)
    if trainer.is_global_zero and folder is not None:
        write_text(folder / name, to_csv(header, rows))


C = TypeVar("C", bound=Callback)


def callback_of(trainer: Trainer, kind: type[C]) -> C | None:
    """Return the first of a Trainer's callbacks that is of a kind; None if there is none."""
    return next(
        (callback for callback in cast(Any, trainer).callbacks if isinstance(callback, kind)), None
    )
