"""The numbers that are measured of a run: a row of ``columns.csv`` says where each is shown.

Custom metrics add columns: a ``Metric`` of torchmetrics by its import, measured after every task.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.plugins import import_object

if TYPE_CHECKING:
    from torchmetrics import Metric


class Column(BaseModel, frozen=True):
    """A number that is measured of each task, of the whole run, or of both.

    Attributes:
        task: its column of ``tasks.csv``; empty for a number of the whole run alone.
        run: its key in ``summary.json`` and in the results of reports, by default ``task``; it
            stands there only with ``over_tasks``, or where it is of the whole run.
        over_tasks: how the number of the run follows from those of its tasks: the last one, their
            sum, or all of them as a list; empty where it is computed otherwise, or not at all.
        over_seeds: which runs its mean and deviation are over: "distinct" ones, of runs with equal
            answers only the first, or "every" run, as for costs.
        title: its name in reports; by default that of ``task`` or ``run``.
        words: of its title in sentences, such as "final accuracy"; empty for none.
        unit: in reports.
        scale: what one unit is in the files, such as 60 for minutes of seconds.
        tables: those of reports that have it: results, costs, memory, comparison.
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
    tables: str = ""
    screen: str = ""
    form: str = ".1f"
    tag: str = ""

    @property
    def header(self) -> str:
        """Its title and unit, above a column of a report."""
        title = self.title or self.run
        if self.unit:
            return f"{title} ({self.unit})"
        return title


COLUMNS: list[Column] = []
"""All numbers, in the order of their columns.

``set_size`` and ``set_coverage`` are of prediction sets at 95 %; ``known_rejected`` is the share of
test images that are called unknown where 5 % was asked for. ``waiting_seconds`` is the part of
``train_seconds`` in which the pass waited for decoded images, on a GPU without waits that ended
while it still embedded, and ``solve_seconds`` what followed the pass; the rest is the backbone's.
"""

with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    for _row in csv.DictReader(_file):
        # An empty cell is the default.
        _given = {name: cell for name, cell in _row.items() if cell}
        COLUMNS.append(Column.model_validate({"run": _row["task"], **_given}))

BY_KEY = {column.run: column for column in COLUMNS}

TASK_COLUMNS = tuple(column.task for column in COLUMNS if column.task)


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
        tables="results comparison",
        form=".4g",
        tag=f"metrics/{name}",
    )


def import_metrics(names: Iterable[str]) -> dict[str, Callable[[int], Metric]]:
    """Import custom metrics.

    Args:
        names: imports, such as "my_metrics.WorstClass".

    Returns:
        Name of the column, such as "worst_class" → what makes the metric for a number of classes,
        as the multi-class metrics of torchmetrics do.

    Raises:
        UsageError: an import fails, or two columns have one name.
    """
    factories: dict[str, Callable[[int], Metric]] = {}
    for name in names:
        factory = import_object(name)
        last_word = name.rpartition(".")[2]
        column = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", last_word).lower()
        if column in (*TASK_COLUMNS, *factories):
            raise UsageError(
                f"--metrics {name}: there is a column {column} already, rename the metric"
            )
        factories[column] = factory
    return factories
