"""Read a table of files as a data source: CSV, TSV or Parquet with one row per image."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np

from cifnet_pl.data.sets import TEST, TRAIN, FileSet, Source, SourceOptions, classes_of, in_parts
from cifnet_pl.data.sources.embeddings import open_table
from cifnet_pl.photos.files import expanded, place
from cifnet_pl.utilities.errors import DataError, UsageError, explained, unknown_name
from cifnet_pl.utilities.text import has_controls, printable

WHAT = "a table (.csv, .tsv or .parquet) with the columns path and label"

DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""Ending of a text file's name → what is between its cells."""


def manifest(options: SourceOptions) -> Source:
    """Read the images that a table lists; ``--data.root`` is the table.

    Columns: ``path``, relative to the table's folder; ``label``, the name of the class; and if wanted ``split`` (train
    or test), ``task`` and ``domain``. Tasks are learned with ``--data.stream Listed``, in sorted order, numbers as
    numbers; domains with ``--data.stream Domains``. Without a split a share of each class is held back by seed.

    Options:
        path, label, split, task, domain: names of the columns, where they have other ones.

    Raises:
        UsageError: no table was given, or one of another kind.
        DataError: a column, a value or an image that is missing; an image that is listed twice.
    """
    if options.root is None:
        raise UsageError(f"no table was given: set --data.root to {WHAT}")
    file = expanded(options.root)
    table, where = _read(file), place(options.root)
    columns = {key: str(options.own.get(key, key)) for key in ("path", "label", "split", "task", "domain")}
    for key, name in columns.items():
        if name not in table and (key in ("path", "label") or key in options.own):
            listed = ", ".join(printable(column) for column in table)
            raise DataError(f"{where} has no column '{printable(name)}', it has {listed}")
    cells = {key: table[name] for key, name in columns.items() if name in table}
    _check(cells, file.parent, where)
    class_names, labels = classes_of(cells["label"], where)
    whole = FileSet(file.parent, cells["path"], labels.tolist())
    held = None
    if "split" in cells:
        held = np.array([word.lower() in TEST for word in cells["split"]], dtype=bool)
    groups = {f"{key}s": _groups(cells[key]) for key in ("task", "domain") if key in cells}
    return in_parts(class_names, whole, held, options, where, **groups)


def _read(path: Path) -> dict[str, list[str]]:
    """Return the columns of a table, as texts."""
    if not path.is_file():
        raise DataError(f"no file {place(path)}: set --data.root to {WHAT}")
    ending = path.suffix.lower()
    if ending == ".parquet":
        table = open_table(path)
        columns = {name: table.array(name) for name in table.columns}
        return {name: ["" if cell is None else str(cell) for cell in column] for name, column in columns.items()}
    if ending not in DELIMITERS:
        raise unknown_name(f"kind of table in {place(path)}", path.suffix or "no ending", [*DELIMITERS, ".parquet"])
    with explained(DataError, f"cannot read {place(path)}"), path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file, delimiter=DELIMITERS[ending]) if row] or [[]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            cells = f"row {number} has {len(row)} cells, the header has {len(header)}"
            raise DataError(f"{place(path)}: {cells}: {printable(row[0])}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _check(cells: dict[str, list[str]], root: Path, where: str) -> None:
    """Check the cells of a table.

    Raises:
        DataError: no rows, a cell that is empty or cannot be shown, labels that are floats, a part that is neither for
            training nor for testing, an image that is listed twice or is not there.
    """
    if not cells["path"]:
        raise DataError(f"{where} lists no image")
    for key, column in cells.items():
        for number, cell in enumerate(column, 1):
            if not cell or has_controls(cell):
                content = "nothing" if not cell else f"control characters, '{printable(cell)}'"
                raise DataError(f"{where}: row {number} has {content} for {key}")
            if key == "split" and cell.lower() not in TRAIN + TEST:
                raise DataError(f"{where} has split '{cell}', expected train or test")
    if _floats(set(cells["label"])):
        raise DataError(f"{where}: the labels are floats ({cells['label'][0]}), expected integers or names")
    name, times = Counter(cells["path"]).most_common(1)[0]
    if times > 1:
        raise DataError(f"{where} lists an image twice ({name}): an image has one row")
    missing = [path for path in cells["path"] if not (root / path).is_file()]
    if missing:
        raise DataError(
            f"{where} lists {len(missing)} files that are not there, the first is {place(root / missing[0])}: paths "
            "are relative to the table's folder"
        )


def _floats(labels: set[str]) -> bool:
    """Return whether all labels are numbers, but not all are integers, as a table with an empty cell makes of them."""
    try:
        return not all(float(label).is_integer() and "." not in label for label in labels)
    except ValueError:
        return False


def _groups(column: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the sorted names in a column, numbers as numbers, and (n,) the position of each row's."""
    names = sorted(set(column), key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
    position = {name: i for i, name in enumerate(names)}
    return names, np.array([position[name] for name in column], dtype=np.int64)
