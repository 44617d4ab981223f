"""Show the progress of a run by tasks, and one table at the end."""

from __future__ import annotations

from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info
from rich.console import Console
from rich.table import Table

from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.held_out import HeldOutImages
from cifnet_pl.learning.callbacks.task_metrics import RunRecord, TaskMetrics, TaskRow
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskCallback, TaskModule, callback_of, run_folder
from cifnet_pl.model.metrics import BINS, FEW, rarely_predicted, rarely_predicted_message
from cifnet_pl.utilities.files import to_csv, write_text
from cifnet_pl.utilities.run_folders import COMPLETE
from cifnet_pl.utilities.text import (
    NAMED,
    about_spellings,
    listed,
    next_command,
    number,
    number_of,
    printable,
    table,
)

SHOWN = 8
"""Names in one sentence."""

COPIES = "copies.csv"
"""All pairs of images with the same content, in the run's folder."""

LOG_WIDTH = 120
"""Columns where there is no terminal, so that a table in a log is whole."""


class DuplicatesReport(Callback):
    """Name images that occur twice, in two classes, or in both training and test set; write all to
    a file.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report once all checks of the run are over, so that a run that is refused leaves no
        folder.
        """
        data = cast(TaskModule, pl_module).data
        folder = run_folder(trainer)
        spellings = about_spellings(data.source.class_names) if data.duplicates else None
        for note in [*data.notes, *([spellings] if spellings else [])]:
            rank_zero_info(note)
        if not (trainer.is_global_zero and data.duplicates and data.copies):
            return
        for sentence in data.copies.sentences(data.source, data.duplicates):
            rank_zero_info(sentence)
        table = data.copies.table(data.source)
        if folder is not None:
            write_text(folder / COPIES, to_csv(["what", "image", "other"], table))
            if len(table) > NAMED:
                rank_zero_info(f"all of them are in {folder / COPIES}")


