"""A LightningModule that learns a stream of tasks, one an epoch, and evaluates after each: glue only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics.classification import MulticlassCalibrationError

from cifnet_pl.backbones import Preprocessing
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.loading import Batch
from cifnet_pl.errors import CheckpointError, CifnetError, UsageError
from cifnet_pl.metrics import ClassAccuracy, percent

FORMAT = 1
"""Version of what :class:`TaskModule` adds to a checkpoint."""


@dataclass(frozen=True)
class Evaluation:
    """Result of one evaluation over all classes seen: percentages, None where nothing was tested."""

    accuracy: float | None
    task_accuracy: list[float | None]
    ece: float | None
    seconds: float


class TaskModule(LightningModule):
    """One task is one epoch: opens tasks, evaluates after each, and owns the map from class name to label.

    Subclasses learn in ``training_step`` and finish a task in ``finish_task``; they score in ``scores``.

    Attributes:
        class_names: name of each label 0, 1, …; append-only, so that a class added later never shifts another.
        learned_tasks: class names of each task begun, in order.
        evaluation: result of the last evaluation.
        solve_seconds: time that ``finish_task`` took for the last task.
    """

    class_names: list[str]
    learned_tasks: list[list[str]]

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.class_names, self.learned_tasks = [], []
        self.evaluation: Evaluation | None = None
        self.solve_seconds = 0.0
        self._accuracy: ClassAccuracy | None = None
        self._calibration: MulticlassCalibrationError | None = None
        self._evaluation_start = 0.0
        self._under_way = False

    # ------------------------------------------------------------------ for subclasses

    @property
    def preprocessing(self) -> Preprocessing:
        """What the data module must prepare images for."""
        raise CifnetError(f"{type(self).__name__} does not say how its images are prepared")

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the classes of a new task."""

    def finish_task(self) -> None:
        """Learn what is left to learn once all batches of a task have been seen."""

    def probabilities(self, batch: Batch) -> Tensor:
        """(n, C) float64 class probabilities of an evaluation batch, column c for label c."""
        raise CifnetError(f"{type(self).__name__} does not predict")

    def settings(self) -> dict[str, Any]:
        """What a checkpoint's tensors depend on; compared on loading."""
        return {"module": type(self).__name__}

    def describe(self) -> dict[str, Any]:
        """What ``summary.json`` says of the model: head, backbone, backbone_params."""
        return {"head": type(self).__name__, "backbone": None, "backbone_params": None}

    def state_elements(self) -> dict[str, int]:
        """Numbers kept between tasks, by component."""
        return {"parameters": sum(p.numel() for p in self.parameters())}

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one of those numbers."""
        return 4

    def abort_task(self, labels: list[int]) -> None:
        """Forget what was seen of a task that was under way when the run stopped."""

    # ------------------------------------------------------------------ the task protocol

    @property
    def data(self) -> CIFNetDataModule:
        """The data module that feeds this module."""
        return cast(CIFNetDataModule, cast(Any, self.trainer).datamodule)

    def configure_optimizers(self) -> list[Any]:
        """No optimizer: nothing here is trained by gradients."""
        return []

    def on_fit_start(self) -> None:
        """Count the tasks that are left, and keep Lightning from evaluating before a task is solved."""
        self._rewind_task()
        loop = self.trainer.fit_loop
        loop.max_epochs = len(self.data.stream(self.learned_tasks))
        # Lightning would run its evaluation before on_train_epoch_end, on the unsolved head.
        self.trainer.check_val_every_n_epoch = 2**62

    def on_train_epoch_start(self) -> None:
        """Open the task of this epoch."""
        names = self.data.task_classes(self.data.task)
        start = len(self.class_names)
        self.class_names += names
        self.learned_tasks.append(names)
        self._under_way = True
        self.begin_task(names, list(range(start, len(self.class_names))))

    def on_train_epoch_end(self) -> None:
        """Finish the task, count it as one optimizer step, evaluate."""
        start = time.perf_counter()
        self.finish_task()
        self.solve_seconds = time.perf_counter() - start
        self._under_way = False
        self._count_step()
        self._evaluate()

    def _count_step(self) -> None:
        # Without an optimizer global_step stays 0, and Lightning's ModelCheckpoint silently saves nothing.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    def _evaluate(self) -> None:
        """Run Lightning's own validation loop inside the training loop, as it does itself mid-epoch."""
        trainer: Trainer = self.trainer
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    # ------------------------------------------------------------------ evaluation

    def on_validation_epoch_start(self) -> None:
        """Start counting over all classes seen."""
        if not self.class_names:
            raise UsageError("nothing is learned yet: give a checkpoint with --ckpt_path")
        classes = len(self.class_names)
        self._accuracy = ClassAccuracy(classes).to(self.device)
        # Class counts below two are fine for the top-1 error it computes, but not for its argument check.
        self._calibration = MulticlassCalibrationError(max(2, classes), n_bins=15, validate_args=False)
        self._calibration.to(self.device)
        self._evaluation_start = time.perf_counter()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count correct predictions and the confidence that they were made with."""
        if len(batch.label):
            probabilities = self.probabilities(batch)
            assert self._accuracy is not None
            assert self._calibration is not None
            self._accuracy.update(probabilities.argmax(dim=1), batch.label)
            self._calibration.update(probabilities, batch.label)

    def on_validation_epoch_end(self) -> None:
        """Turn the counts of all processes into A_k, per-task accuracies and ECE."""
        assert self._accuracy is not None
        assert self._calibration is not None
        correct, total = (counts.tolist() for counts in self._accuracy.compute())
        tasks, start = [], 0
        for names in self.learned_tasks:
            part = slice(start, start + len(names))
            tasks.append(percent(sum(correct[part]), sum(total[part])))
            start += len(names)
        accuracy = percent(sum(correct), sum(total))
        ece = 100 * float(self._calibration.compute()) if sum(total) else None
        seconds = time.perf_counter() - self._evaluation_start
        self.evaluation = Evaluation(accuracy, tasks, ece, seconds)
        if accuracy is not None:
            self.log("A_k", accuracy, prog_bar=True, logger=False)

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def predict_step(self, batch: Batch, batch_idx: int) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, labels, probabilities) of the most probable class of each image."""
        top = self.probabilities(batch).max(dim=1)
        return batch.row, top.indices, top.values

    # ------------------------------------------------------------------ checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the class map and the settings, and whether a task is under way (it starts again on resume)."""
        checkpoint["cifnet"] = {
            "format": FORMAT,
            "under_way": self._under_way,
            "class_names": list(self.class_names),
            "task_sizes": [len(names) for names in self.learned_tasks],
            "settings": self.settings(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint belongs to this module, and take over its class map.

        Raises:
            CheckpointError: another format, module, backbone, head or buffer than this run's.
        """
        stored = checkpoint.get("cifnet")
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise CheckpointError(
                f"the checkpoint is not one of this version of cifnet_pl (format {FORMAT}): "
                f"found {stored.get('format') if isinstance(stored, dict) else 'a plain Lightning checkpoint'}"
            )
        own, other = _flat(self.settings()), _flat(stored["settings"])
        different = [key for key in own if own[key] != other.get(key)]
        if different:
            key = different[0]
            raise CheckpointError(
                f"the checkpoint was made with {key} = {other.get(key)}, this run has {own[key]}: "
                "use the same settings, or start a new experiment"
            )
        self.class_names = list(stored["class_names"])
        names = iter(self.class_names)
        self.learned_tasks = [[next(names) for _ in range(size)] for size in stored["task_sizes"]]
        self._under_way = stored["under_way"]
        if self._under_way and "loops" in checkpoint:
            _rewind_loops(checkpoint["loops"]["fit_loop"])

    def _rewind_task(self) -> None:
        """Take back a task that a mid-epoch checkpoint (a signal, a SLURM requeue) caught under way."""
        if self._under_way:
            names = self.learned_tasks.pop()
            labels = list(range(len(self.class_names) - len(names), len(self.class_names)))
            del self.class_names[labels[0] :]
            self.abort_task(labels)
            self._under_way = False


def _rewind_loops(fit_loop: dict[str, Any]) -> None:
    """Put Lightning's counters back to the start of the epoch; resumed as they are, they would skip its hooks."""
    epochs = fit_loop["epoch_progress"]
    for count in (epochs["current"], epochs["total"]):
        count["ready"] = count["started"] = count["completed"] = count["processed"]
    for name, progress in fit_loop.items():
        if name.startswith("epoch_loop.") and name.endswith("batch_progress"):
            done = dict(progress["current"])
            for key in progress["current"]:
                progress["total"][key] -= done[key]
                progress["current"][key] = 0
            progress["is_last_batch"] = False


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
