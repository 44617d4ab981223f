"""``python -m benchmarks [NAME …]``: one table, each row a ratio measured side by side in this process."""

from __future__ import annotations

import importlib
import platform
import sys

import torch
from rich.console import Console
from rich.table import Table

BENCHMARKS = (
    "growth",
    "cached",
    "head_path",
    "head_update",
    "fit_overhead",
    "engines",
    "gpu",
    "memory",
    "projected",
    "serving",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(f"unknown benchmark '{unknown[0]}': known are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    table = Table()
    for column in ("what", "ours", "rival", "ratio", "wanted"):
        table.add_column(column)
    about: list[str] = []
    for name in names or BENCHMARKS:
        for row in importlib.import_module(f"benchmarks.{name}").rows():
            table.add_row(row.name, row.ours, row.rival, row.ratio, row.wanted)
            about.append(f"{row.name}: {row.settings}")
            print(f"{row.name}: {row.ratio}", file=sys.stderr, flush=True)  # all of them take an hour
    console = Console(width=max(Console().width, 150))
    console.print(table)
    for line in dict.fromkeys(about):
        console.print(line, highlight=False)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}", highlight=False
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
