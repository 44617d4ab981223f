"""Compare two methods: differences over the same seeds and test images, with their intervals."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cifnet_pl.report.outcomes import Group, Outcome, fixed, group_runs, stat_of
from cifnet_pl.report.page import Cell, Column, Table
from cifnet_pl.report.runs import paired, read_runs, right_answers
from cifnet_pl.report.settings import Setting, slug
from cifnet_pl.report.significance import (
    Answers,
    Interval,
    bootstrap,
    common_differences,
    mcnemar,
    paired_test,
    seed_interval,
)
from cifnet_pl.report.study import Study
from cifnet_pl.report.style import SMALL, Picture, figure, wrapped
from cifnet_pl.utilities.errors import DataError, UsageError, unknown_name
from cifnet_pl.utilities.text import printable


def groups_named(study: Study, name: str) -> list[Group]:
    """Return the groups that one of two compared names stands for.

    Args:
        study: all results.
        name: a label as the tables have it, or the name of a method, for its reference in each setting; else a run's
            folder, a folder that holds several seeds of one configuration, or a pattern for such folders.

    Raises:
        UsageError: an unknown name, or folders with runs of several configurations.
        DataError: folders without a complete run.
    """
    found = [group for setting in study.settings if (group := _named(study.of(setting), name))]
    if found:
        return found
    folders = folders_of(name)
    if not folders:
        labels = dict.fromkeys(label for group in study.groups for label in (group.label, group.name))
        raise unknown_name("method or folder for --compare", name, labels)
    return [_of_folders(study, name, folders)]


def folders_of(name: str) -> list[Path]:
    """Return the folders that a path or a pattern stands for."""
    return sorted(path for path in map(Path, glob.glob(name)) if path.is_dir()) if name else []


def _named(groups: Sequence[Group], name: str) -> Group | None:
    exact = [group for group in groups if group.label == name]
    main = [group for group in groups if group.name == name and (group.is_reference or group.kind == "external")]
    return next(iter([*exact, *main]), None)


def _of_folders(study: Study, name: str, folders: Sequence[Path]) -> Group:
    runs, left_out = read_runs(folders)
    if not runs:
        raise DataError(f"--compare {name}: no finished run{f' ({left_out[0]})' if left_out else ''}")
    groups, replaced = group_runs(runs)
    labels = ", ".join(f"{group.label} ({group.setting.short})" for group in groups)
    if len(groups) > 1:
        raise UsageError(f"--compare {name}: expected seeds of one configuration, but its runs are of {labels}")
    if replaced:
        raise UsageError(f"--compare {name}: {replaced[0]}; name one of both")
    (group,) = groups
    same = [g for g in study.groups if (g.setting, g.name, g.config) == (group.setting, group.name, group.config)]
    return replace(group, named=same[0].named) if same else group


def told_apart(a: Group, b: Group, names: Sequence[str]) -> tuple[Group, Group]:
    """Return two groups with labels that differ: by their backbones, else by what the user called them.

    Args:
        a, b: the groups.
        names: what each of them was called on the command line.
    """
    networks = [group.setting.network for group in (a, b)]
    if networks[0] != networks[1]:
        a, b = (replace(group, conditions_label=text) for group, text in zip((a, b), networks, strict=True))
    elif a.label == b.label:
        a, b = (replace(group, conditions_label=text) for group, text in zip((a, b), names, strict=True))
    return a, b


@dataclass(frozen=True)
class Line:
    """One row of a comparison; accuracies and differences in percentage points, None where not known.

    Attributes:
        what: the quantity, and what it is compared over.
        a, b: mean of each method over what they have in common.
        interval: difference a − b with its 95 % interval.
        seeds, images: number of common seeds, and of common test images (of each seed).
        only_a, only_b: images that only one of both has right.
        p: of a paired t-test over seeds, or of McNemar's exact test.
    """

    what: str
    a: float
    b: float
    interval: Interval | None
    seeds: int
    images: int | None = None
    only_a: int | None = None
    only_b: int | None = None
    p: float | None = None


@dataclass(frozen=True)
class Pair:
    """Two groups on the same data, and the rows of their comparison.

    Attributes:
        name: of its files.
        title: the setting, or what both settings share.
        a, b: the groups.
        lines: of their comparison.
        notes: what a reader must know of these two.
    """

    name: str
    title: str
    a: Group
    b: Group
    lines: list[Line]
    notes: list[str]


def compare(study: Study, names: Sequence[str]) -> list[Pair]:
    """Compare two methods wherever both were run on the same data.

    Args:
        study: all results.
        names: two methods or folders of runs, as :func:`cifnet_pl.report.comparison.groups_named` takes them.

    Raises:
        UsageError: not two names, an unknown one, or no data and seed that both have.
    """
    if len(names) != 2:
        raise UsageError(
            f"--compare takes two methods, but got {len(names)}: {', '.join(names)}; "
            "a pattern for several folders needs quotation marks"
        )
    first, second = (groups_named(study, name) for name in names)
    alike = [(a, b) for a in first for b in second if a.setting.data == b.setting.data]
    if not alike:
        data = [
            ", ".join(dict.fromkeys(study.name_of(group.setting) for group in groups)) for groups in (first, second)
        ]
        raise UsageError(f"{names[0]} and {names[1]} were run on different data: {data[0]}, and {data[1]}")
    pairs = [pair for a, b in alike if (pair := _pair(study, *told_apart(a, b, names)))]
    if not pairs:
        raise UsageError(
            f"{names[0]} and {names[1]} have no common seed and class order: {_seeds(alike[0][0])}, and "
            f"{_seeds(alike[0][1])}"
        )
    return pairs


def _seeds(group: Group) -> str:
    return ", ".join(f"seed {outcome.seed}" for outcome in group.outcomes)


def _pair(study: Study, a: Group, b: Group) -> Pair | None:
    lines, notes = lines_of(a, b)
    title = study.name_of(a.setting) if a.setting == b.setting else a.setting.short
    return Pair(f"comparison_{slug(title)}", title, a, b, lines, notes) if lines else None


def lines_of(a: Group, b: Group) -> tuple[list[Line], list[str]]:
    """Compute the differences of Ā and A_K over seeds, of A_K over seeds and images, and of each seed over its images.

    Args:
        a, b: groups on the same data.

    Returns:
        One line for each, none without a common seed; and a note for each seed whose images differ.
    """
    lines = []
    for key, title in (("A_K", "final accuracy A_K"), ("A_bar", "average accuracy Ā")):
        ours, theirs = a.stat(key), b.stat(key)
        if ours is None or theirs is None:
            continue
        common = [seed for seed in ours.by_seed if seed in theirs.by_seed]
        if common:
            differences = common_differences(ours, theirs)
            first, second = (float(np.mean([stat.by_seed[seed] for seed in common])) for stat in (ours, theirs))
            interval, p = seed_interval(differences), paired_test(differences)
            lines.append(Line(f"{title}, over seeds", first, second, interval, len(common), p=p))
    over_images, notes = _over_images(a, b)
    return lines + over_images, notes


def _over_images(a: Group, b: Group) -> tuple[list[Line], list[str]]:
    # A seed that ran on two machines, or with and without the cache, counts once.
    ours, theirs = ({o.key: o for o in group.outcomes if o.answers is not None} for group in (a, b))
    compared: list[tuple[Outcome, Answers]] = []
    notes = []
    for outcome, rival in ((ours[key], theirs[key]) for key in ours if key in theirs):
        assert outcome.answers is not None
        assert rival.answers is not None
        answers = paired(outcome.answers, rival.answers)
        sizes = [len(right_answers(path)[0]) for path in (outcome.answers, rival.answers)]
        if len(answers[0]):
            compared.append((outcome, answers))
        if len(answers[0]) < max(sizes):
            notes.append(
                f"Seed {outcome.seed}: {len(answers[0])} test images are common to both, of {sizes[0]} and {sizes[1]}."
            )
    lines = []
    if len(compared) > 1:
        every = [answers for _, answers in compared]
        first, second = (100 * float(np.mean([answers[i].mean() for answers in every])) for i in (1, 2))
        images = min(len(names) for names, _, _ in every)
        measure = "final accuracy A_K, over seeds and images"
        lines.append(Line(measure, first, second, bootstrap(every), len(compared), images))
    for outcome, (names, x, y) in compared:
        only_a, only_b, p = mcnemar(x, y)
        measure = f"final accuracy A_K, over images, seed {outcome.seed}"
        first, second = 100 * float(x.mean()), 100 * float(y.mean())
        lines.append(Line(measure, first, second, bootstrap([(names, x, y)]), 1, len(x), only_a, only_b, p))
    return lines, notes


# ---------------------------------------------------------------------- in words, as a table and as a figure


def in_words(pair: Pair, line: Line) -> str:
    """Return a line for the screen: the difference, its interval, and the number of seeds and images.

    Args:
        pair: the two groups.
        line: one row of their comparison.
    """
    between = line.interval
    interval = f" (95 %: {between.low:+.2f} to {between.high:+.2f})" if between is not None else ""
    seeds = f"{line.seeds} common seed{'s' if line.seeds > 1 else ''}"
    images = f", {line.images} images" if line.images else ""
    p = "" if line.p is None else f", p {'< 0.001' if line.p < 0.001 else f'= {line.p:.3f}'}"
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
        between = line.interval
        ends = [fixed(between.low), fixed(between.high)] if between is not None else [None, None]
        counts = [fixed(value) for value in (line.seeds, line.images, line.only_a, line.only_b)]
        p = None if line.p is None else "< 0.001" if line.p < 0.001 else f"{line.p:.3f}"
        rows.append([line.what, fixed(line.a), fixed(line.b), fixed(line.a - line.b), *ends, *counts, p])
    notes = [
        f"{pair.title}. Difference: {first} minus {second}, over the seeds and class orders, and the test images, that "
        "both have. Interval: over seeds of a t distribution; over images by bootstrap (10,000 resamples of the test "
        "images, the same ones for all seeds, and of the seeds). p: over seeds of a paired t-test (neither where all "
        "seeds have the same difference), over images of McNemar's exact test. An interval that leaves zero out is a "
        "difference beyond chance; the column before it says how large it is.",
        *pair.notes,
        *([] if any(line.images for line in pair.lines) else [NO_IMAGES]),
    ]
    title = f"{first} against {second}: {pair.title}"
    return Table(pair.name, title, columns, rows, notes)


NO_IMAGES = "No test images are compared: run with --predictions.every_task true to keep the predictions."


def comparison_picture(pair: Pair) -> Picture | None:
    """Draw the differences with their intervals; None if there is no interval.

    Args:
        pair: the two groups.
    """
    shown = [(line, line.interval) for line in pair.lines if line.interval is not None]
    if not shown:
        return None
    chart = figure(6.4, 1.7 + 0.6 * len(shown))
    axes = chart.subplots()
    for row, (line, interval) in enumerate(shown):
        at, difference = len(shown) - 1 - row, line.a - line.b
        spread = [[difference - interval.low], [interval.high - difference]]
        axes.errorbar(difference, at, xerr=spread, fmt="o", color="black", capsize=3, markersize=5)
        axes.annotate(f"{difference:+.2f}", (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL)
    axes.axvline(0, color="#777777", linewidth=0.8, linestyle="--")
    labels = [wrapped(line.what, 24).replace("A_K", "$A_K$").replace("Ā", r"$\bar{A}$") for line, _ in shown]
    axes.set_yticks(range(len(shown) - 1, -1, -1), labels)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlabel(wrapped(f"{pair.a.label} minus {pair.b.label} (percentage points)", 50))
    axes.set_title(wrapped(pair.title, 52))
    caption = f"{pair.a.label} minus {pair.b.label} with 95 % intervals, {pair.title}; right: the difference."
    return Picture(pair.name, caption, chart)


def answer_sets_table(study: Study, setting: Setting) -> Table:
    """Tabulate coverage and mean size of the sets of answers at 95 % of each class, the least covered first.

    Args:
        study: all results.
        setting: whose calibrated runs are shown.
    """
    groups = [group for group in study.of(setting) if any(_sets(group))]
    columns = [Column("class")]
    for group in groups:
        columns += [Column(f"{group.label}: covered (%)", 1), Column(f"{group.label}: classes", 1)]
    cells = {name: [cell for group in groups for cell in _cells(group, name)] for name in _names(groups)}
    rows: list[list[Cell]] = [[printable(name), *cells[name]] for name in sorted(cells, key=lambda c: _order(cells[c]))]
    notes = [
        "Of the test images of a class, how many have it among the answers, and how many classes are among these. The "
        "answers are to hold the right class of 95 % of all images; single classes may lie above or below.",
        study.seeds_note(groups),
    ]
    title = f"Sets of answers at 95 %, by class: {study.names[setting]}"
    return Table(f"answer_sets_{study.slug(setting)}", title, columns, rows, notes)


def _sets(group: Group) -> list[dict[str, tuple[float, float]]]:
    return [dict(outcome.run.answer_sets) if outcome.run is not None else {} for outcome in group.outcomes]


def _names(groups: list[Group]) -> list[str]:
    return sorted({name for group in groups for sets in _sets(group) for name in sets})


def _cells(group: Group, name: str) -> list[Cell]:
    found = {outcome.key: sets.get(name) for outcome, sets in zip(group.outcomes, _sets(group), strict=True)}
    return [stat_of({key: None if pair is None else pair[i] for key, pair in found.items()}) for i in (0, 1)]


def _order(cells: list[Cell]) -> list[float]:
    return [100.0 if cell is None or isinstance(cell, str) else cell.mean for cell in cells[::2]]
