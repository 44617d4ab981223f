"""The HTML pages of reports and audits: one file each, self-contained, without scripts."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from PIL import Image

from cifnet_pl.images.image import UnreadableImage, read_square
from cifnet_pl.model.audit import CurvePoint
from cifnet_pl.model.drawing import png
from cifnet_pl.utilities.text import printable

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("cifnet_pl.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def typeset(text: str) -> Markup:
    """Return ``text`` for HTML, escaped, with ``A_K`` as a symbol with an index."""
    return with_symbols(str(escape(printable(text))))


def with_symbols(html: str) -> Markup:
    """Return HTML in which ``A_K`` is a symbol with an index."""
    return Markup(re.sub("A_([Kk])", r"<i>A</i><sub>\1</sub>", html))


def base64_of(content: bytes) -> str:
    """Return bytes as text, for an address that holds them."""
    return base64.b64encode(content).decode("ascii")


# ---------------------------------------------------------------------- the page of an audit

IMAGE_PIXELS = 136
"""Side of the images on the page."""


Captions = Mapping[Path, str]
"""Images, each with the text below it."""


@dataclass
class Section:
    """A part of the page: sentences, a figure, a table, pairs of rows of images, and images.

    Attributes:
        name: heading.
        texts: sentences.
        figure: shown as large as it was drawn for; a large one is scrolled, not shrunk.
        header, rows: of the table.
        pairs: rows of images of two classes, each with its title.
        images: further images.
    """

    name: str
    texts: list[str] = field(default_factory=list)
    figure: Figure | None = None
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    pairs: Sequence[Sequence[tuple[str, Captions]]] = ()
    images: Captions = field(default_factory=dict)


def thumbnail(file: Path) -> str:
    """Return a small JPEG copy of an image in base64; a black one if it can no longer be read."""
    try:
        image = Image.fromarray(read_square(file, IMAGE_PIXELS))
    except UnreadableImage:
        image = Image.new("RGB", (IMAGE_PIXELS, IMAGE_PIXELS))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return base64_of(content.getvalue())


TEMPLATES.filters.update(
    typeset=typeset,
    with_symbols=with_symbols,
    base64=base64_of,
    png=png,
    thumbnail=thumbnail,
    printable=printable,
)


def draw_learning_curve(curve: Sequence[CurvePoint]) -> Figure:
    """Draw the leave-one-out accuracy over the number of images per class."""
    figure = Figure(figsize=(6.4, 3.8), dpi=120, layout="constrained")
    axes = figure.subplots()
    sizes, values = zip(*curve, strict=True)
    axes.plot(sizes, values, "o-", color="black")
    axes.set_xscale("log")
    labels = [str(size) for size in sizes]
    axes.set_xticks(sizes, labels)
    axes.set_xticks([], minor=True)
    lowest = min(50.0, min(values) - 2)
    axes.set(
        xlabel="images per class",
        ylabel="leave-one-out accuracy (%)",
        ylim=(lowest, 101),
    )
    axes.grid(alpha=0.3)
    return figure
