"""The numbers that are measured of a run, one row for each: this table says where each is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

ACCURACY = "accuracy"
RESULTS = "results"
COSTS = "costs"
MEMORY = "memory"
COMPARISON = "comparison"
"""Tables of reports."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number that is measured of each task, of the whole run, or of both.

    Attributes:
        task: its column of ``tasks.csv``; empty for a number of the whole run alone.
        run: its key in ``summary.json``; by default that of ``task``, where there is ``over_tasks``.
        over_tasks: how the number of the run follows from those of its tasks: the last one, their
            sum, or all of them as a list; empty where it is computed otherwise, or not at all.
        over_seeds: which runs its mean and deviation are over: "distinct" ones, of runs with equal
            answers only the first, or "every" run, as for costs.
        title: its name in reports; by default that of ``task`` or ``run``.
        words: of its title in sentences, such as "final accuracy"; empty for none.
        unit: in reports.
        scale: what one unit is in the files, such as 60 for minutes of seconds.
        tables: those of reports that have it.
        screen: its header in the table of a run on the screen; empty where it is not there.
        form: of its numbers on the screen, as :func:`format` takes it.
        tag: in TensorBoard; empty where it is not there.
    """

    task: str = ""
    run: str = ""
    over_tasks: Literal["last", "sum", "all", ""] = ""
    over_seeds: Literal["distinct", "every"] = "distinct"
    title: str = ""
    words: str = ""
    unit: str = ""
    scale: float = 1.0
    tables: tuple[str, ...] = ()
    screen: str = ""
    form: str = ".1f"
    tag: str = ""

    @property
    def key(self) -> str:
        """Its key in ``summary.json``, and the name of its column in the results of reports."""
        return self.run or self.task

    @property
    def header(self) -> str:
        """Its title and unit, above a column of a report."""
        title = self.title or self.key
        if self.unit:
            return f"{title} ({self.unit})"
        return title

    @property
    def long_title(self) -> str:
        """Its title with its words, for sentences and comparisons."""
        return f"{self.words} {self.title}".strip()

    def of_run(self, values: Sequence[Any]) -> Any:
        """Return the number of a run from those of its tasks; None where one is missing.

        Args:
            values: of each task.
        """
        if self.over_tasks == "last":
            return values[-1]
        if None in values:
            return None
        if self.over_tasks == "sum":
            return sum(values)
        return list(values)


COLUMNS = (
    Column(task="task", screen="task", form=""),
    Column(
        task="classes_seen",
        run="n_classes",
        over_tasks="last",
        screen="classes",
        form="",
    ),
    Column(
        task="A_k",
        run="A_K",
        over_tasks="last",
        title="A_K",
        words="final accuracy",
        unit="%",
        tables=(ACCURACY, RESULTS, COSTS, COMPARISON),
        screen="A_k %",
        tag="acc/seen",
    ),
    Column(
        task="average",
        run="A_bar",
        over_tasks="last",
        title="Ā",
        words="average accuracy",
        unit="%",
        tables=(ACCURACY, RESULTS, COMPARISON),
        screen="Ā %",
        tag="acc/average",
    ),
    Column(
        task="forgetting",
        over_tasks="last",
        unit="%",
        tables=(RESULTS,),
        screen="forgetting",
        tag="forgetting",
    ),
    Column(run="bwt", title="backward transfer", unit="%", tables=(RESULTS,)),
    Column(
        run="forward_transfer", title="forward transfer", unit="%", tables=(RESULTS,)
    ),
    Column(run="max_drop", title="largest drop", unit="%", tables=(RESULTS,)),
    Column(
        task="ece",
        over_tasks="last",
        title="ECE",
        unit="%",
        tables=(RESULTS,),
        screen="ECE %",
        tag="ece",
    ),
    Column(
        run="network_params",
        over_seeds="every",
        title="backbone",
        unit="M",
        scale=1e6,
        tables=(COSTS, MEMORY),
    ),
    Column(run="epochs", over_seeds="every", tables=(COSTS,)),
    Column(
        task="train_seconds",
        over_tasks="sum",
        over_seeds="every",
        title="training",
        unit="min",
        scale=60,
        tables=(COSTS,),
        screen="seconds",
        tag="seconds/train",
    ),
    Column(task="solve_seconds"),
    Column(
        task="eval_seconds",
        over_tasks="sum",
        tag="seconds/evaluation",
    ),
    Column(
        task="energy_kwh",
        over_tasks="sum",
        over_seeds="every",
        title="energy",
        unit="kWh",
        tables=(COSTS,),
        tag="energy/kwh",
    ),
    Column(task="energy_source", over_tasks="last"),
    Column(
        run="A_K_per_kwh", over_seeds="every", title="A_K per kWh", tables=(COSTS,)
    ),
    Column(
        run="co2_kg", over_seeds="every", title="CO₂", unit="kg", tables=(COSTS,)
    ),
    Column(
        task="state_elements",
        over_tasks="last",
        tag="memory/state_elements",
    ),
    Column(task="buffer_elements", over_tasks="last"),
    Column(
        run="state_bytes",
        over_seeds="every",
        title="stored",
        unit="MB",
        scale=1e6,
        tables=(MEMORY,),
    ),
    Column(task="eval_energy_kwh", over_tasks="sum"),
    Column(
        task="nll",
        over_tasks="last",
        title="NLL",
        tables=(RESULTS,),
        tag="nll",
    ),
    Column(
        task="top5",
        over_tasks="last",
        title="top-5",
        unit="%",
        tables=(RESULTS,),
        tag="acc/top5",
    ),
    Column(task="cached_images", over_tasks="sum"),
    Column(
        task="set_size",
        over_tasks="last",
        title="prediction set size",
        tables=(RESULTS,),
        tag="prediction_sets/size",
    ),
    Column(
        task="set_coverage",
        over_tasks="last",
        title="prediction set coverage",
        unit="%",
        tables=(RESULTS,),
        tag="prediction_sets/coverage",
    ),
    Column(
        task="known_rejected",
        over_tasks="last",
        title="known rejected",
        unit="%",
        tables=(RESULTS,),
        tag="unknown/rejected",
    ),
    Column(
        task="unknown_auroc",
        over_tasks="last",
        title="unknown AUROC",
        unit="%",
        tables=(RESULTS,),
        tag="unknown/auroc",
    ),
    Column(
        task="unknown_fpr95",
        over_tasks="last",
        title="unknown FPR95",
        unit="%",
        tables=(RESULTS,),
        tag="unknown/fpr95",
    ),
    Column(
        task="A_k_classifier",
        over_tasks="all",
        tag="acc/classifier",
    ),
    Column(
        task="A_k_nearest_mean",
        over_tasks="all",
        tag="acc/nearest_mean",
    ),
    Column(task="waiting_seconds"),
)
"""All numbers, in the order of their columns.

``set_size`` and ``set_coverage`` are of prediction sets at 95 %; ``known_rejected`` is the share of
test images that are called unknown where 5 % was asked for. ``waiting_seconds`` is the part of
``train_seconds`` in which the pass waited for decoded images, on a GPU without waits that ended
while it still embedded, and ``solve_seconds`` what followed the pass; the rest is the backbone's.
"""

TASK_COLUMNS = tuple(column.task for column in COLUMNS if column.task)


def columns_of(table: str) -> list[Column]:
    """Return the columns of a table of reports, in order."""
    return [column for column in COLUMNS if table in column.tables]


def custom_column(name: str) -> Column:
    """Return the column of a custom metric, which is shown wherever metrics are.

    Args:
        name: of the metric.
    """
    title = name.replace("_", " ")
    return Column(
        task=name,
        run=f"metrics.{name}",
        over_tasks="last",
        title=title,
        tables=(RESULTS, COMPARISON),
        form=".4g",
        tag=f"metrics/{name}",
    )
