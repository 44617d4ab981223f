"""Name settings so that no two of them have the same name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from cifnet_pl.report.settings import Setting

OF_NETWORK: tuple[Callable[[Setting], str], ...] = (
    lambda s: s.backbone,
    lambda s: f"{s.image_size} px" if s.image_size else "own size",
)
OF_DATA: tuple[Callable[[Setting], str], ...] = (
    lambda s: f"{s.n_tasks} tasks",
    lambda s: f"{s.n_classes} classes",
    lambda s: s.root,
)
"""What may tell apart settings of one name, in words: their networks, and their data."""


def distinct_names(settings: Sequence[Setting], extras: Sequence[Callable[[Setting], str]]) -> dict[Setting, str]:
    """Return a name for each setting; of ``extras`` those are added in which settings of one name differ."""
    names = {setting: setting.short for setting in settings}
    for extra in extras:
        said = {name: {extra(s) for s, other in names.items() if other == name} for name in names.values()}
        names = {s: f"{name}, {extra(s)}" if len(said[name]) > 1 else name for s, name in names.items()}
    return names


def file_name(names: Mapping[Setting, str], setting: Setting) -> str:
    """Return a setting's name for a file; names that differ in other characters alone get a number."""
    alike = [other for other, name in names.items() if slug(name) == slug(names[setting])]
    number = alike.index(setting)
    return slug(names[setting]) + (f"_{number + 1}" if number else "")


def slug(text: str) -> str:
    """Return ``text`` in small letters and digits for the name of a file."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