class TaskProgressBar(RichProgressBar):
    """Lightning's Rich bar with "Task k/K" for "Epoch" and the accuracy over all classes seen."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the bar off the screen before the table is printed."""
        self._stop_progress()

    def _get_train_description(self, current_epoch: int) -> str:
        return f"Task {current_epoch + 1}/{self.trainer.max_epochs}"

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return only A_k of the last task, in percent."""
        metrics = super().get_metrics(trainer, pl_module)
        if "A_k" in metrics:
            return {"A_k": f"{cast(float, metrics['A_k']):.1f} %"}
        return {}


def megabytes(row: TaskRow, module: TaskModule) -> float:
    """Return what is kept after a task in megabytes: statistics and the buffer's content, each in
    its own precision.
    """
    statistics = row.state_elements - row.buffer_elements
    return (
        statistics * module.bytes_of("statistics") + row.buffer_elements * module.bytes_of("buffer")
    ) / 1e6


COLUMNS = (
    *(
        "task",
        "classes\nknown",
        "named\nright %\n(A_k)",
        "average\nso far %\n(Ā)",
        "lost since\nbest %\n(forgetting)",
    ),
    *("confidence\noff by %\n(ECE)", "seconds"),
)
"""Heads of the columns; energy and memory are in the sentences below, so that 80 columns of a
terminal are enough.
"""


def record_table(record: RunRecord) -> Table:
    """Return the table of a run, a row for each task."""
    rows = []
    for row in record.rows:
        measured = [
            number(value)
            for value in (row.A_k, row.average, row.forgetting, row.ece, row.train_seconds)
        ]
        rows.append((str(row.task), str(row.classes_seen), *measured))
    return table(COLUMNS, rows, names=())


def summary_lines(record: RunRecord, module: TaskModule) -> list[str]:
    """Return the sentences about the run as a whole, below the table.

    Args:
        record: what was measured.
        module: that learned.
    """
    s = record.summary()
    measured = f"and {number(s['energy_kwh'], '.1e')} kWh ({s['energy_source']})"
    if s["energy_kwh"] is not None:
        used = measured
    else:
        used = "(energy not measured)"
    kept = f"{megabytes(record.rows[-1], module):.2f} MB ({s['state_elements']:,} numbers)"
    costs = [
        f"Learning took {s['train_seconds']:.1f} s {used}, evaluation {s['eval_seconds']:.1f} s.",
        f"The model keeps {kept} between tasks.",
    ]
    if s["A_K"] is None:
        return [
            (
                "No image was held out for testing: nothing is known of how well the model names"
                " images."
            ),
            *costs,
        ]
    if s["n_classes"] == 1:
        known = "the only class"
    else:
        known = f"all {s['n_classes']} classes"
    own = module.data.learns_held_out
    if own:
        tested = "images held out for testing (images of these days)"
    else:
        tested = f"test {sample(module)}s"
    lines = [
        (
            f"Of the {tested}, {number(s['A_K'], unit=' %')} are named right among {known} (A_K);"
            f" over all tasks {number(s['A_bar'], unit=' %')} on average (Ā)."
        ),
    ]
    if s["n_classes"] == 1:
        lines.append(
            "With one class every image is named so, whatever it shows: learn a second one to"
            " compare with."
        )
    if s["forgetting"] is not None:
        lines.append(
            f"Earlier classes are {number(s['forgetting'])} points below their best, as later ones"
            " can be taken for them (forgetting)."
        )
    lines.append(
        f"How sure the model is differs from how often it is right by {number(s['ece'])} points on"
        f" average (ECE, {BINS} bins)."
    )
    return [*lines, *costs]


def sample(module: TaskModule) -> str:
    """Return what the screen calls an image or an embedding."""
    if module.backbone.takes_images:
        return "image"
    return "sample"


class RunTable(TaskCallback):
    """One line per task where there is no terminal to draw a bar on, and one table at the end."""

    def __init__(self) -> None:
        console = Console()
        if console.is_terminal:
            self.console = console
        else:
            self.console = Console(width=LOG_WIDTH)

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Print the result of the task, unless the progress bar shows it."""
        assert module.evaluation is not None
        if trainer.is_global_zero and not self.console.is_terminal:
            right = number(module.evaluation.accuracy, unit=" %")
            known = number_of(len(module.class_names), "class")
            done = f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
            self._say(
                f"task {done}: {right} of the test {sample(module)}s of {known} are named right"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print the result of validate or test, once the progress bar is gone."""
        module = cast(TaskModule, pl_module)
        if (
            stage not in ("validate", "test")
            or not trainer.is_global_zero
            or module.evaluation is None
        ):
            return
        accuracies = zip(module.learned_tasks, module.evaluation.task_accuracy, strict=True)
        rows = [
            (str(k), str(len(names)), number(each)) for k, (names, each) in enumerate(accuracies, 1)
        ]
        shown = table(("task", "classes", "accuracy %"), rows, names=())
        shown.add_section()
        shown.add_row("all", str(len(module.class_names)), number(module.evaluation.accuracy))
        self.console.print(shown)
        for line in [
            f"ECE {number(module.evaluation.ece, unit=' %')}",
            *self._hardly_tested(module),
        ]:
            self._say(line)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what is going to be learned, and where its results will be."""
        module = cast(TaskModule, pl_module)
        folder = run_folder(trainer)
        if not trainer.is_global_zero:
            return
        stream = module.data.stream(module.learned_tasks)
        done = module.tasks_finished
        summary = f"{number_of(len(stream.classes()), 'class')} in {number_of(len(stream), 'task')}"
        if trainer.world_size > 1:
            where = f"{trainer.world_size} x {module.device.type}"
        else:
            where = module.device.type
        if done == len(stream):
            self._say(f"{summary}: all are learned already, nothing is left to do")
            return
        if trainer.ckpt_path:
            start = f", going on after task {done}"
        else:
            start = ""
        self._say(f"{summary} on {where}{start}" + (f"; run folder {folder}" if folder else ""))

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _hardly_tested(self, module: TaskModule) -> list[str]:
        """Return a sentence about classes with too few test samples for a conclusion, and one about
        bad classes.
        """
        counts = module.data.test_counts(module.class_names)
        few = [f"{printable(name)} ({count})" for name, count in counts.items() if count < FEW]
        says = f"Fewer than {FEW} test {sample(module)}s, too few to say how good a class is"
        lines = [f"{says}: {listed(few, SHOWN)}."] if few else []
        if module.evaluation is not None:
            matrix = module.evaluation.confusion
            hardly = rarely_predicted(matrix.diagonal(), matrix.sum(axis=1)).tolist()
            sentence = rarely_predicted_message(
                [module.class_names[label] for label in hardly], sample(module)
            )
            lines += [f"{sentence}."] if sentence else []
        return lines

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Print how to resume an interrupted run."""
        done = cast(TaskModule, pl_module).tasks_finished
        if (
            trainer.state.fn == "fit"
            and trainer.is_global_zero
            and isinstance(exception, KeyboardInterrupt | SystemExit)
        ):
            self._say(
                f"stopped after task {done}: the same command with --ckpt_path last goes on from"
                " there"
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the table, and where the results are."""
        # the folder asks all processes
        folder = run_folder(trainer)
        metrics = callback_of(trainer, TaskMetrics)
        if not trainer.is_global_zero or metrics is None or not metrics.record.rows:
            return
        module = cast(TaskModule, pl_module)
        self.console.print(record_table(metrics.record))
        lines = summary_lines(metrics.record, module)
        for about in (
            callback_of(trainer, CoverageAndNoveltyMetrics),
            callback_of(trainer, HeldOutImages),
        ):
            lines += about.sentences() if about else []
        lines += module.model.accuracy_sentences() if isinstance(module, CIFNetModule) else []
        lines += [*self._hardly_tested(module), f"run folder {folder}"]
        if folder is not None and (
            isinstance(module, CIFNetModule) or (folder / COMPLETE).is_dir()
        ):
            words = ("export", "--model", str(folder), "--output", "MODEL")
            lines.append(next_command(*words, trust=module.needs_trust))
        for line in lines:
            self._say(line)
