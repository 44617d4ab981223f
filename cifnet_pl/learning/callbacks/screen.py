"""Show a run on the screen: what is learned, one table with a row per task, and a summary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info
from rich.console import Console

from cifnet_pl.backbones import plugin_imports
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.columns import custom_column
from cifnet_pl.learning.run_record import run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.evaluation import Evaluation, rarely_predicted_notes
from cifnet_pl.model.metrics import ECE_BINS, MIN_TEST_IMAGES
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import to_csv, write_text
from cifnet_pl.utilities.plugins import import_name
from cifnet_pl.utilities.run_folders import COMPLETE, DUPLICATES_FILE
from cifnet_pl.utilities.text import (
    listed,
    next_command,
    number,
    number_of,
    print_text,
    similar_spellings_message,
    table,
)


class DuplicatesReport(Callback):
    """Report duplicates within a class, in two classes, and in both the training and the test set.

    All of them are listed in ``duplicates.csv`` of the run's folder.
    """

    def on_train_start(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Report once all checks of the run are over: a run that is refused leaves no folder."""
        data = pl_module.data
        folder = run_folder(trainer)
        for note in data.source.notes:
            rank_zero_info(note)
        if not data.duplicates:
            return
        spellings = similar_spellings_message(data.source.class_names)
        if spellings is not None:
            rank_zero_info(spellings)
        found = data.found_duplicates
        for sentence in found.sentences(data.duplicates):
            rank_zero_info(sentence)
        if found and folder is not None:
            rows = [(one.kind, one.sample, one.other) for one in found]
            text = to_csv(["what", "image", "other"], rows)
            write_text(folder / DUPLICATES_FILE, text)


class TaskProgressBar(RichProgressBar):
    """Lightning's Rich bar with "Task k/K" for "Epoch" and the accuracy over all classes seen."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar from the screen before the table is printed."""
        self._stop_progress()

    def _get_train_description(self, current_epoch: int) -> str:
        return f"Task {current_epoch + 1}/{self.trainer.max_epochs}"


def summary_lines(module: TaskModule) -> list[str]:
    """Return a line each for accuracy, forgetting with calibration, custom metrics, and costs.

    Args:
        module: that learned.
    """
    summary = module.record.summary()
    lines = []
    if summary["A_K"] is None:
        lines.append("Accuracy not measured: no test images")
    else:
        lines += accuracy_lines(module, summary)
    energy = "energy not measured"
    if summary["energy_kwh"] is not None:
        # ``summary.json`` has the source of each part.
        how = "estimated" if "estimated" in summary["energy_source"] else "measured"
        energy = f"{summary['energy_kwh']:.1e} kWh ({how})"
    buffer = summary["buffer_elements"]
    statistics = summary["state_elements"] - buffer
    size = statistics * module.element_bytes + buffer * module.buffer_bytes
    total = summary["train_seconds"]
    seconds = f"{total:.1f} s"
    waiting = summary["waiting_seconds"]
    if waiting:
        # What takes most of the time limits the run.
        solving = summary["solve_seconds"]
        backbone = total - waiting - solving
        parts = {"images": waiting, "solve": solving, "backbone": backbone}
        slowest = max(parts, key=parts.__getitem__)
        seconds += f" ({slowest} {100 * parts[slowest] / total:.0f} %)"
    lines.append(f"Training {seconds}, {energy}, state {size / 1e6:.2f} MB")
    return lines


def accuracy_lines(module: TaskModule, summary: Mapping[str, Any]) -> list[str]:
    """Return the lines of a summary on what was measured with test images.

    Args:
        module: that learned.
        summary: of its record.
    """
    final = number(summary["A_K"], unit=" %")
    average = number(summary["A_bar"], unit=" %")
    accuracies = f"Final accuracy A_K {final}, average accuracy Ā {average}"
    custom = []
    if module.evaluation.images:
        kind = "held-out" if module.data.learns_held_out else "test"
        images = f"{module.evaluation.images:,} {kind} {module.backbone.sample}s"
        accuracies = f"{accuracies} ({images})"
        custom = custom_metric_lines(module.evaluation)
    calibration = calibration_text(module, summary["ece"])
    if summary["n_classes"] == 1:
        measured = "With one class the accuracy is always 100 %: add a second class"
    elif summary["forgetting"] is None:
        measured = f"C{calibration[1:]}"
    else:
        measured = f"Forgetting {number(summary['forgetting'])} points, {calibration}"
    return [accuracies, measured, *custom]


def custom_metric_lines(evaluation: Evaluation) -> list[str]:
    """Return a line on the value of each custom metric."""
    lines = []
    for name, value in evaluation.metrics.items():
        column = custom_column(name)
        lines.append(f"{column.title.capitalize()} {number(value, column.form)}")
    return lines


def calibration_text(module: TaskModule, ece: float | None) -> str:
    """Return the calibration error in words, and how to calibrate where nothing is."""
    facts = [f"ECE, {ECE_BINS} bins"]
    if isinstance(module, CIFNetModule):
        facts += module.model.calibration_notes()
    return f"calibration error {number(ece, unit=' %')} ({'; '.join(facts)})"


