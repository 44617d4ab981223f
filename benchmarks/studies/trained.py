"""``python -m benchmarks.studies.trained RUNS``: the table of docs/studies/trained_methods.md.

It comes from the runs of configs/sweeps/trained*.yaml. A row for each method: A_k after each task
by the predictions that count, in every class order; A_K by the classifier and by the nearest mean
of exemplars; seconds and energy, also as a ratio to the run called ``--reference``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from cifnet_pl.report.runs import Run, read_runs


def label(run: Run) -> str:
    """The point's method: its folder is ``METHOD-sSEED-IDENTITY``."""
    return run.folder.parent.name.partition("-")[0]


def numbers(values: Sequence[float] | None, separator: str = " / ") -> str:
    """With one decimal; a dash for nothing."""
    if not values:
        return "–"
    return separator.join(f"{value:.1f}" for value in values)


def row(
    name: str, runs: dict[int, Run], seeds: Sequence[int], reference: float
) -> list[str]:
    """Cells of one method."""
    cells = [name]
    for seed in seeds:
        summary = runs[seed].summary if seed in runs else {}
        cells.append(numbers(summary.get("A_k")))
        cells += [
            numbers([summary[key]] if summary else None) for key in ("A_bar", "A_K")
        ]
    own = [run.summary for run in runs.values()]
    for key in ("A_k_classifier", "A_k_nearest_mean"):
        cells.append(numbers([s[key][-1] for s in own if s.get(key)]))
    seconds = statistics.mean(s["train_seconds"] for s in own)
    energy = statistics.mean(s["energy_kwh"] for s in own)
    parameters = f"{own[0]['backbone_params'] / 1e6:.2f} M"
    return [
        *cells,
        f"{seconds:.0f}",
        f"{energy:.1e}",
        f"{energy / reference:.0f}",
        parameters,
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--reference", default="ridge")
    options = parser.parse_args()
    found: dict[str, dict[int, Run]] = {}
    for run in read_runs([options.runs])[0]:
        found.setdefault(label(run), {})[run.summary["seed"] or 0] = run
    seeds = sorted({seed for runs in found.values() for seed in runs})
    energies = [run.summary["energy_kwh"] for run in found[options.reference].values()]
    head = [
        "method",
        *(cell for seed in seeds for cell in (f"A_k, order {seed}", "Ā", "A_K")),
    ]
    head += [
        "A_K: classifier",
        "nearest mean",
        "seconds",
        "kWh",
        f"energy ÷ {options.reference}",
        "parameters",
    ]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name in sorted(
        found,
        key=lambda name: statistics.mean(
            r.summary["A_K"] for r in found[name].values()
        ),
    ):
        print(
            "| "
            + " | ".join(row(name, found[name], seeds, statistics.mean(energies)))
            + " |"
        )


if __name__ == "__main__":
    main()
