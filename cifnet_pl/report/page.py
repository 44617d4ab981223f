"""Write the report as one self-contained HTML page without scripts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from cifnet_pl.report.html_tables import template, to_html, typeset
from cifnet_pl.report.markup import Table
from cifnet_pl.report.style import Picture


def to_page(
    title: str,
    lead: str,
    warnings: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    pictures: Mapping[str, Sequence[tuple[Picture, bytes]]],
) -> str:
    """Return the HTML page; sections follow in the order of ``tables``, then of ``pictures``.

    Args:
        title: of the page.
        lead: sentence at the top.
        warnings: sentences below it.
        tables: section → tables.
        pictures: section → pictures with their SVG.
    """
    sections = [
        {
            "name": name,
            "anchor": name.lower().replace(" ", "-"),
            "tables": [to_html(table) for table in tables.get(name, ())],
            "figures": [_figure(picture, svg) for picture, svg in pictures.get(name, ())],
        }
        for name in dict.fromkeys([*tables, *pictures])
    ]
    notes = [typeset(text) for text in warnings]
    return template("page.html").render(title=title, lead=typeset(lead), warnings=notes, sections=sections)


def _figure(picture: Picture, svg: bytes) -> dict[str, str]:
    # As an image and not as elements of the page: identifiers of two drawings cannot clash.
    data = base64.b64encode(svg).decode("ascii")
    return {"name": picture.name, "alt": picture.caption, "data": data, "caption": typeset(picture.caption)}