def class_warnings(module: TaskModule) -> list[str]:
    """Return warnings about classes with few test samples, or hardly ever predicted."""
    evaluation = module.evaluation
    lines = []
    images = evaluation.class_counts[1]
    labels = np.flatnonzero(images < MIN_TEST_IMAGES)
    if len(labels):
        sample = module.backbone.sample
        names = listed([evaluation.class_names[label] for label in labels])
        lines.append(f"Fewer than {MIN_TEST_IMAGES} test {sample}s: {names}")
    model = getattr(module, "model", None)
    return lines + rarely_predicted_notes(evaluation.rarely_predicted, model)


def closing_lines(module: TaskModule, folder: Path | None) -> list[str]:
    """Return the lines below the summary: further accuracies, where the run is, what comes next.

    Args:
        module: that learned.
        folder: of the run; None without one.
    """
    lines = []
    row = module.record.rows[-1]
    if row.unknown_auroc is not None:
        found = f"AUROC {row.unknown_auroc:.1f} %, FPR95 {row.unknown_fpr95:.1f} %"
        lines.append(f"Unknown images: {found}")
    is_model = folder is not None and (folder / COMPLETE).is_dir()
    refit = ""
    if isinstance(module, CIFNetModule):
        lines += module.model.accuracy_sentences()
        if is_model:
            refit = " (refit on all images)"
    if folder is not None:
        lines.append(f"Run folder {folder}{refit}")
    lines += class_warnings(module)
    head = ""
    if isinstance(module, CIFNetModule):
        if module.calibration.estimate_kind in ("found", "given"):
            lines.append(
                "For new groups add five images a class: cifnet extend --more true"
            )
        is_model = folder is not None
        head = import_name(type(module.head))
    if is_model:
        backbone = module.backbone
        imports = plugin_imports(backbone.name, backbone.architecture, head)
        words = ("export", "--model", str(folder), "--output", "MODEL")
        lines.append(next_command(*words, trust=bool(imports)))
    return lines


def stopped_line(module: TaskModule) -> str:
    """Return how a run that stopped before its last task goes on."""
    done = module.tasks_finished
    return f"stopped after task {done}: resume by the same command, --ckpt_path last"


class RunTable(Callback):
    """Prints a line when a task ends, and at the end a table with a row per task and a summary.

    On a terminal the progress bar stands in place of the lines.
    """

    console = Console()

    def on_validation_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Print the accuracy after the task, unless the progress bar is shown."""
        fits = trainer.state.fn == "fit" and trainer.is_global_zero
        if fits and not self.console.is_terminal:
            row = pl_module.record.rows[-1]
            accuracy = number(row.A_k, unit=" %")
            print_text(f"task {row.task}: A_k {accuracy}, {row.train_seconds:.1f} s")

    def teardown(self, trainer: Trainer, pl_module: TaskModule, stage: str) -> None:
        """Print the result of validate or test, once the progress bar is gone."""
        if stage not in ("validate", "test") or not trainer.is_global_zero:
            return
        evaluation = pl_module.evaluation
        accuracy = number(evaluation.accuracy, unit=" %")
        by_task = ", ".join(map(number, evaluation.task_accuracy))
        print_text(
            f"Accuracy {accuracy}, {calibration_text(pl_module, evaluation.ece)}"
        )
        print_text(f"Accuracy of each task: {by_task} %")
        for line in custom_metric_lines(evaluation) + class_warnings(pl_module):
            print_text(line)

    def on_fit_start(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Print what is going to be learned, and on which device."""
        if not trainer.is_global_zero:
            return
        plan = pl_module.data.plan
        classes = number_of(len(plan.classes), "class")
        tasks = number_of(len(plan.tasks), "task")
        device = pl_module.device.type
        if trainer.world_size > 1:
            device = f"{trainer.world_size} x {device}"
        features = ""
        if isinstance(pl_module, CIFNetModule):
            features = f", {pl_module.backbone.features:,} features"
        done = ""
        if pl_module.tasks_finished:
            done = f", {pl_module.tasks_finished} learned before"
        print_text(f"{classes} in {tasks} on {device}{features}{done}")

    def on_exception(
        self,
        trainer: Trainer,
        pl_module: TaskModule,
        exception: BaseException,
    ) -> None:
        """Print how to resume an interrupted run."""
        interrupted = isinstance(exception, KeyboardInterrupt | SystemExit)
        if trainer.state.fn == "fit" and trainer.is_global_zero and interrupted:
            print_text(stopped_line(pl_module))

    def on_fit_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Print the table, the summary, where the run is, and what comes next."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero:
            return
        record = pl_module.record
        if not record.rows:
            raise CifnetError(
                "nothing was learned: the limits of the trainer leave no task"
            )
        columns = [column for column in record.columns if column.screen]
        rows = []
        for row in record.rows:
            cells = [number(vars(row).get(c.task), c.form) for c in columns]
            rows.append(cells)
        header = [column.screen for column in columns]
        self.console.print(table(header, rows, names=()))
        for line in summary_lines(pl_module) + closing_lines(pl_module, folder):
            print_text(line)
        if not pl_module.is_complete:
            print_text(stopped_line(pl_module))
