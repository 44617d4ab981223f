"""The LightningModule that learns a stream of tasks, one per epoch, and evaluates after each."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torchmetrics import Metric

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.datamodule import CIFNetDataModule, Learner, TaskSamples
from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.run_record import RunRecord
from cifnet_pl.learning.run_state import read_run_state, require_same
from cifnet_pl.learning.strategy import check_trainer
from cifnet_pl.model.bundle import FORMAT
from cifnet_pl.model.evaluation import Evaluation, judge, table_of
from cifnet_pl.utilities.errors import (
    CheckpointError,
    UsageError,
    explained,
    explaining_full_memory,
)
from cifnet_pl.utilities.growing_tensors import float64_device
from cifnet_pl.utilities.plugins import failure
from cifnet_pl.utilities.processes import of_all_processes


class TaskModule(LightningModule):
    """A module for which a task is an epoch: it opens tasks and evaluates after each one.

    A task lives in the order of this class: ``begin_task``, ``training_step`` for each batch,
    ``complete_batches``, ``finish_task`` (add up, show the buffer to new classes, solve, update the
    buffer, calibrate), evaluation, record. Subclasses implement these and predict in
    ``probabilities``.

    Attributes:
        title: name in tables and figures; by default the class's own without "Module".
        backbone: set by subclasses; says how the data module must prepare images.
        epochs: passes over a task's images that learn from them.
        any_batch_size: whether the result is the same for batches of any size.
        can_resume_inside_task: whether a run can go on inside a task.
        classifiers: names of the module's classifiers, where all of several are evaluated;
            ``by_classifier`` has their probabilities of the last evaluation batch.
        judged: columns of the samples of an evaluation, by batch; callbacks may add some of their
            own to the last batch, which are in ``evaluation.samples`` then.
        metrics: custom metrics: name → what makes a ``Metric`` of torchmetrics for a number of
            classes.
        learned_tasks, record: class names and measurements of each task, in order.
        evaluation: the last one; without any sample before the first.
        method: the class that learns and names the method: the module's own, or a head's.
        element_bytes, buffer_bytes: size of a value of :meth:`state_elements`, and of the buffer.
        task: the samples of the task that is being learned.
        position: where the next task goes on that was open when the run stopped; None otherwise.
        preparation_seconds: time before the first task that counts as part of it.
    """

    title: ClassVar[str] = ""
    backbone: Backbone
    epochs: int = 1
    any_batch_size: ClassVar[bool] = False
    can_resume_inside_task: ClassVar[bool] = False
    classifiers: tuple[str, ...] = ()
    task: TaskSamples

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.learned_tasks: list[list[str]] = []
        self.by_classifier: dict[str, Tensor] = {}
        self.record = RunRecord()
        self.evaluation = Evaluation()
        self.metrics: Mapping[str, Callable[[int], Metric]] = {}
        self.method: type = type(self)
        self.element_bytes = 4
        self.buffer_bytes = 4
        self.preparation_seconds = 0.0
        self.position: dict[str, Any] | None = None
        self.cached_embeddings = 0  # of the task: read from the cache, not computed
        self._task_start = 0.0
        self._under_way = False
        self._solving = False

    # ------------------------------------------------------------------ for subclasses to override

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the orders in which a task's images ``rows`` are learned, one for each pass."""
        return [rows]

    def begin_task(self) -> None:
        """Prepare for a new task, whose classes are the last ones of ``class_names``."""

    def complete_batches(self) -> None:
        """Complete what waits for the device once all batches of a loop have been seen."""

    def finish_task(self) -> None:
        """Complete the task once all its batches have been learned from."""

    def abort_task(self) -> None:
        """Undo the task that was open when the run stopped."""

    def setup(self, stage: str) -> None:
        """Tell the Trainer's data module what it must know of this module, and check the Trainer.

        Raises:
            UsageError: the Trainer's options do not fit (:func:`check_trainer`).
        """
        self.data: CIFNetDataModule = cast(Any, self.trainer).datamodule
        learner = Learner(
            self.backbone, self.learned_tasks, self.passes, self.any_batch_size
        )
        self.data.feed(learner)
        if stage == "fit":
            check_trainer(self.trainer)

    def check_returning(self) -> None:
        """Raise UsageError unless more samples of the classes of earlier tasks can be learned."""
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

    @property
    def class_names(self) -> list[str]:
        """Name of each label 0, 1, …; append-only, so that labels never change."""
        return [name for names in self.learned_tasks for name in names]

    @property
    def task_sizes(self) -> list[int]:
        """Number of classes of each task."""
        return [len(names) for names in self.learned_tasks]

    @property
    def task_of_label(self) -> Tensor:
        """(C,) int64 task of each label, from 0."""
        return torch.repeat_interleave(torch.tensor(self.task_sizes))

    @property
    def tasks_finished(self) -> int:
        """Number of tasks that are learned completely."""
        return len(self.learned_tasks) - self._under_way

    @property
    def is_complete(self) -> bool:
        """Whether all tasks of the run are learned."""
        return self.tasks_finished == self.trainer.max_epochs

    @property
    def sum_over_processes(self) -> Callable[[Tensor], object] | None:
        """What replaces a tensor by its sum over all processes; None for a single process."""
        if self.trainer.world_size == 1:
            return None
        return partial(self.trainer.strategy.reduce, reduce_op="sum")

    def configure_optimizers(self) -> list[Any]:
        """Return no optimizer: Lightning optimizes nothing here."""
        return []

    def on_fit_start(self) -> None:
        """Undo an open task, check the data, and let the Trainer learn one task in each epoch."""
        if self._under_way:
            self.learned_tasks.pop()
            self.abort_task()
            self._under_way = False
        learned = self.tasks_finished
        measured = len(self.record.rows)
        if learned != measured:
            raise CheckpointError(
                f"{measured} of {learned} tasks learned are evaluated: go on from a checkpoint of"
                " an evaluated task, such as last.ckpt of the run's folder"
            )
        if self.data.kind.samples_return:
            self.check_returning()
        # A metric that fails, or gives something else than one number, does so now.
        for name, factory in self.metrics.items():
            with explained(UsageError, f"metric {name} fails", reason=failure):
                metric = factory(2)
                samples = torch.eye(2, dtype=torch.float64)
                metric.update(samples, torch.tensor([0, 1]))
                float(metric.compute())
        # Duplicates are found now, so that no task's time includes it.
        self.data.find_duplicates()
        trainer = self.trainer
        tasks = len(self.data.plan.tasks)
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs < tasks:
            rank_zero_info(
                f"max_epochs is {trainer.max_epochs}, but a task is one epoch, and all"
                f" {tasks} tasks are learned: for fewer give max_tasks={trainer.max_epochs} to the"
                " data module"
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
        if self.position is not None:
            earlier = self.record.open_seconds
        self._task_start = time.perf_counter() - earlier
        self.record.open_seconds = 0.0
        self.cached_embeddings = 0
        self.preparation_seconds = 0.0
        self.task = self.data.task(self.current_epoch)
        self.learned_tasks.append(self.task.new)
        self._under_way = True
        self._solving = False
        self.begin_task()

    def on_train_epoch_end(self) -> None:
        """Finish the task (add up, buffer, solve, calibrate), evaluate and record it.

        A task inside which the Trainer stops, as by ``max_time``, stays open.
        """
        trainer = self.trainer
        self.complete_batches()
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            return
        start = time.perf_counter()
        self._solving = True
        self.finish_task()
        self._under_way = False
        self._solving = False
        end = time.perf_counter()
        self._seconds = {
            "train_seconds": end - self._task_start,
            "solve_seconds": end - start,
        }
        # The task counts as one optimizer step: else ``global_step`` would stay 0, and Lightning's
        # ModelCheckpoint save nothing.
        steps = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        steps.increment_ready()
        steps.increment_completed()
        # Lightning's own validation loop inside training, as Lightning runs it in mid-epoch.
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    def on_validation_epoch_start(self) -> None:
        """Begin an evaluation over all classes seen."""
        if not self.class_names:
            raise UsageError(
                "nothing is learned yet: give a checkpoint with --ckpt_path"
            )
        self.judged: list[dict[str, Tensor]] = []
        self._evaluation_start = time.perf_counter()
        self._custom: dict[str, Metric] = {}
        count = len(self.class_names)
        if count > 1:  # metrics of torchmetrics refuse a single class
            device = float64_device(self.device)
            for name, factory in self.metrics.items():
                self._custom[name] = factory(count).to(device)

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Judge a batch; callbacks get its probabilities (n, C) as ``outputs``, None if empty."""
        label = batch.label
        if not len(label):
            return None
        with explaining_full_memory(self.data.batch_size):
            probabilities = self.probabilities(batch)
        domains = self.data.evaluated
        if domains is None:
            task = self.task_of_label.to(label.device)[label]
        else:
            codes = domains.codes[batch.row.cpu().numpy()]
            task = torch.from_numpy(codes).to(label.device, torch.int64)
        judged = judge(probabilities, label, task)
        for name in self.classifiers:
            judged[f"A_k_{name}"] = self.by_classifier[name].argmax(dim=1) == label
        self.judged.append(judged)
        for metric in self._custom.values():
            metric.update(probabilities, label)
        return probabilities

    def on_validation_epoch_end(self) -> None:
        """Finish the evaluation; in a run it becomes the record's row of the task."""
        self.complete_batches()
        metrics = {}
        for name, metric in self._custom.items():
            result = float(metric.compute())
            metrics[name] = result if math.isfinite(result) else None
        parts = of_all_processes(table_of(self.judged))
        tested = [part for part in parts if len(part)] or parts[:1]
        self.evaluation = Evaluation(
            self.class_names,
            pd.concat(tested, ignore_index=True),
            tasks=len(self.learned_tasks),
            metrics=metrics,
            seconds=time.perf_counter() - self._evaluation_start,
        )
        self.data.share_collected()
        if self.trainer.state.fn != "fit":
            # This is what Trainer.validate returns.
            figures = self.evaluation.figures()
            for task, accuracy in enumerate(self.evaluation.task_accuracy, 1):
                figures[f"A_k{task}"] = accuracy
            for name, value in figures.items():
                if value is not None:
                    self.log(name, value, sync_dist=True)
            return
        elements = self.state_elements()
        cached = 0
        if self.data.source.train.are_images:
            cached = sum(of_all_processes(self.cached_embeddings))
        loader = self.trainer.train_dataloader
        # Callbacks fill in what they have measured.
        row = self.record.add(
            self.evaluation,
            **self._seconds,
            state_elements=sum(elements.values()),
            buffer_elements=elements.get("buffer", 0),
            cached_images=cached,
            waiting_seconds=getattr(loader, "waiting_seconds", None),
        )
        if row.A_k is not None:
            self.log("A_k", row.A_k, prog_bar=True, logger=False, sync_dist=True)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(
        self,
        batch: Batch,
        batch_idx: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (n,) rows, most probable labels and their probabilities of n images."""
        top = self.probabilities(batch).max(dim=1)
        return batch.row, top.indices, top.values

    def on_predict_epoch_end(self) -> None:
        """Write the embeddings of this process into the cache."""
        self.complete_batches()
        self.data.share_collected()

    # ------------------------------------------------------------------ checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what :class:`cifnet_pl.learning.run_state.RunState` reads."""
        seconds = 0.0  # of an open task: they count if the run goes on inside it
        if self._under_way:
            seconds = time.perf_counter() - self._task_start
        checkpoint["cifnet"] = {
            "format": FORMAT,
            "under_way": self._under_way,
            "solving": self._solving,
            "class_names": self.class_names,
            "task_sizes": self.task_sizes,
            "settings": self.settings(),
            "images": self.data.describe_images(),
            "precision": str(self.trainer.precision),
            "record": {**self.record.state_dict(), "open_seconds": seconds},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over classes, tasks and record; CheckpointError if they do not fit this run."""
        state = read_run_state(checkpoint)
        require_same(self.settings(), state.settings)
        self.learned_tasks[:] = state.tasks()
        self._under_way = state.under_way
        resumes = False
        if self._trainer is not None:
            state.check_images(self.data.describe_images())
            resumes = self.trainer.state.fn == "fit"
        state.check_complete(resumes)
        if resumes:
            self.record = state.measurements()
            state.resume(checkpoint, str(self.trainer.precision))

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
    ) -> Any:
        """Load all tensors.

        Raises:
            CheckpointError: tensors are missing, of another shape, or do not fit each other or the
                classes that the checkpoint names.
        """
        with explained(CheckpointError, "the checkpoint does not fit the model"):
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
