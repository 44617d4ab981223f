"""Choose which classes a head keeps apart, so that they can be forgotten without their photos."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from torch import Tensor

from cifnet_pl.statistics import ClassSums
from cifnet_pl.statistics.remembered_sums import RememberingSums
from cifnet_pl.utilities.errors import UsageError, unknown_name

Remember = str | Sequence[int | str] | None
"""Classes to remember: "all", labels or names, or names in one text with commas between them; None for none."""

ALL = "all"


class Remembered:
    """The classes that :data:`Remember` means.

    A head knows labels only. Where classes are given by name, whoever knows the names says which labels have them
    (``note_names``) before their task begins.

    Args:
        options: the argument of a head, or ``text`` of another object of this kind.

    Attributes:
        text: "", "all", or the classes as a JSON list: what a description can hold.
    """

    def __init__(self, options: Remember):
        classes = options
        if isinstance(options, str) and options not in ("", ALL):
            classes = _listed(options)
        elif not options:
            classes = []
        if classes != ALL and (
            not isinstance(classes, Sequence) or not all(isinstance(c, int | str) and c != "" for c in classes)
        ):
            raise UsageError(f"remember is {options!r}, expected all, or classes by label or name")
        self.all = classes == ALL
        self.text = ALL if self.all else json.dumps(list(classes or [])) if classes else ""
        self.names = set() if self.all else {c for c in classes or [] if isinstance(c, str)}
        self.labels = set() if self.all else {c for c in classes or [] if isinstance(c, int)}

    def __bool__(self) -> bool:
        return bool(self.text)

    def __contains__(self, label: int) -> bool:
        return self.all or label in self.labels

    def about(self, names: Sequence[str], width: int, itemsize: int) -> str | None:
        """Return a note about the memory that remembered classes take in a run.

        Args:
            names: of all classes of the run.
            width: of the Gram matrix.
            itemsize: bytes of one of its numbers.

        Returns:
            A sentence; None if no class is remembered.

        Raises:
            UsageError: a class to remember is not among ``names``.
        """
        unknown = sorted(self.names - set(names))
        if unknown:
            raise unknown_name("class to remember", unknown[0], names)
        count = len(names) if self.all else len(self.names) + len(self.labels)
        if not count:
            return None
        size = count * width * (width + 1) // 2 * itemsize / 1e6
        return f"remembering {count} classes takes {size:.1f} MB: they can be forgotten without their photos"

    def note_names(self, names: Mapping[int, str]) -> None:
        """Take over the labels of classes that were given by name.

        Args:
            names: label → name.
        """
        self.labels |= {label for label, name in names.items() if name in self.names}


def kept_apart(sums: ClassSums, labels: Tensor) -> set[int]:
    """Return the labels whose Gram matrices are kept apart; in a head from a file, only these tell the labels of names.

    Args:
        sums: of a head.
        labels: (C,) of its classes.
    """
    return set(labels[sums.place >= 0].tolist()) if isinstance(sums, RememberingSums) else set()


def _listed(text: str) -> Sequence[int | str]:
    """Return the classes of a JSON list, or names with commas between them."""
    if text.startswith("["):
        try:
            classes: Sequence[int | str] = json.loads(text)
            return classes
        except ValueError:
            raise UsageError(
                f"remember is {text!r}, which is no JSON list: expected all, or classes by label or name"
            ) from None
    return [name.strip() for name in text.split(",")]
