"""Write the page of an audit: one self-contained file for the owner of the photos."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from cifnet_pl.learning.callbacks.pictures import png
from cifnet_pl.model.audit import LearningCurve
from cifnet_pl.photos.photo import UnreadableImage, read_square
from cifnet_pl.report.page import TEMPLATES
from cifnet_pl.utilities.text import printable

PIXELS = 136
"""Side of the photos on the page."""

PIXELS_PER_INCH = 96
"""Of a page, as CSS has it."""


@dataclass(frozen=True)
class Shown:
    """A photo on the page.

    Attributes:
        data: the small JPEG file, base64.
        name: of the file, below it.
        text: below that.
    """

    data: str
    name: str
    text: str = ""


@dataclass(frozen=True)
class Side:
    """Photos of one class, shown beside those of another."""

    title: str
    photos: Sequence[Shown]


@dataclass
class Section:
    """A part of the page: sentences, then as far as given a picture, a table, pairs of rows of photos, and photos.

    Attributes:
        name: heading.
        texts: sentences.
        picture: PNG file, base64.
        width: at which the picture can be read, in pixels of the page; a large one is scrolled, not shrunk.
        header, rows: of the table.
        pairs: rows of photos of two classes.
        photos: further photos.
    """

    name: str
    texts: list[str] = field(default_factory=list)
    picture: str = ""
    width: int = 0
    header: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    pairs: Sequence[tuple[Side, Side]] = ()
    photos: Sequence[Shown] = ()


def show(file: Path, text: str = "") -> Shown:
    """Return a small copy of a photo for the page, with the name of its file.

    Args:
        file: the photo.
        text: below the name.
    """
    try:
        square = read_square(file, PIXELS)
    except UnreadableImage:  # it could be read a minute ago
        square = np.zeros((PIXELS, PIXELS, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(square).save(content, "JPEG", quality=80)
    # A number and its percent sign stay on one line.
    return Shown(
        base64.b64encode(content.getvalue()).decode("ascii"),
        printable(file.name),
        printable(text).replace(" %", "\u00a0%"),
    )


def with_figure(name: str, texts: list[str], figure: Figure) -> Section:
    """Return a section with a figure, its text as large as it was drawn for."""
    width = round(figure.get_figwidth() * PIXELS_PER_INCH)
    return Section(name, texts, base64.b64encode(png(figure)).decode("ascii"), width)


def audit_page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the HTML page; all texts are escaped.

    Args:
        title: of the page.
        lead: sentences at the top.
        sections: parts of the page.
    """
    return TEMPLATES.get_template("audit.html").render(title=title, lead=lead, sections=sections)


def draw_learning_curve(curve: LearningCurve) -> Figure:
    """Draw the measured accuracy over photos per class, and the fitted curve up to four times as many photos."""
    figure = Figure(figsize=(6.4, 3.8), dpi=120, layout="constrained")
    axes = figure.subplots()
    sizes, values = zip(*curve.points, strict=True)
    axes.plot(sizes, values, "o", color="black", label="measured, each photo left out")
    if curve.fitted is not None:
        x = np.geomspace(sizes[0], 4 * sizes[-1], 100)
        axes.plot(x, [curve.forecast(each) or 0.0 for each in x], "--", color="tab:blue", label="forecast")
    axes.set_xscale("log")
    ticks = [*sizes, 2 * sizes[-1], 4 * sizes[-1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="photos per class", ylabel="named right (%)", ylim=(min(50.0, min(values) - 2), 101))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
