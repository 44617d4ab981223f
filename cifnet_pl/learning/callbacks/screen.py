"""Show a run on the screen: what is learned, one table with a row per task, and a summary."""

from __future__ import annotations

from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.utilities import rank_zero_info
from rich.console import Console

from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.columns import custom_column
from cifnet_pl.learning.run_record import RunRecord, run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.bundle import plugin_imports
from cifnet_pl.model.evaluation import Evaluation, rarely_predicted_notes
from cifnet_pl.model.metrics import ECE_BINS, MIN_TEST_IMAGES
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import to_csv, write_text
from cifnet_pl.utilities.plugins import import_name
from cifnet_pl.utilities.run_folders import COMPLETE, DUPLICATES_FILE
from cifnet_pl.utilities.text import (
    LISTED_NAMES,
    listed,
    next_command,
    number,
    number_of,
    print_text,
    printable,
    similar_spellings_message,
    table,
)


class DuplicatesReport(Callback):
    """Report duplicates within a class, in two classes, and in both the training and the test set.

    All of them are listed in ``duplicates.csv`` of the run's folder.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report once all checks of the run are over: a run that is refused leaves no folder."""
        data = cast(TaskModule, pl_module).data
        folder = run_folder(trainer)
        messages = list(data.source.notes)
        if data.duplicates:
            spellings = similar_spellings_message(data.source.class_names)
            if spellings is not None:
                messages.append(spellings)
        for message in messages:
            rank_zero_info(message)
        if not (data.duplicates and data.found_duplicates):
            return
        for sentence in data.found_duplicates.sentences(data.duplicates):
            rank_zero_info(sentence)
        if folder is not None:
            rows = [(one.kind, one.sample, one.other) for one in data.found_duplicates]
            path = folder / DUPLICATES_FILE
            write_text(path, to_csv(["what", "image", "other"], rows))
            if len(rows) > LISTED_NAMES:
                rank_zero_info(f"all duplicates are listed in {path}")


class TaskProgressBar(RichProgressBar):
    """Lightning's Rich bar with "Task k/K" for "Epoch" and the accuracy over all classes seen."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar from the screen before the table is printed."""
        self._stop_progress()

    def _get_train_description(self, current_epoch: int) -> str:
        return f"Task {current_epoch + 1}/{self.trainer.max_epochs}"

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, Any]:
        """Return only A_k of the last task, in percent."""
        metrics = super().get_metrics(trainer, pl_module)
        if "A_k" in metrics:
            return {"A_k": f"{cast(float, metrics['A_k']):.1f} %"}
        return {}


def summary_lines(module: TaskModule) -> list[str]:
    """Return one line each for accuracy, forgetting with calibration error, and costs.

    Args:
        module: that learned.
    """
    summary = module.record.summary()
    lines = []
    if summary["A_K"] is None:
        lines.append("Accuracy not measured: no test images")
    else:
        count = 0
        custom: list[str] = []
        if module.evaluation is not None:
            count = module.evaluation.images
            custom = custom_metric_lines(module.evaluation)
        kind = "held-out" if module.data.learns_held_out else "test"
        tested = f"({count:,} {kind} {module.backbone.sample}s)"
        final = number(summary["A_K"], unit=" %")
        average = number(summary["A_bar"], unit=" %")
        lines.append(
            f"Final accuracy A_K {final}, average accuracy Ā {average} {tested}"
        )
        if summary["n_classes"] == 1:
            lines.append(
                "With one class the accuracy is always 100 %: add a second class"
            )
        else:
            measured = calibration_line(module, summary["ece"])
            if summary["forgetting"] is not None:
                points = number(summary["forgetting"])
                measured = f"Forgetting {points} points, c{measured[1:]}"
            lines.append(measured)
        lines += custom
    energy = "energy not measured"
    if summary["energy_kwh"] is not None:
        # ``summary.json`` has the source of each part.
        sources = summary["energy_source"].split(", ")
        are_estimated = ["estimated" in source for source in sources]
        how = "measured"
        if all(are_estimated):
            how = "estimated"
        elif any(are_estimated):
            how = "partly estimated"
        energy = f"{summary['energy_kwh']:.1e} kWh ({how})"
    buffer = summary["buffer_elements"]
    statistics = summary["state_elements"] - buffer
    megabytes = statistics * module.element_bytes / 1e6
    megabytes += buffer * module.buffer_bytes / 1e6
    seconds = f"{summary['train_seconds']:.1f} s{largest_share(module.record)}"
    lines.append(f"Training {seconds}, {energy}, state {megabytes:.2f} MB")
    return lines


def custom_metric_lines(evaluation: Evaluation) -> list[str]:
    """Return a line on the value of each custom metric."""
    lines = []
    for name, value in evaluation.metrics.items():
        column = custom_column(name)
        lines.append(f"{column.title.capitalize()} {number(value, column.form)}")
    return lines


def calibration_line(module: TaskModule, ece: float | None) -> str:
    """Return a line on the calibration error in percent, and how to calibrate where nothing is."""
    facts = [f"ECE, {ECE_BINS} bins"]
    if isinstance(module, CIFNetModule):
        facts += module.model.calibration_notes()
    return f"Calibration error {number(ece, unit=' %')} ({'; '.join(facts)})"


