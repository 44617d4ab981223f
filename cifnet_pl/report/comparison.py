"""Compare two methods: differences over the same seeds and test images, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from cifnet_pl.report.page import Cell, Column, Table
from cifnet_pl.report.runs import paired, right_answers
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import bootstrap, fixed, mcnemar, paired_test, seed_interval
from cifnet_pl.report.study import Group, Study
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.text import slug

NO_IMAGES = "No test images are compared: run with --predictions.every_task true to keep the predictions."


@dataclass(frozen=True)
class Line:
    """One row of a comparison; accuracies and differences in percentage points, None where not known.

    Attributes:
        what: the quantity, and what it is compared over.
        a, b: mean of each method over what they have in common.
        interval: 95 % interval of the difference a − b.
        seeds, images: number of common seeds, and of common test images (of each seed).
        only_a, only_b: images that only one of both has right.
        p: of a paired t-test over seeds, or of McNemar's exact test.
    """

    what: str
    a: float
    b: float
    interval: tuple[float, float] | None
    seeds: int
    images: int | None = None
    only_a: int | None = None
    only_b: int | None = None
    p: float | None = None

    @property
    def p_value(self) -> str | None:
        """The p in words."""
        return None if self.p is None else "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"


@dataclass(frozen=True)
class Pair:
    """Two groups on the same data, and the rows of their comparison.

    Attributes:
        title: the setting, or what both settings share.
        a, b: the groups.
        lines: of their comparison.
        notes: what a reader must know of these two.
    """

    title: str
    a: Group
    b: Group
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------- which groups


def compare(study: Study, names: Sequence[str]) -> list[Pair]:
    """Compare two methods wherever both were run on the same data.

    Args:
        study: all results.
        names: two methods, each a label as the tables have it, also with its network, or the name of a method, for its
            reference in each setting.

    Raises:
        UsageError: not two names, an unknown one, or no data and seed that both have.
    """
    if len(names) != 2:
        raise UsageError(f"--compare takes two methods, but got {len(names)}: {', '.join(names)}")
    first, second = (_groups_named(study, name) for name in names)
    alike = [(a, b) for a in first for b in second if a.setting.data == b.setting.data and a is not b]
    if not alike:
        data = [", ".join(dict.fromkeys(study.names[group.setting] for group in groups)) for groups in (first, second)]
        raise UsageError(f"{names[0]} and {names[1]} were run on different data: {data[0]}, and {data[1]}")
    pairs = [_pair(study, *_told_apart(a, b)) for a, b in alike]
    if not any(pair.lines for pair in pairs):
        seeds = [", ".join(f"seed {outcome.seed}" for outcome in group.outcomes) for group in alike[0]]
        raise UsageError(f"{names[0]} and {names[1]} have no common seed and class order: {seeds[0]}, and {seeds[1]}")
    return [pair for pair in pairs if pair.lines]


def _groups_named(study: Study, name: str) -> list[Group]:
    """Return the groups that one of two compared names stands for, at most one of each setting."""
    found: dict[Setting, Group] = {}
    for group in study.groups:
        if name in (group.label, _with_network(group)):
            found[group.setting] = group
        elif group.name == name and (group.is_reference or group.kind == "external"):
            found.setdefault(group.setting, group)
    if not found:
        labels = dict.fromkeys(label for group in study.groups for label in (group.label, group.name))
        raise unknown_name("method for --compare", name, labels)
    return list(found.values())


def _with_network(group: Group) -> str:
    return f"{group.label}, {group.setting.network}"


def _told_apart(a: Group, b: Group) -> tuple[Group, Group]:
    """Return two groups with labels that differ: by their networks where these do."""
    if a.setting.network == b.setting.network:
        return a, b
    return replace(a, conditions_label=a.setting.network), replace(b, conditions_label=b.setting.network)


# ---------------------------------------------------------------------- their differences


def _pair(study: Study, a: Group, b: Group) -> Pair:
    """Compute the differences of Ā and A_K over seeds, of A_K over seeds and images, and of each seed over its images.

    There is no line without a common seed, and a note for each seed whose images differ.
    """
    pair = Pair(study.names[a.setting] if a.setting == b.setting else a.setting.short, a, b)
    for key, title in (("A_K", "final accuracy A_K"), ("A_bar", "average accuracy Ā")):
        ours, theirs = (stat.by_seed if (stat := group.stat(key)) else {} for group in (a, b))
        common = [seed for seed in ours if seed in theirs]
        if common:
            first, second = (np.array([by_seed[seed] for seed in common]) for by_seed in (ours, theirs))
            interval, p = seed_interval(first - second), paired_test(first - second)
            pair.lines.append(Line(f"{title}, over seeds", first.mean(), second.mean(), interval, len(common), p=p))
    answers = _common_answers(pair)
    if len(answers) > 1:
        each = list(answers.values())
        first, second = (100 * np.mean([both[side].mean() for both in each]) for side in "ab")
        what = "final accuracy A_K, over seeds and images"
        pair.lines.append(Line(what, first, second, bootstrap(each), len(each), min(map(len, each))))
    for seed, both in answers.items():
        only_a, only_b, p = mcnemar(both)
        accuracies, what = 100 * both.mean(), f"final accuracy A_K, over images, seed {seed}"
        interval = bootstrap([both])
        pair.lines.append(Line(what, accuracies["a"], accuracies["b"], interval, 1, len(both), only_a, only_b, p))
    return pair


def _common_answers(pair: Pair) -> dict[int | None, pd.DataFrame]:
    """Return each common seed's answers to the images that both have, with a note where one has others too.

    A seed that ran on two machines, or with and without the cache, counts once.
    """
    ours, theirs = (
        {o.key: (o.seed, o.run.predictions) for o in group.outcomes if o.run is not None and o.run.predictions}
        for group in (pair.a, pair.b)
    )
    answers = {}
    for key in (key for key in ours if key in theirs):
        (seed, path), (_, rival) = ours[key], theirs[key]
        both, sizes = paired(path, rival), [len(right_answers(path)), len(right_answers(rival))]
        if len(both):
            answers[seed] = both
        if len(both) < max(sizes):
            pair.notes.append(f"Seed {seed}: {len(both)} test images are common to both, of {sizes[0]} and {sizes[1]}.")
    return answers


# ---------------------------------------------------------------------- in words, and as a table


def in_words(pair: Pair, line: Line) -> str:
    """Return a line for the screen: the difference, its interval, and the number of seeds and images.

    Args:
        pair: the two groups.
        line: one row of their comparison.
    """
    interval = " (95 %: {:+.2f} to {:+.2f})".format(*line.interval) if line.interval is not None else ""
    seeds = f"{line.seeds} common seed{'s' if line.seeds > 1 else ''}"
    images = f", {line.images} images" if line.images else ""
    p = "" if line.p_value is None else f", p {line.p_value if line.p_value[0] == '<' else f'= {line.p_value}'}"
    first = f"{pair.a.label} minus {pair.b.label}, {line.what}"
    return f"{first}: {line.a - line.b:+.2f} points{interval}; {seeds}{images}{p}"


def comparison_table(pair: Pair) -> Table:
    """Tabulate a comparison: the difference with its interval, the numbers of seeds and images, then p.

    Args:
        pair: the two groups.
    """
    first, second = pair.a.label, pair.b.label
    columns = [
        Column("quantity"), Column(first, 2), Column(second, 2), Column("difference (points)", 2),
        Column("95 % from", 2), Column("95 % to", 2), Column("seeds", 0), Column("images", 0),
        Column(f"only {first} right", 0), Column(f"only {second} right", 0), Column("p"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for line in pair.lines:
        numbers = [line.a, line.b, line.a - line.b, *(line.interval or (None, None))]
        numbers += [line.seeds, line.images, line.only_a, line.only_b]
        rows.append([line.what, *map(fixed, numbers), line.p_value])
    notes = [
        f"{pair.title}. Difference: {first} minus {second}, over the seeds and class orders, and the test images, that "
        "both have. Interval: over seeds of a t distribution; over images by bootstrap (10,000 resamples of the test "
        "images, the same ones for all seeds, and of the seeds). p: over seeds of a paired t-test (neither where all "
        "seeds have the same difference), over images of McNemar's exact test. An interval that leaves zero out is a "
        "difference beyond chance; the column before it says how large it is.",
        *pair.notes,
        *([] if any(line.images for line in pair.lines) else [NO_IMAGES]),
    ]
    return Table(
        f"comparison_{slug(pair.title.lower())}", f"{first} against {second}: {pair.title}", columns, rows, notes
    )
