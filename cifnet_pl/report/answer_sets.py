"""Tabulate sets of answers class by class: how often they hold the right class, and how large they are."""

from __future__ import annotations

from cifnet_pl.report.markup import Cell, Column, Table
from cifnet_pl.report.outcomes import Group, stat_of
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.study import Study
from cifnet_pl.utilities.text import printable


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
