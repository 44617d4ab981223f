"""Compare two methods: differences over the same seeds and test images, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cifnet_pl.report.runs import correct_predictions, paired_predictions
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import (
    bootstrap_interval,
    mcnemar,
    paired_test,
    seed_interval,
    without_deviation,
)
from cifnet_pl.report.study import Group, Outcome, Study
from cifnet_pl.report.table_formats import Cell, Column, ReportTable
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.text import slug

NO_IMAGES = (
    "No test images are compared: run with --predictions.every_task true to keep the"
    " predictions."
)

METHOD_NOTE = (
    "Difference: {first} minus {second}, over the seeds, class orders and test images that both"
    " have. Interval over seeds: t distribution. Interval over images: bootstrap (10,000 resamples"
    " of the test images, the same ones for all seeds, and of the seeds). p over seeds: paired"
    " t-test; empty where all seeds have the same difference. p over images: McNemar's exact test."
)


# ---------------------------------------------------------------------- which groups


def compare_methods(study: Study, names: Sequence[str]) -> list[ReportTable]:
    """Compare two methods wherever both were run on the same data.

    Args:
        study: all results.
        names: two methods. Each is a label as the tables have it, also with its backbone, or the
            name of a method, for its reference in each setting.

    Returns:
        A table for each pair of groups that have a seed in common.

    Raises:
        UsageError: not two names, an unknown one, or no data and seed that both have.
    """
    if len(names) != 2:
        raise UsageError(
            f"--compare takes two methods, but got {len(names)}: {', '.join(names)}"
        )
    pairs = []
    for first in _groups_named(study, names[0]):
        for second in _groups_named(study, names[1]):
            same_data = first.setting.data == second.setting.data
            if same_data and first is not second:
                pairs.append((first, second))
    if not pairs:
        raise UsageError(
            f"{names[0]} and {names[1]} were run on different data: compare methods of one data"
            " set and task protocol (table runs.csv lists the settings)"
        )
    tables = []
    for first, second in pairs:
        table = comparison_table(study, first, second)
        if table.rows:
            tables.append(table.without_empty())
    if not tables:
        raise UsageError(
            f"{names[0]} and {names[1]} have no common seed and class order: run both with the"
            " same seeds (table runs.csv lists them)"
        )
    return tables


def _groups_named(study: Study, name: str) -> list[Group]:
    """Return the groups that one of two compared names stands for, at most one of each setting."""
    found: dict[Setting, Group] = {}
    for group in study.groups:
        if name in (group.label, _with_backbone(group)):
            found[group.setting] = group
        elif group.name == name and (group.is_reference or group.kind == "external"):
            found.setdefault(group.setting, group)
    if not found:
        known: dict[str, None] = {}
        for group in study.groups:
            known[group.label] = known[group.name] = None
        raise unknown_name("method for --compare", name, known)
    return list(found.values())


def _with_backbone(group: Group) -> str:
    return f"{group.label}, {group.setting.backbone_title}"


# ---------------------------------------------------------------------- their differences


@dataclass(frozen=True)
class Difference:
    """One row of a comparison.

    Attributes:
        quantity: what is compared, and over what.
        first, second: means of both methods in percent.
        interval: of the difference in points, if it could be computed.
        seeds: number of common seeds.
        images: number of common test images.
        only_first, only_second: numbers of images that only one method predicts correctly.
        p: of the test, if there is one.
    """

    quantity: str
    first: float
    second: float
    interval: tuple[float, float] | None
    seeds: int
    images: int | None = None
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None

    def cells(self) -> list[Cell]:
        """Return the row of the table."""
        low, high = self.interval or (None, None)
        difference = self.first - self.second
        numbers = [self.first, self.second, difference, low, high]
        numbers += [self.seeds, self.images, self.only_first, self.only_second]
        p = None
        if self.p is not None:
            if self.p >= 0.001:
                p = f"{self.p:.3f}"
            else:
                p = "< 0.001"
        return [self.quantity, *map(without_deviation, numbers), p]


def comparison_table(study: Study, a: Group, b: Group) -> ReportTable:
    """Tabulate the differences of two groups on the same data.

    The rows are: Ā and A_K over seeds, A_K over seeds and images, and A_K of each seed over its
    images. There is no row without a common seed.

    Args:
        study: that has them.
        a, b: the groups; their backbones tell them apart where these differ.
    """
    first = a.label
    second = b.label
    if a.setting.backbone_title != b.setting.backbone_title:
        first = _with_backbone(a)
        second = _with_backbone(b)
    if a.setting == b.setting:
        title = study.names[a.setting]
    else:
        title = a.setting.short
    columns = [
        Column("quantity"),
        Column(first),
        Column(second),
        Column("difference (points)"),
    ]
    columns += [
        Column("95 % from"),
        Column("95 % to"),
        Column("seeds", 0),
        Column("images", 0),
    ]
    columns += [Column(f"only {first} correct", 0), Column(f"only {second} correct", 0)]
    columns.append(Column("p"))
    predictions, notes = _common_predictions(a, b)
    if not predictions:
        notes.append(NO_IMAGES)
    over_images = _over_images(predictions)
    differences = [*_over_seeds(a, b), *over_images]
    file = f"comparison_{slug(title.lower())}"
    heading = f"{first} against {second}: {title}"
    rows = [difference.cells() for difference in differences]
    note = METHOD_NOTE.format(first=first, second=second)
    return ReportTable(
        file,
        heading,
        columns,
        rows,
        [f"{title}. {note}", *notes],
    )


def _over_seeds(a: Group, b: Group) -> Iterator[Difference]:
    """Yield the differences of A_K and Ā over the common seeds."""
    quantities = (("A_K", "final accuracy A_K"), ("A_bar", "average accuracy Ā"))
    for key, title in quantities:
        stat_a = a.stat(key)
        stat_b = b.stat(key)
        if stat_a is None or stat_b is None:
            continue
        common = []
        for seed in stat_a.by_seed:
            if seed in stat_b.by_seed:
                common.append(seed)
        if not common:
            continue
        of_first = [stat_a.by_seed[seed] for seed in common]
        first = np.array(of_first)
        of_second = [stat_b.by_seed[seed] for seed in common]
        second = np.array(of_second)
        yield Difference(
            quantity=f"{title}, over seeds",
            first=first.mean(),
            second=second.mean(),
            interval=seed_interval(first - second),
            seeds=len(common),
            p=paired_test(first - second),
        )


def _over_images(
    predictions: Mapping[int | None, pd.DataFrame],
) -> Iterator[Difference]:
    """Yield the difference of A_K over all seeds, if there are several, and for each seed."""
    if len(predictions) > 1:
        frames = list(predictions.values())
        first_accuracies = [frame["a"].mean() for frame in frames]
        second_accuracies = [frame["b"].mean() for frame in frames]
        yield Difference(
            quantity="final accuracy A_K, over seeds and images",
            first=100 * float(np.mean(first_accuracies)),
            second=100 * float(np.mean(second_accuracies)),
            interval=bootstrap_interval(frames),
            seeds=len(frames),
            images=min(map(len, frames)),
        )
    for seed, frame in predictions.items():
        test = mcnemar(frame)
        yield Difference(
            quantity=f"final accuracy A_K, over images, seed {seed}",
            first=100 * frame["a"].mean(),
            second=100 * frame["b"].mean(),
            interval=bootstrap_interval([frame]),
            seeds=1,
            images=len(frame),
            only_first=test.only_first,
            only_second=test.only_second,
            p=test.p,
        )


def _outcomes_with_predictions(group: Group) -> dict[str, Outcome]:
    """Return the outcomes whose predictions were kept, by seed and class order.

    A seed that ran on two machines, or with and without the cache, counts once.
    """
    outcomes = {}
    for outcome in group.outcomes:
        if outcome.predictions:
            outcomes[outcome.key] = outcome
    return outcomes


def _common_predictions(
    a: Group, b: Group
) -> tuple[dict[int | None, pd.DataFrame], list[str]]:
    """Return each common seed's predictions on the images that both have.

    Returns:
        Seed → :func:`paired_predictions`, and a note for each seed where one has further images.
    """
    others = _outcomes_with_predictions(b)
    predictions: dict[int | None, pd.DataFrame] = {}
    notes = []
    for key, outcome in _outcomes_with_predictions(a).items():
        if key not in others:
            continue
        first = outcome.predictions
        second = others[key].predictions
        assert first is not None
        assert second is not None
        frame = paired_predictions(first, second)
        n_first = len(correct_predictions(first))
        n_second = len(correct_predictions(second))
        if len(frame):
            predictions[outcome.seed] = frame
        if len(frame) < max(n_first, n_second):
            common = len(frame)
            notes.append(
                f"Seed {outcome.seed}: {common} test images are common to both, of {n_first}"
                f" and {n_second}."
            )
    return predictions, notes


def comparison_lines(table: ReportTable) -> list[str]:
    """Return the rows of a comparison for the screen, one line each."""
    lines = []
    for i in range(len(table.rows)):
        values = []
        for j, header in enumerate(table.headers):
            text = table.text(i, j)
            if j > 0 and text != "–":
                values.append(f"{header} {text}")
        name = table.text(i, 0)
        lines.append(f"{name}: {'; '.join(values)}")
    return lines
