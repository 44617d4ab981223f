"""``info``: show what a stored model knows, and what it has cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cifnet_pl.utilities.text import number, number_of, print_text, printable, table

if TYPE_CHECKING:
    from cifnet_pl.model.bundle import Event
    from cifnet_pl.model.classifier import Classifier

REMOVED = "Images of removed classes still count in the statistics"


def info(model: str, trust: bool = False) -> None:
    """Show a model's classes, history, accuracy, size, energy and backbone.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.

    Raises:
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.store import load

    loaded = load(model, device="cpu", trust=trust)
    console = Console()
    count = number_of(sum(loaded.counts.values()), loaded.backbone.sample)
    console.print(
        f"{number_of(len(loaded.class_names), 'class')}, learned from {count}"
    )
    console.print(class_table(loaded))
    if loaded.history:
        console.print(history_table(loaded.history, f"{loaded.backbone.sample}s"))
    for line in summary_lines(loaded):
        print_text(line)


def class_table(model: Classifier) -> Table:
    """Tabulate the tasks: the classes of each, with the number of images learned."""
    rows = []
    for task, names in enumerate(model.tasks, 1):
        shown = ", ".join(f"{printable(name)} ({model.counts[name]})" for name in names)
        rows.append((str(task), str(len(names)), shown))
    return table(("task", "classes", "learned from"), rows, names=range(3))


def history_table(history: list[Event], samples: str) -> Table:
    """Tabulate the updates of a model.

    Args:
        history: the updates.
        samples: what a sample is called, in the plural.
    """
    rows = []
    for event in history:
        old = "–"
        if event.old_accuracy is not None:
            old = f"{event.old_accuracy_before:.1f} → {event.old_accuracy:.1f}"
        cells = (
            printable(event.kind),
            printable(event.date or "–"),
            str(event.classes),
            number(event.images, ""),
            number(event.accuracy),
            old,
            number(event.seconds),
            number(event.energy_kwh, ".1e"),
        )
        rows.append(cells)
    scores = ("acc. %", "old acc. %")
    header = ("step", "date (UTC)", "classes", samples, *scores, "s", "kWh")
    shown = table(header, rows, names=(0, 1, 5))
    shown.show_edge = False  # so that 80 columns are enough
    shown.pad_edge = False
    return shown


def summary_lines(model: Classifier) -> list[str]:
    """Return lines on the model besides its tables."""
    from cifnet_pl.model.evaluation import evaluate_left_out, rarely_predicted_notes

    lines = []
    # The classes of tasks are in the table.
    for step, event in enumerate(model.history, 1):
        if event.class_names is None or event.kind == "task":
            continue
        line = f"Step {step}, {printable(event.kind)}: {_joined(event.class_names)}"
        if event.parents:
            line += f"; from model {_joined(event.parents)}"
        lines.append(line)
    lines.append(f"Model {model.identity}")
    if model.removals:
        lines.append(REMOVED)
    left_out = evaluate_left_out(model, model.calibration_samples())
    lines += rarely_predicted_notes(left_out.rarely_predicted, model)
    lines += model.accuracy_sentences()
    lines += _part_lines(model)
    measured = [e.energy_kwh for e in model.history if e.energy_kwh is not None]
    energy = "not measured"
    if measured:
        sources = {e.energy_source for e in model.history if e.energy_source}
        energy = f"{sum(measured):.1e} kWh ({_joined(sorted(sources))})"
    lines.append(f"Energy {energy}")
    return lines


def _part_lines(model: Classifier) -> list[str]:
    """Return lines on head, backbone, images and state."""
    head = model.head
    backbone = model.backbone
    settings = ", ".join(f"{key} {value}" for key, value in head.settings().items())
    temperature = f"temperature {float(head.temperature):.3g}"
    rule = ""
    if head.decision_rule is not None:
        rule = f", decision rule: {head.decision_rule}"
    size = f"{backbone.parameters_count:,} parameters, sha256 {backbone.sha256[:12]}"
    lines = [
        f"Head {type(head).__name__} ({settings}), {temperature}{rule}",
        f"Backbone {printable(backbone.name)}, {backbone.features:,} features, {size}",
    ]
    if backbone.takes_images:
        lines.append(f"Images {model.image_size} px, embedded in {model.precision}")
    stored = sum(tensor.nbytes for tensor in model.tensors().values())
    lines.append(f"State {stored / 1e6:.2f} MB")
    return lines


def _joined(names: list[str]) -> str:
    return ", ".join(map(printable, names))
