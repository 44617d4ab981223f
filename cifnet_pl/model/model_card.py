"""Describe a model in Markdown, as a card on the Hugging Face hub."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from cifnet_pl.utilities.text import printable

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier

MOST_CLASSES = 200
"""Class names in a card; of more, the first ones."""

EVENTS = {"task": "learned", "extend": "extended", "merge": "merged", "forget": "forgot"}


def model_card(model: Classifier, repository: str) -> str:
    """Return the card: what the model knows, how it was made, how it did, and how to use it.

    Args:
        model: the model.
        repository: ``user/model``.
    """
    photos = model.backbone.takes_images
    tags = ["class-incremental-learning", "continual-learning", "training-free"]
    about = {"library_name": "cifnet_pl", "tags": tags}
    if photos:
        about["pipeline_tag"] = "image-classification"
    title = repository.partition("/")[2]
    use = "PHOTOS" if photos else "VECTORS.npz"
    counts = model.counts
    lines = [
        "---",
        yaml.safe_dump(about, sort_keys=False).strip(),
        "---",
        "",
        f"# {escaped(title)}",
        "",
        f"A classifier of {len(model.class_names)} classes, learned without training: a frozen network turns each "
        f"{'photo' if photos else 'sample'} into an embedding, and a closed-form head is solved from sums over them.",
        "",
        "| | |",
        "|---|---|",
        f"| network | `{printable(model.backbone.name)}` |",
        f"| head | `{type(model.head).__name__}` |",
        f"| samples learned | {sum(counts.values()):,} |",
        f"| size of its state | {sum(model.state_elements().values()):,} numbers |",
        *_photo_rows(model),
        "",
        "```",
        "pip install 'cifnet_pl[hf]'",
        f"cifnet export --model hf:{repository} --download true --output MODEL",
        f"cifnet classify --model MODEL --images {use} --output out.csv",
        "cifnet extend --model MODEL --images NEW --output LARGER    # new classes, without any old sample",
        "```",
        "",
        "```python",
        "import cifnet_pl",
        "",
        f'model = cifnet_pl.load("hf:{repository}", download=True)',
        "```",
        "",
        "The files are safetensors and JSON: loading them executes nothing.",
        "",
        *_history(model),
        "## Classes",
        "",
        ", ".join(escaped(name) for name in model.class_names[:MOST_CLASSES])
        + (f" and {len(model.class_names) - MOST_CLASSES} others" if len(model.class_names) > MOST_CLASSES else ""),
        "",
    ]
    return "\n".join(lines)


def _photo_rows(model: Classifier) -> list[str]:
    return [f"| photos | {model.image_size} × {model.image_size} pixels |"] if model.backbone.takes_images else []


def _history(model: Classifier) -> list[str]:
    if not model.history:
        return []
    rows = [
        f"| {EVENTS.get(event.what, printable(event.what))} | {event.classes} | "
        f"{'' if event.accuracy is None else f'{event.accuracy:.1f}'} | {printable(event.date or '')} |"
        for event in model.history
    ]
    head = ["## History", "", "Accuracy in percent, on held-out samples of all classes known then.", ""]
    return [*head, "| | classes | accuracy | date (UTC) |", "|---|---|---|---|", *rows, ""]


def escaped(text: str) -> str:
    """Return a name as plain text of Markdown: no markup, no HTML, on one line."""
    return re.sub(r"([\\`*_{}\[\]()#+!|<>~&$-])", r"\\\1", printable(text))
