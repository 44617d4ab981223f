"""Compare two methods: differences over the same seeds and test images, with their intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from cifnet_pl.report.page import Cell, Column, Table
from cifnet_pl.report.runs import paired, right_answers
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import bootstrap, fixed, mcnemar, paired_test, seed_interval
from cifnet_pl.report.study import Group, Study
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.text import slug

NO_IMAGES = (
    "No test images are compared: run with --predictions.every_task true to keep the predictions."
)


# ---------------------------------------------------------------------- which groups


def compare(study: Study, names: Sequence[str]) -> list[Table]:
    """Compare two methods wherever both were run on the same data.

    Args:
        study: all results.
        names: two methods, each a label as the tables have it, also with its network, or the name
            of a method, for its reference in each setting.

    Returns:
        A table for each pair of groups that have a seed in common.

    Raises:
        UsageError: not two names, an unknown one, or no data and seed that both have.
    """
    if len(names) != 2:
        raise UsageError(f"--compare takes two methods, but got {len(names)}: {', '.join(names)}")
    first, second = (_groups_named(study, name) for name in names)
    alike = [
        (a, b) for a in first for b in second if a.setting.data == b.setting.data and a is not b
    ]
    if not alike:
        data = [
            ", ".join(dict.fromkeys(study.names[group.setting] for group in groups))
            for groups in (first, second)
        ]
        raise UsageError(
            f"{names[0]} and {names[1]} were run on different data: {data[0]}, and {data[1]}"
        )
    tables = [table for a, b in alike if (table := comparison_table(study, a, b)).rows]
    if not tables:
        seeds = [
            ", ".join(f"seed {outcome.seed}" for outcome in group.outcomes) for group in alike[0]
        ]
        raise UsageError(
            f"{names[0]} and {names[1]} have no common seed and class order: {seeds[0]}, and"
            f" {seeds[1]}"
        )
    return [table.without_empty() for table in tables]


def _groups_named(study: Study, name: str) -> list[Group]:
    """Return the groups that one of two compared names stands for, at most one of each setting."""
    found: dict[Setting, Group] = {}
    for group in study.groups:
        if name in (group.label, _with_network(group)):
            found[group.setting] = group
        elif group.name == name and (group.is_reference or group.kind == "external"):
            found.setdefault(group.setting, group)
    if not found:
        labels = dict.fromkeys(
            label for group in study.groups for label in (group.label, group.name)
        )
        raise unknown_name("method for --compare", name, labels)
    return list(found.values())


def _with_network(group: Group) -> str:
    return f"{group.label}, {group.setting.network}"


# ---------------------------------------------------------------------- their differences


def comparison_table(study: Study, a: Group, b: Group) -> Table:
    """Tabulate the differences of two groups on the same data; there is no row without a common
    seed.

    Of Ā and A_K over seeds, of A_K over seeds and images, and of each seed over its images.

    Args:
        study: that has them.
        a, b: the groups; networks tell them apart where these differ.
    """
    told_apart = a.setting.network != b.setting.network
    first, second = (_with_network(group) if told_apart else group.label for group in (a, b))
    if a.setting == b.setting:
        title = study.names[a.setting]
    else:
        title = a.setting.short
    columns = [
        Column("quantity"), Column(first, 2), Column(second, 2), Column("difference (points)", 2),
        Column("95 % from", 2), Column("95 % to", 2), Column("seeds", 0), Column("images", 0),
        Column(f"only {first} right", 0), Column(f"only {second} right", 0), Column("p"),
    ]  # fmt: skip
    answers, notes = _common_answers(a, b)
    said = (
        f"{title}. Difference: {first} minus {second}, over the seeds and class orders, and the"
        " test images, that both have. Interval: over seeds of a t distribution; over images by"
        " bootstrap (10,000 resamples of the test images, the same ones for all seeds, and of the"
        " seeds). p: over seeds of a paired t-test (neither where all seeds have the same"
        " difference), over images of McNemar's exact test. An interval that leaves zero out is a"
        " difference beyond chance; the column before it says how large it is."
    )
    rows = [*_over_seeds(a, b), *_over_images(answers)]
    notes = [said, *notes, *([] if answers else [NO_IMAGES])]
    return Table(
        f"comparison_{slug(title.lower())}",
        f"{first} against {second}: {title}",
        columns,
        rows,
        notes,
    )


def _row(
    what: str,
    a: float,
    b: float,
    interval: tuple[float, float] | None,
    counts: Sequence[int | None],
    p: float | None,
) -> list[Cell]:
    """Return a row: the means of both, their difference, its interval, counts (seeds, images, right
    by one), and p.
    """
    numbers = [a, b, a - b, *(interval or (None, None)), *counts]
    return [
        what,
        *map(fixed, numbers),
        None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
    ]


def _over_seeds(a: Group, b: Group) -> Iterator[list[Cell]]:
    for key, title in (("A_K", "final accuracy A_K"), ("A_bar", "average accuracy Ā")):
        ours, theirs = (stat.by_seed if (stat := group.stat(key)) else {} for group in (a, b))
        common = [seed for seed in ours if seed in theirs]
        if common:
            first, second = (
                np.array([by_seed[seed] for seed in common]) for by_seed in (ours, theirs)
            )
            interval = seed_interval(first - second)
            p = paired_test(first - second)
            seeds = (len(common), None, None, None)
            yield _row(f"{title}, over seeds", first.mean(), second.mean(), interval, seeds, p)


def _over_images(answers: Mapping[int | None, pd.DataFrame]) -> Iterator[list[Cell]]:
    """Yield a row over all seeds, if there are several, and one for each, from what both answered
    to its images.
    """
    if len(answers) > 1:
        each = list(answers.values())
        first, second = (100 * np.mean([both[side].mean() for both in each]) for side in "ab")
        seeds = len(each)
        images = min(map(len, each))
        what = "final accuracy A_K, over seeds and images"
        yield _row(what, first, second, bootstrap(each), (seeds, images, None, None), None)
    for seed, both in answers.items():
        only_a, only_b, p = mcnemar(both)
        first = 100 * both["a"].mean()
        second = 100 * both["b"].mean()
        what = f"final accuracy A_K, over images, seed {seed}"
        yield _row(what, first, second, bootstrap([both]), (1, len(both), only_a, only_b), p)


def _common_answers(a: Group, b: Group) -> tuple[dict[int | None, pd.DataFrame], list[str]]:
    """Return each common seed's answers to the images that both have, and a note where one has
    others too.

    A seed that ran on two machines, or with and without the cache, counts once.
    """
    ours, theirs = (
        {
            o.key: (o.seed, o.run.predictions)
            for o in group.outcomes
            if o.run is not None and o.run.predictions
        }
        for group in (a, b)
    )
    answers = {}
    notes = []
    for key in (key for key in ours if key in theirs):
        (seed, path), (_, rival) = ours[key], theirs[key]
        both = paired(path, rival)
        sizes = [len(right_answers(path)), len(right_answers(rival))]
        if len(both):
            answers[seed] = both
        if len(both) < max(sizes):
            notes.append(
                f"Seed {seed}: {len(both)} test images are common to both, of {sizes[0]} and"
                f" {sizes[1]}."
            )
    return answers, notes


def in_words(table: Table) -> list[str]:
    """Return the rows of a comparison for the screen, one line each."""
    headers = [column.header for column in table.columns]
    rows = [[table.text(i, j) for j in range(len(headers))] for i in range(len(table.rows))]
    return [
        f"{what}: "
        + "; ".join(
            f"{name} {text}" for name, text in zip(headers[1:], cells, strict=True) if text != "–"
        )
        for what, *cells in rows
    ]