def largest_share(record: RunRecord) -> str:
    """Return what took most of the training time, and its share: it limits the run."""
    seconds = {"images": 0.0, "solve": 0.0, "backbone": 0.0}
    for row in record.rows:
        waiting = row.waiting_seconds or 0.0
        seconds["images"] += waiting
        seconds["solve"] += row.solve_seconds
        seconds["backbone"] += row.train_seconds - waiting - row.solve_seconds
    total = sum(seconds.values())
    if not total or not seconds["images"]:
        return ""
    slowest = max(seconds, key=seconds.__getitem__)
    return f" ({slowest} {100 * seconds[slowest] / total:.0f} %)"


def class_warnings(module: TaskModule) -> list[str]:
    """Return warnings about classes with few test samples, or hardly ever predicted."""
    lines: list[str] = []
    sample = module.backbone.sample
    evaluation = module.evaluation
    if evaluation is None:
        return lines
    names = evaluation.class_names
    few = []
    for name, count in zip(names, evaluation.class_counts[1].tolist(), strict=True):
        if count < MIN_TEST_IMAGES:
            few.append(f"{printable(name)} ({count})")
    if few:
        lines.append(f"Fewer than {MIN_TEST_IMAGES} test {sample}s: {listed(few)}")
    model = getattr(module, "model", None)
    return lines + rarely_predicted_notes(evaluation.rarely_predicted, model)


class RunTable(Callback):
    """Prints one table with a row per task, and a summary.

    Without a terminal, each row is printed when its task ends. On a terminal the progress bar
    stands there meanwhile, and the table follows at the end.
    """

    console = Console()
    _printed_lines = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the row of the task, unless the progress bar is shown."""
        fits = trainer.state.fn == "fit" and trainer.is_global_zero
        if fits and not self.console.is_terminal:
            # The lower border follows at the end.
            self._print_table(cast(TaskModule, pl_module).record, borders=1)

    def _print_table(self, record: RunRecord, borders: int = 0) -> None:
        """Print the lines of the run's table that were not printed yet, but for its lowest ones.

        It fits into 80 columns.
        """
        columns = [column for column in record.columns if column.screen]
        rows = []
        for row in record.rows:
            cells = [number(vars(row).get(c.task), c.form) for c in columns]
            rows.append(cells)
        header = [column.screen for column in columns]
        with self.console.capture() as capture:
            self.console.print(table(header, rows, names=()))
        lines = capture.get().splitlines()
        lines = lines[: len(lines) - borders]
        for line in lines[self._printed_lines :]:
            self.console.out(line, highlight=False)
        self._printed_lines = len(lines)

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        """Print the result of validate or test, once the progress bar is gone."""
        module = cast(TaskModule, pl_module)
        evaluation = module.evaluation
        if (
            stage not in ("validate", "test")
            or not trainer.is_global_zero
            or evaluation is None
        ):
            return
        rows = []
        accuracies = zip(module.learned_tasks, evaluation.task_accuracy, strict=True)
        for task, (names, accuracy) in enumerate(accuracies, 1):
            rows.append((str(task), str(len(names)), number(accuracy)))
        shown = table(("task", "classes", "accuracy %"), rows, names=())
        shown.add_section()
        shown.add_row("all", str(len(module.class_names)), number(evaluation.accuracy))
        self.console.print(shown)
        print_text(calibration_line(module, evaluation.ece))
        for line in custom_metric_lines(evaluation) + class_warnings(module):
            print_text(line)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what is going to be learned, and on which device."""
        module = cast(TaskModule, pl_module)
        self._printed_lines = 0
        if not trainer.is_global_zero:
            return
        plan = module.data.plan
        done = module.tasks_finished
        tasks = len(plan.tasks)
        summary = (
            f"{number_of(len(plan.classes), 'class')} in {number_of(tasks, 'task')}"
        )
        device = module.device.type
        if done == tasks:
            print_text(
                f"{summary}: all tasks are learned already, nothing is left to do"
            )
            return
        if trainer.world_size > 1:
            device = f"{trainer.world_size} x {device}"
        summary += f" on {device}"
        model = getattr(module, "model", None)
        if model is not None:
            summary += f", {model.backbone.features:,} features"
        if trainer.ckpt_path:
            summary += f", resumed after task {done}"
        print_text(summary)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Print how to resume an interrupted run."""
        done = cast(TaskModule, pl_module).tasks_finished
        interrupted = isinstance(exception, KeyboardInterrupt | SystemExit)
        if trainer.state.fn == "fit" and trainer.is_global_zero and interrupted:
            print_text(
                f"stopped after task {done}: resume by the same command, --ckpt_path last"
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the rest of the table, the summary, where the run is, and what comes next."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero:
            return
        module = cast(TaskModule, pl_module)
        record = module.record
        if not record.rows:
            raise CifnetError(
                "nothing was learned: the limits of the trainer leave no task"
            )
        self._print_table(record)
        lines = summary_lines(module)
        if "unknown" in record.remarks:
            lines.append(record.remarks["unknown"])
        advice = None
        is_model = folder is not None and (folder / COMPLETE).is_dir()
        backbone = module.backbone
        head = ""
        if isinstance(module, CIFNetModule):
            is_model = folder is not None
            head = import_name(type(module.head))
            lines += module.model.accuracy_sentences()
            if module.model.calibration.estimate_kind in ("found", "given"):
                advice = (
                    "For new groups add five images a class: cifnet extend --more true"
                )
        if folder is not None:
            lines.append(f"Run folder {folder}{record.remarks.get('folder', '')}")
        lines += class_warnings(module)
        if advice is not None:
            lines.append(advice)
        if is_model:
            words = ("export", "--model", str(folder), "--output", "MODEL")
            imports = plugin_imports(head, backbone.name, backbone.architecture)
            lines.append(next_command(*words, trust=bool(imports)))
        for line in lines:
            print_text(line)
