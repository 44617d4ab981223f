"""The LightningModule that learns a stream of tasks, one per epoch, and evaluates after each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Backbone, backbone_imports
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.run_record import RunRecord
from cifnet_pl.learning.run_state import (
    image_options,
    read_run_state,
    require_same,
    rewind_to_task_start,
)
from cifnet_pl.model.bundle import FORMAT
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.task_evaluation import TaskEvaluation
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.plugins import (
    code_hash,
    entry_point,
    import_name,
    names_import,
)


@contextmanager
def explaining_full_memory(batch_size: int) -> Iterator[None]:
    """Within the block, say what to do if the GPU's memory is full.

    Raises:
        CifnetError: it is full.
    """
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise CifnetError(
            f"the GPU's memory is full: set a smaller --data.batch_size (now {batch_size})"
        ) from error


class TaskModule(LightningModule):
    """A module for which a task is an epoch: it opens tasks and evaluates after each one.

    The life of a task is in the order of this class: ``begin_task``, ``training_step`` for each
    batch, ``end_pass``, ``finish_task`` (add up, buffer, solve, calibrate), the evaluation, the
    record. Subclasses implement these, and predict in ``probabilities``.

    Attributes:
        title: name in tables and figures; by default the class's own without "Module".
        backbone: set by subclasses; says how the data module must prepare images.
        epochs: passes over a task's images that learn from them.
        any_batch_size: whether the result is the same for batches of any size.
        can_resume_inside_task: whether a checkpoint inside a task can be resumed there.
        classifiers: names of the module's classifiers, where it has several and all are evaluated.
        by_classifier: their probabilities of the last evaluation batch, by name.
        learned_tasks: class names of each task begun, in order.
        evaluation: result of the last evaluation.
        record: what was measured after each task.
        method: the class that learns and names the method: the module's own, or a head's.
        element_bytes, buffer_bytes: size of a value of :meth:`state_elements`, and of the buffer.
        preparation_seconds: time before the first task that counts as part of it.
        cached_embeddings: number of the task's embeddings that were read, not computed.
    """

    title: ClassVar[str] = ""
    backbone: Backbone
    epochs: int = 1
    any_batch_size: ClassVar[bool] = False
    can_resume_inside_task: ClassVar[bool] = False
    classifiers: tuple[str, ...] = ()
    evaluation: TaskEvaluation | None = None

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.learned_tasks: list[list[str]] = []
        self.by_classifier: dict[str, Tensor] = {}
        self.record = RunRecord()
        self.method: type = type(self)
        self.element_bytes = 4
        self.buffer_bytes = 4
        self.preparation_seconds = 0.0
        self.cached_embeddings = 0
        self._task_start: float | None = None  # None between tasks
        self._seconds: dict[str, float] = {}
        self._under_way = False
        self._solving = False

    # ------------------------------------------------------------------ for subclasses to override

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned, one array per pass.

        It is called more than once for a task, also before ``begin_task``.

        Args:
            rows: (n,) positions of the task's training images.
            task: number of the task, from 0.
        """
        return [rows]

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Prepare for the classes of a new task.

        Args:
            names: their names.
            labels: their labels.
        """

    def end_pass(self) -> None:
        """Complete what waits for the device once all batches of a loop have been seen."""

    def finish_task(self) -> None:
        """Complete the task once all its batches have been learned from."""

    def abort_task(self) -> None:
        """Undo the task that was open when the run stopped."""

    @property
    def resumes_inside_task(self) -> bool:
        """Whether the next task was open when the run stopped, and is resumed there."""
        return False

    def check_returning(self) -> None:
        """Check that this module can learn more samples of the classes of earlier tasks.

        Raises:
            UsageError: it cannot.
        """
        raise UsageError(
            f"{type(self).__name__} learns each class in one task, but with --data.stream"
            f" {type(self.data.kind).__name__} classes return: leave that out, or choose"
            " LongTailed"
        )

    def probabilities(self, batch: Batch) -> Tensor:
        """Return (n, C) float64 class probabilities of a batch, column c for label c."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Return the settings that a checkpoint's tensors depend on; compared on loading."""
        return {"module": type(self).__name__}

    def describe(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the method, besides what it says of every one."""
        return {}

    def state_elements(self) -> dict[str, int]:
        """Count the values that are kept between tasks, by component."""
        return {"parameters": sum(p.numel() for p in self.parameters())}

    # ------------------------------------------------------------------ what is known

    @property
    def data(self) -> CIFNetDataModule:
        """The data module of the Trainer."""
        return cast(CIFNetDataModule, cast(Any, self.trainer).datamodule)

    @property
    def class_names(self) -> list[str]:
        """Name of each label 0, 1, …; append-only, so that labels never change."""
        return [name for names in self.learned_tasks for name in names]

    @property
    def tasks_finished(self) -> int:
        """Number of tasks that are learned completely."""
        return len(self.learned_tasks) - self._under_way

    @property
    def sum_over_processes(self) -> Callable[[Tensor], object] | None:
        """What replaces a tensor by its sum over all processes; None for a single process."""
        if self.trainer.world_size == 1:
            return None
        return partial(self.trainer.strategy.reduce, reduce_op="sum")

    def plugin_hashes(self) -> dict[str, str | None]:
        """Return the plug-ins of the run, with the SHA-256 of each file as it was at the start."""
        source = entry_point("sources", self.data.source_name) or self.data.source_name
        parts = [import_name(part) for part in (type(self), self.method)]
        backbone = backbone_imports(self.backbone.name, self.backbone.architecture)
        names = [*backbone, *parts, source]
        return {name: code_hash(name) for name in names if names_import(name)}

    def prepare_model(self, model: Classifier) -> None:
        """Tell a model how this run prepares images, and in which precision it embeds them."""
        images = self.data.describe_images(self.backbone.preprocessing)
        model.image_size = images["image_size"]
        model.crop_ratio = images["crop_ratio"]
        model.held_out = None
        if images["held_out"]:
            model.held_out = tuple(images["held_out"])
        model.precision = str(self.trainer.precision)

    # ------------------------------------------------------------------ tasks

    def configure_optimizers(self) -> list[Any]:
        """Return no optimizer: Lightning optimizes nothing here."""
        return []

    def on_fit_start(self) -> None:
        """Undo an open task, check the data, and set up the Trainer."""
        if self._under_way:
            self.learned_tasks.pop()
            self.abort_task()
            self._under_way = False
        if self.data.kind.samples_return:
            self.check_returning()
        # Hashes are cached from here on: files may be edited while the run goes on.
        self.plugin_hashes()
        # Duplicates are found now, so that no task's time includes it.
        _ = self.data.found_duplicates
        # What every run needs, however its Trainer was made.
        trainer = self.trainer
        tasks = len(self.data.plan(self.learned_tasks).tasks)
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs < tasks:
            rank_zero_info(
                f"max_epochs is {trainer.max_epochs}, but a task is one epoch, and all {tasks}"
                f" tasks are learned: for fewer give max_tasks={trainer.max_epochs} to the data"
                " module"
            )
        trainer.fit_loop.max_epochs = tasks
        # A module that has learned tasks before continues after them, with any Trainer.
        epochs = trainer.fit_loop.epoch_progress
        steps = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        for counts in (epochs.current, epochs.total, steps.total):
            for name in vars(counts):
                setattr(counts, name, self.tasks_finished)
        cast(Any, trainer).reload_dataloaders_every_n_epochs = 1
        # Lightning would evaluate at the start and before on_train_epoch_end, when the head is not
        # solved.
        trainer.num_sanity_val_steps = 0
        trainer.check_val_every_n_epoch = sys.maxsize

    def on_train_epoch_start(self) -> None:
        """Begin the task of this epoch."""
        earlier = self.preparation_seconds
        if self.resumes_inside_task:
            earlier = self.record.open_seconds
        self._task_start = time.perf_counter() - earlier
        self.record.open_seconds = 0.0
        self.record.remarks.clear()
        self.cached_embeddings = 0
        self.preparation_seconds = 0.0
        names = self.data.task(self.current_epoch, self.learned_tasks).new
        start = len(self.class_names)
        self.learned_tasks.append(names)
        self._under_way = True
        self._solving = False
        self.begin_task(names, list(range(start, start + len(names))))

    def on_train_epoch_end(self) -> None:
        """Finish the task, count it as one optimizer step, evaluate."""
        self.end_pass()
        start = time.perf_counter()
        self._solving = True
        self.finish_task()
        self._under_way = False
        self._solving = False
        end = time.perf_counter()
        assert self._task_start is not None
        self._seconds = {
            "train_seconds": end - self._task_start,
            "solve_seconds": end - start,
        }
        self._task_start = None
        # Without an optimizer global_step stays 0, and Lightning's ModelCheckpoint saves nothing.
        trainer = self.trainer
        progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()
        # Lightning's own validation loop inside training, as Lightning runs it in mid-epoch.
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    # ------------------------------------------------------------------ evaluation and record

    def on_validation_epoch_start(self) -> None:
        """Start to count over all classes seen."""
        if not self.class_names:
            raise UsageError(
                "nothing is learned yet: give a checkpoint with --ckpt_path"
            )
        domains = self.data.evaluated
        self.evaluation = TaskEvaluation(
            [len(names) for names in self.learned_tasks],
            None if domains is None else len(domains.categories),
            self.classifiers,
            self.device,
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count a batch.

        Returns:
            Its probabilities (n, C), which callbacks get as ``outputs``; None if it is empty.
        """
        if not len(batch.label):
            return None
        assert self.evaluation is not None
        with explaining_full_memory(self.data.batch_size):
            probabilities = self.probabilities(batch)
        domains = self.data.evaluated
        domain = None
        if domains is not None:
            codes = domains.codes[batch.row.cpu().numpy()]
            domain = torch.from_numpy(codes).to(self.device, torch.int64)
        self.evaluation.update(probabilities, batch.label, domain, self.by_classifier)
        return probabilities

    def on_validation_epoch_end(self) -> None:
        """Finish the evaluation; in a run it becomes the record's row of the task."""
        assert self.evaluation is not None
        self.end_pass()
        self.evaluation.finish(self.sum_over_processes)
        if self.trainer.state.fn == "fit":
            self._record_task(self.evaluation)
            return
        # This is what Trainer.validate returns.
        figures = self.evaluation.figures()
        for task, accuracy in enumerate(self.evaluation.task_accuracy, 1):
            figures[f"A_k{task}"] = accuracy
        known = {name: value for name, value in figures.items() if value is not None}
        self.log_dict(known, sync_dist=True)

    def _record_task(self, evaluation: TaskEvaluation) -> None:
        """Add the last task to the record; callbacks fill in what they have measured."""
        elements = self.state_elements()
        cached = 0
        if self.data.source.train.are_images:
            cached = sum(of_all_processes(self.cached_embeddings))
        loader = self.trainer.train_dataloader
        row = self.record.add(
            evaluation,
            **self._seconds,
            state_elements=sum(elements.values()),
            buffer_elements=elements.get("buffer", 0),
            cached_images=cached,
            waiting_seconds=getattr(loader, "waiting_seconds", None),
        )
        if row.A_k is not None:
            self.log("A_k", row.A_k, prog_bar=True, logger=False, sync_dist=True)

    def on_validation_end(self) -> None:
        """Write the embeddings of this process into the cache."""
        self.end_pass()
        self.data.share_collected()

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end
    on_test_end = on_predict_end = on_validation_end

    def predict_step(
        self, batch: Batch, batch_idx: int
    ) -> tuple[Tensor, Tensor, Tensor]:
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
        """Add what :class:`cifnet_pl.learning.run_state.RunState` reads.

        The seconds that an open task has taken are stored too: they count if the run goes on inside
        that task, not if the task is learned again from its beginning.
        """
        seconds = 0.0
        if self._task_start is not None:
            seconds = time.perf_counter() - self._task_start
        checkpoint["cifnet"] = {
            "format": FORMAT,
            "under_way": self._under_way,
            "solving": self._solving,
            "class_names": list(self.class_names),
            "task_sizes": [len(names) for names in self.learned_tasks],
            "settings": self.settings(),
            "images": self.data.describe_images(self.backbone.preprocessing),
            "precision": str(self.trainer.precision),
            "record": {**asdict(self.record), "open_seconds": seconds},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint belongs to this module, and take over its classes and tasks.

        Raises:
            CheckpointError: another format, module, backbone, head or buffer than this run's; a
                damaged one; one that holds weights only, or was written while a task was being
                solved, where a run is to go on.
        """
        state = read_run_state(checkpoint)
        require_same(self.settings(), state.settings)
        self.learned_tasks = state.tasks()
        self._under_way = state.under_way
        if self._trainer is None:
            state.check_complete(resumes=False)
            return
        images = self.data.describe_images(self.backbone.preprocessing)
        require_same(image_options(images), image_options(state.images.model_dump()))
        resumes = self.trainer.state.fn == "fit"
        state.check_complete(resumes)
        if resumes:
            self.record = state.measurements()
            precision = str(self.trainer.precision)
            require_same({"precision": precision}, {"precision": state.precision})
            rewind_to_task_start(checkpoint, self.tasks_finished)
