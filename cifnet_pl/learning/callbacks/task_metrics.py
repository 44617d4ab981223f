"""Write what a run was and measured: its description, tables, predictions, figures, TensorBoard."""

import hashlib
import io
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from torch.nn.functional import pad

from cifnet_pl.backbones import plugin_imports
from cifnet_pl.data.loading import Batch
from cifnet_pl.data.samples import Source
from cifnet_pl.data.streams import Stream
from cifnet_pl.images.reader import usable_cores
from cifnet_pl.learning.callbacks.checkpoint import HeldOutImages
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.screen import (
    DuplicatesReport,
    RunTable,
    TaskProgressBar,
)
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import Table, run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.drawing import draw_confusion, draw_trajectory, png
from cifnet_pl.model.metrics import TOP_K, top_classes
from cifnet_pl.utilities.files import (
    dump_yaml,
    flatten,
    write_atomic,
    write_bytes,
    write_json,
    write_text,
)
from cifnet_pl.utilities.plugins import (
    code_hash,
    defaults_of,
    entry_point,
    import_name,
    names_import,
    optional,
    title_of,
)
from cifnet_pl.utilities.run_folders import COMPLETE
from cifnet_pl.utilities.text import number_of, utf8
from cifnet_pl.utilities.version import __version__

PACKAGES = ("torch", "torchvision", "lightning", "codecarbon")

FINGERPRINT_SAMPLES = 256
"""Samples of each set whose contents are part of its fingerprint."""

FINAL_METRICS = ("A_K", "A_bar", "forgetting", "state_elements")
"""Figures of ``summary.json`` in TensorBoard's table of runs."""


