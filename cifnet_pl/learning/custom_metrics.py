"""Custom metrics: a ``Metric`` of torchmetrics by its import is measured after every task."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torchmetrics import Metric

from cifnet_pl.learning.columns import TASK_COLUMNS
from cifnet_pl.utilities.errors import UsageError, explained
from cifnet_pl.utilities.plugins import failure, import_object

MetricFactory = Callable[[int], Metric]
"""Makes a metric for a number of classes, as the multi-class metrics of torchmetrics do."""


def import_metrics(names: Iterable[str]) -> dict[str, MetricFactory]:
    """Import custom metrics.

    Args:
        names: imports, such as "my_metrics.WorstClass".

    Returns:
        Name of the column, such as "worst_class" → what makes the metric.

    Raises:
        UsageError: an import fails, or two columns have one name.
    """
    factories: dict[str, MetricFactory] = {}
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


def check_metrics(factories: Mapping[str, MetricFactory]) -> None:
    """Try custom metrics on two samples before a run.

    Raises:
        UsageError: one fails, or gives something else than one number.
    """
    for name, factory in factories.items():
        with explained(UsageError, f"metric {name} fails", reason=failure):
            metric = factory(2)
            metric.update(torch.eye(2, dtype=torch.float64), torch.tensor([0, 1]))
            float(metric.compute())


def values_of(metrics: Mapping[str, Metric]) -> dict[str, float | None]:
    """Return the value of each metric over all processes; None where it is not finite."""
    values: dict[str, float | None] = {}
    for name, metric in metrics.items():
        value = float(metric.compute())
        values[name] = value if math.isfinite(value) else None
    return values
