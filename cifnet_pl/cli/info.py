"""``info``: show what a stored model knows, and what it has cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cifnet_pl.utilities.text import number, number_of, printable, table

if TYPE_CHECKING:
    from cifnet_pl.model.bundle import Event
    from cifnet_pl.model.classifier import Classifier

REMOVED = (
    "images of classes that were removed without them still count, and copies of those go unnoticed"
    " where they are learned again"
)


def info(model: str, trust: bool = False) -> None:
    """Show a model's classes with counts, its tasks and history, size, energy so far, backbone and
    versions.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.

    Raises:
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.bundle import is_bundle, read_versions
    from cifnet_pl.model.store import load

    loaded = load(model, device="cpu", trust=trust)
    path = Path(model).expanduser()
    versions = read_versions(path) if is_bundle(path) else {}
    console = Console()
    count = number_of(sum(loaded.counts.values()), loaded.sample)
    console.print(f"{number_of(len(loaded.class_names), 'class')}, learned from {count}")
    console.print(class_table(loaded))
    if loaded.history:
        console.print(history_table(loaded.history, f"{loaded.sample}s"))
    for line in lines(loaded, versions):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def class_table(model: Classifier) -> Table:
    """Tabulate the tasks: the classes of each, with the number of images learned."""
    rows = []
    for k, names in enumerate(model.tasks, 1):
        shown = ", ".join(f"{printable(name)} ({model.counts[name]})" for name in names)
        rows.append((str(k), str(len(names)), shown))
    return table(("task", "classes", "learned from"), rows, names=range(3))


def history_table(history: list[Event], samples: str) -> Table:
    """Tabulate the steps in the model's life, with the number of ``samples`` of each."""
    table = Table(show_edge=False, pad_edge=False)  # so that a step has room in 80 columns
    table.add_column("step", no_wrap=True)
    table.add_column("date (UTC)", min_width=len("2026-01-01"))  # the time may stand below
    for name in ("classes", samples, "right %", "old right %", "s", "kWh"):
        table.add_column(name, justify="right", no_wrap=name != "old right %")
    for event in history:
        if event.old_accuracy is None:
            old = "–"
        else:
            old = f"{event.old_accuracy_before:.1f} → {event.old_accuracy:.1f}"
        table.add_row(
            printable(event.kind).replace("[", r"\["),
            printable(event.date or "–").replace("[", r"\["),
            str(event.classes),
            number(event.images, ""),
            number(event.accuracy),
            old,
            number(event.seconds),
            number(event.energy_kwh, ".1e"),
        )
    return table


def lines(model: Classifier, versions: dict[str, str]) -> list[str]:
    """Return lines about the model besides its tables.

    Args:
        model: the model.
        versions: of the software that wrote it.
    """
    from cifnet_pl.model.metrics import rarely_predicted_by, rarely_predicted_message

    head = model.head
    backbone = model.backbone
    hardly = rarely_predicted_message(rarely_predicted_by(model), model.sample)
    images = (
        f"images: {model.image_size} px, crop ratio {model.crop_ratio:g}, embedded in"
        f" {model.precision}"
    )
    settings = ", ".join(f"{key} {value}" for key, value in head.settings().items())
    stored = sum(value.numel() * value.element_size() for value in model.tensors().values())
    parts = ", ".join(
        f"{name} {count:,}" for name, count in model.state_elements().items() if count
    )
    result = []
    for k, event in enumerate(model.history, 1):
        if (
            event.class_names is not None and event.kind != "task"
        ):  # the classes of tasks are in the table
            if event.parents:
                origin = f"; from model {', '.join(map(printable, event.parents))}"
            else:
                origin = ""
            result.append(
                f"step {k}, {printable(event.kind)}:"
                f" {', '.join(map(printable, event.class_names))}{origin}"
            )
    result += [
        f"this is model {model.identity}",
        *([REMOVED] if model.remembers_removed else []),
        *([hardly] if hardly else []),
        *model.accuracy_sentences(),
        (
            f"head {type(head).__name__} ({settings}), temperature {float(head.temperature):.3g},"
            f" odds power {float(head.odds_power):.3g}"
        ),
        (
            f"backbone {printable(backbone.name)}, {backbone.parameters_count:,} parameters, sha256"
            f" {backbone.sha256[:12]}"
        ),
        *([images] if backbone.takes_images else []),
        f"state {stored / 1e6:.2f} MB ({parts} numbers)",
        f"energy so far {_energy(model.history)}",
    ]
    if versions:
        result.append(
            f"written by {', '.join(f'{key} {value}' for key, value in versions.items())}"
        )
    return result


def _energy(history: list[Event]) -> str:
    measured = [event.energy_kwh for event in history if event.energy_kwh is not None]
    if not measured:
        return "not measured"
    energy = f"{sum(measured):.1e} kWh"
    missing = len(history) - len(measured)
    if missing:
        energy += f", without {missing} of {len(history)} steps that were not measured"
    sources = sorted({printable(event.energy_source) for event in history if event.energy_source})
    if sources:
        return f"{energy} ({'; '.join(sources)})"
    return energy