@dataclass(eq=False)
class TaskMetrics(Callback):
    """Write the record of a run; comes after the callbacks that fill it, such as EnergyMonitor.

    ``tasks.csv``, ``accuracy_matrix.csv`` and ``class_accuracy.csv`` are written after each task,
    ``confusion.csv`` after the last one: numbers of test images, true classes in rows, predicted
    ones in columns. ``summary.json`` ends the run.

    Args:
        config: content of ``config.yaml``; empty to describe the module and its data there.
    """

    config: str = ""

    def on_train_start(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Remove the end of a finished run that goes on, and write its configuration.

        A folder with a configuration is a run's folder.
        Plug-ins are hashed before they learn: their files may be edited while the run goes on.
        """
        plugin_hashes(pl_module)
        folder = run_folder(trainer)
        if folder is None:
            return
        # A run with a summary is complete.
        for name in ("summary.json", "confusion.csv", "confusion.png"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / COMPLETE, ignore_errors=True)
        path = folder / "config.yaml"
        if self.config:
            write_text(path, self.config)
        elif not path.exists():
            write_text(path, dump_yaml(configuration(pl_module)))

    def on_validation_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Write the tables, log the task to TensorBoard, and add it to the model's history."""
        if trainer.state.fn != "fit":
            return
        record = pl_module.record
        row = record.rows[-1]
        if isinstance(pl_module, CIFNetModule):
            pl_module.model.record_event(
                "task",
                accuracy=row.A_k,
                seconds=row.train_seconds,
                energy_kwh=row.energy_kwh,
                energy_source=row.energy_source,
                class_names=list(pl_module.learned_tasks[-1]),
            )
        if pl_module.is_complete:
            names = pl_module.class_names
            counts = pl_module.evaluation.confusion.tolist()
            rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
            record.tables["confusion.csv"] = Table(["true_class", *names], rows)
        folder = run_folder(trainer)
        if folder is not None:
            record.write_tables(folder, pl_module.learned_tasks)
            values = {}
            for column in record.columns:
                value = vars(row).get(column.task)
                if column.tag and value is not None:
                    values[column.tag] = float(value)
            for task, accuracy in enumerate(record.matrix[-1], 1):
                if accuracy is not None:
                    values[f"acc_of_task/{task}"] = accuracy
            for logger in trainer.loggers:
                logger.log_metrics(values, step=len(record.rows))
        record.tables.clear()

    def on_fit_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Write ``summary.json`` of a run that has learned all its tasks.

        TensorBoard's table of runs gets the settings and the final metrics.
        """
        folder = run_folder(trainer)
        if folder is None or not pl_module.is_complete:
            return
        if not (folder / "tasks.csv").is_file():
            return
        summary = pl_module.record.summary(**describe_run(pl_module))
        write_json(folder / "summary.json", summary)
        metrics = {
            f"final/{name}": summary[name]
            for name in FINAL_METRICS
            if summary[name] is not None
        }
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flatten(pl_module.settings()), metrics)


def describe_run(module: TaskModule) -> dict[str, Any]:
    """Return the fields of ``summary.json`` besides measurements and energy.

    ``network_params`` are the parameters of one network, ``backbone_params`` those of all networks
    that predict.

    Args:
        module: the module that learned, attached to its Trainer.
    """
    data = module.data
    # Not the module's own device: at the end Lightning has moved the module back to the CPU.
    device = module.trainer.strategy.root_device
    components = module.state_elements()
    parameters = module.backbone.parameters_count
    method = module.method
    versions = {"python": platform.python_version(), "cifnet_pl": __version__}
    for package in PACKAGES:
        versions[package] = version(package)
    return {
        "head": method.__name__,
        "title": title_of(method),
        "defaults": defaults_of(method),
        "backbone": module.backbone.name,
        "backbone_params": parameters,
        "network_params": parameters,
        "precision": str(module.trainer.precision),
        "plugin_hashes": plugin_hashes(module),
        **module.describe(),
        "epochs": module.epochs,
        "state_components": components,
        "state_bytes_per_element": {
            name: module.buffer_bytes if name == "buffer" else module.element_bytes
            for name in components
        },
        "image_size": data.image_shape[0],
        "seed": global_seed(),
        "class_order": module.class_names,
        "tasks": module.learned_tasks,
        "data_fingerprint": fingerprint(data.source),
        "versions": versions,
        "git_commit": package_commit(),
        **machine(device),
        "processes": module.trainer.world_size,
    }


def plugin_hashes(module: TaskModule) -> dict[str, str | None]:
    """Return the plug-ins of a run, with the SHA-256 of each file as it was at the first call."""
    source = module.data.source_name
    backbone = module.backbone
    names = [
        *plugin_imports(backbone.name, backbone.architecture),
        import_name(type(module)),
        import_name(module.method),
        entry_point("sources", source) or source,
        *map(import_name, module.metrics.values()),
    ]
    return {name: code_hash(name) for name in names if names_import(name)}


def global_seed() -> int | None:
    """Return the seed of ``seed_everything``; None if it was not called."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    if not seed:
        return None
    return int(seed)


def machine(device: torch.device, info: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Describe the machine of a run.

    Args:
        device: of the run.
        info: Linux's description of the processors.

    Returns:
        ``device``, ``machine`` (a line for people), ``processor`` (its model, as the system calls
        it), ``gpu`` (None without one), ``cores`` that this process may use, and ``threads`` of
        torch.
    """
    text = ""
    if info.exists():
        text = info.read_text(encoding="utf-8")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    if model:
        name = " ".join(model[1].split())
    else:
        name = platform.processor() or platform.machine()
    cores = usable_cores()
    gpu = None
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
    elif device.type != "cpu":
        gpu = f"{name} ({device.type})"
    return {
        "device": gpu or platform.machine(),
        "machine": gpu or f"{name}, {number_of(cores, 'core')}",
        "processor": name,
        "gpu": gpu,
        "cores": cores,
        "threads": torch.get_num_threads(),
    }


@cache
def package_commit(folder: Path = Path(__file__).parents[2]) -> str | None:
    """Return the git commit of the package, with "+changes" if its files differ from it.

    Args:
        folder: of the package.

    Returns:
        None outside a repository. A package that is installed below someone else's repository does
        not belong to it.
    """
    questions = (
        ("ls-files", "--error-unmatch", "__init__.py"),
        ("rev-parse", "HEAD"),
        ("status", "--porcelain", "--untracked-files=no", "--", "."),
    )
    answers = []
    for question in questions:
        command = ["git", "-C", str(folder), *question]
        try:
            output = subprocess.check_output(
                command, stderr=subprocess.DEVNULL, text=True, timeout=10
            )
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(output.strip())
    _, commit, changes = answers
    if changes:
        return f"{commit}+changes"
    return commit


def fingerprint(source: Source) -> str:
    """Hash a data set as it is split.

    The hash covers the class, the name and, for files, the size of every sample, and the contents
    of 256 samples of each set, evenly spread: to read all would take as long as to learn them.

    Args:
        source: the two sets; contents whose hashes are known are not read again.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for samples in (source.train, source.test):
        digest.update(b"\0\0")
        for row, name in enumerate(samples.names):
            class_name = source.class_names[samples.labels[row]]
            text = f"{class_name}\0{name}\0{samples.size(row)}\0"
            digest.update(text.encode("utf-8", "surrogateescape"))
        count = min(len(samples), FINGERPRINT_SAMPLES)
        spread = np.linspace(0, len(samples) - 1, count)
        digest.update(samples.hashes(spread.round().astype(np.int64)).tobytes())
    return digest.hexdigest()[:16]


def configuration(module: TaskModule) -> dict[str, Any]:
    """Return the content of ``config.yaml`` of a run that was not started by the command line.

    Args:
        module: attached to a Trainer with its data module.
    """
    data: dict[str, Any] = {}
    for name, value in module.data.given.items():
        if isinstance(value, Path):
            data[name] = str(value)
        elif isinstance(value, Stream):
            data[name] = _class_and_arguments(value, vars(value))
        else:
            data[name] = value
    return {
        "seed_everything": global_seed(),
        "model": _class_and_arguments(module, _model_arguments(module)),
        "data": data,
    }


def _model_arguments(module: TaskModule) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "backbone": module.backbone.name,
        "architecture": module.backbone.architecture,
    }
    if not isinstance(module, CIFNetModule):
        settings = module.settings()
        del settings["module"]
        return settings | arguments
    head = dict(module.head.settings())
    head.pop("in_features", None)
    arguments["head"] = _class_and_arguments(module.head, head)
    if module.buffer is not None:
        arguments["buffer"] = _class_and_arguments(
            module.buffer, module.buffer.settings()
        )
    arguments["calibrate"] = module.model.calibrated
    return arguments


def _class_and_arguments(instance: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object and its arguments as a configuration names them."""
    kind = type(instance)
    return {
        "class_path": f"{kind.__module__}.{kind.__qualname__}",
        "init_args": dict(arguments),
    }


class PredictionRecord(Callback):
    """Write the predictions of every task into the folder ``predictions.parquet``.

    There is a file for each task, and in it a row for each test image of a class seen. Columns:
    ``task`` (from 1), ``image`` (its name in the data), ``label`` (its class), and ``top_1`` …
    ``top_5`` with ``probability_1`` … ``probability_5``, null where fewer classes are known. Rows
    are in the order of tasks and then of the data, whatever the number of processes. Parquet's
    readers take the folder as one table.

    Args:
        every_task: whether to write it; needs pyarrow.

    Raises:
        UsageError: pyarrow is not installed.
    """

    def __init__(self, every_task: bool = False):
        self.every_task = every_task
        if every_task:
            optional("pyarrow", "--predictions.every_task", "tables")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: TaskModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the most probable classes to the samples of the evaluation."""
        if not self.every_task or outputs is None:
            return
        judged = pl_module.judged[-1]
        judged["row"] = batch.row
        labels, probabilities = top_classes(outputs)
        # Fewer classes than five may be known.
        missing = (0, TOP_K - labels.shape[1])
        labels = pad(labels, missing, value=-1)
        probabilities = pad(probabilities.float(), missing, value=math.nan)
        for k in range(TOP_K):
            judged[f"top_{k + 1}"] = labels[:, k]
            judged[f"probability_{k + 1}"] = probabilities[:, k]

    def on_validation_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Write the predictions of all processes, in the order of the data."""
        if not self.every_task or trainer.state.fn != "fit":
            return
        evaluation = pl_module.evaluation
        folder = run_folder(trainer)
        if folder is None or not evaluation.images:
            return
        task = pl_module.tasks_finished
        images = pl_module.data.source.test.names
        names = [utf8(name) for name in evaluation.class_names]
        name_of = pd.array(names, dtype="string")
        samples = evaluation.samples.sort_values("row", kind="stable")
        image = [utf8(images[row]) for row in samples["row"]]
        table = pd.DataFrame({"task": task, "image": image})
        table["label"] = name_of[samples["target"]]
        for k in range(1, TOP_K + 1):
            labels = samples[f"top_{k}"].to_numpy()
            table[f"top_{k}"] = name_of.take(labels, allow_fill=True)
            table[f"probability_{k}"] = samples[f"probability_{k}"].to_numpy()
        path = folder / "predictions.parquet" / f"task_{task:04}.parquet"
        write_atomic(
            path, lambda to: table.to_parquet(to, index=False, compression="zstd")
        )


class TrajectoryPlot(Callback):
    """Draw ``trajectory.png`` when a run ends, and ``confusion.png`` once it has learned all tasks.

    The trajectory shows A_k, Ā and the accuracy matrix.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Draw both, and show them in TensorBoard."""
        folder = run_folder(trainer)
        record = pl_module.record
        if folder is None or not record.rows:
            return
        title = f"{folder.parent.name}, {folder.name.replace('_', ' ')}"
        classes_seen = [row.classes_seen for row in record.rows]
        average = [row.average for row in record.rows]
        trajectory = draw_trajectory(
            classes_seen, record.trajectory, average, record.matrix, title
        )
        figures = {"trajectory": trajectory}
        evaluation = pl_module.evaluation
        if pl_module.is_complete and evaluation.images:
            figures["confusion"] = draw_confusion(
                evaluation.confusion, pl_module.class_names, title
            )
        step = trainer.global_step  # the number of tasks
        for name, figure in figures.items():
            path = folder / f"{name}.png"
            content = png(figure)
            write_bytes(path, content)
            with Image.open(io.BytesIO(content)) as opened:
                pixels = np.asarray(opened)
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    logger.experiment.add_image(name, pixels, step, dataformats="HWC")


def run_callbacks(config: str = "", progress_bar: bool = False) -> list[Callback]:
    """Return the callbacks that measure, write and show a run, in the order that they need.

    Those that measure energy come before them, and those that read complete rows after them.

    Args:
        config: content of ``config.yaml``, see :class:`TaskMetrics`.
        progress_bar: whether there is a progress bar.
    """
    callbacks = [
        CoverageAndNoveltyMetrics(),
        TaskMetrics(config),
        TrajectoryPlot(),
        HeldOutImages(),
        DuplicatesReport(),
    ]
    if progress_bar:
        callbacks.append(TaskProgressBar())
    return [*callbacks, RunTable()]
