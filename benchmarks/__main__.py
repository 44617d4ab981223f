"""``python -m benchmarks [NAME …]``: one table, each row a ratio measured side by side in this
process.

A name is a module's, such as ``engines``, or the letter of a row, such as ``k``: ``python -m
benchmarks a b f k l``.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Sequence
from itertools import chain

import torch
from rich.console import Console
from rich.table import Table

LETTERS = {
    "a": ["head_update.rows"],
    "b": ["fit_overhead.rows"],
    "d": ["projected.rows"],
    "e": ["fit_overhead.rows"],
    "f": ["growth.rows"],
    "i": ["head_path.rows"],
    "j": ["gpu.rows"],
    "k": ["engines.network_rows", "bare_loop.rows"],
    "l": ["engines.start_rows"],
    "m": ["serving.rows"],
    "n": ["reading.rows"],
}
"""Letter of a row → the functions that measure it; (b) and (e) come out of the same runs."""

PLACES = list(dict.fromkeys(chain.from_iterable(LETTERS.values())))
MODULES = list(dict.fromkeys(place.partition(".")[0] for place in PLACES))


def chosen(names: Sequence[str]) -> list[str]:
    """Return the functions of the named modules and letters, in that order, each once."""
    named = (
        LETTERS.get(name) or [place for place in PLACES if place.startswith(f"{name}.")]
        for name in names
    )
    return list(dict.fromkeys(chain.from_iterable(named)))


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    unknown = sorted(set(names) - set(MODULES) - set(LETTERS))
    if unknown:
        known = f"known are the letters {', '.join(LETTERS)} and {', '.join(MODULES)}"
        print(f"unknown benchmark '{unknown[0]}': {known}", file=sys.stderr)
        return 2
    table = Table()
    for column in ("what", "ours", "rival", "ratio", "wanted"):
        table.add_column(column)
    about: list[str] = []
    for benchmark in chosen(names or list(LETTERS)):
        module, _, function = benchmark.partition(".")
        for row in getattr(importlib.import_module(f"benchmarks.{module}"), function)():
            table.add_row(row.name, row.ours, row.rival, row.ratio, row.wanted)
            about.append(f"{row.name}: {row.settings}")
            print(
                f"{row.name}: {row.ratio}", file=sys.stderr, flush=True
            )  # all of them take an hour
    console = Console(width=max(Console().width, 150))
    console.print(table)
    for line in dict.fromkeys(about):
        console.print(line, highlight=False)
    machine = f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}"
    console.print(machine, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
