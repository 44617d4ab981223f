"""Find what ``report --compare`` names: a method of the tables, or the runs in some folders."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cifnet_pl.report.groups import group_runs
from cifnet_pl.report.outcomes import Group
from cifnet_pl.report.runs import read_runs
from cifnet_pl.report.study import Study
from cifnet_pl.utilities.errors import DataError, UsageError, unknown_name


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
