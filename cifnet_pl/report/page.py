"""The report as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from cifnet_pl.report.markup import Table, to_html, typeset
from cifnet_pl.report.style import Picture

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 70rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } h2 { font-size: 1.35rem; margin: 3rem 0 .8rem; padding-top: .6rem;
  border-top: 2px solid #1a1a1a; }
p.lead { color: #444; margin: 0 0 1rem; } nav { margin: 1.2rem 0; } nav a { margin-right: 1rem; color: #0b4f8a; }
.table { overflow-x: auto; margin: 1.2rem 0 .3rem; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; min-width: 50%; }
caption { text-align: left; font-weight: 600; font-size: .95rem; padding-bottom: .4rem; }
th { border-top: 2px solid #1a1a1a; border-bottom: 1px solid #1a1a1a; vertical-align: bottom; }
th, td { padding: .3rem .7rem; } .num { text-align: right; } .text { text-align: left; } td.num { white-space: nowrap; }
td:first-child { white-space: nowrap; } td.num + td.text { min-width: 9rem; }
sub { line-height: 0; }
tbody tr:nth-child(even) { background: #f4f4f4; } tbody tr:last-child td { border-bottom: 2px solid #1a1a1a; }
p.note { font-size: .82rem; color: #444; margin: .15rem 0; max-width: 60rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 29rem), 1fr)); gap: 1.2rem 2rem;
  align-items: start; margin: 1.2rem 0; }
figure { margin: 0; break-inside: avoid; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: .86rem; color: #333; max-width: 52rem; }
.warning { border-left: 4px solid #1a1a1a; background: #f4f4f4; padding: .5rem 1rem; margin: 1rem 0; font-size: .9rem; }
@media print { body { max-width: none; padding: 0; } nav { display: none; } }
"""


def to_page(
    title: str,
    lead: str,
    warnings: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    pictures: Mapping[str, Sequence[tuple[Picture, bytes]]],
) -> str:
    """The page; pictures come with their SVG, sections in the order of ``tables`` and then ``pictures``."""
    sections = list(dict.fromkeys([*tables, *pictures]))
    links = "".join(f'<a href="#{_anchor(name)}">{html.escape(name)}</a>' for name in sections)
    boxes = "".join(f'<p class="warning">{typeset(text)}</p>\n' for text in warnings)
    body = []
    for name in sections:
        body.append(f'<h2 id="{_anchor(name)}">{html.escape(name)}</h2>')
        body += [to_html(table) for table in tables.get(name, ())]
        drawn = "\n".join(_figure(picture, svg) for picture, svg in pictures.get(name, ()))
        body += [f'<div class="figures">{drawn}</div>'] if drawn else []
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{html.escape(title)}</h1>\n<p class="lead">{typeset(lead)}</p>\n{boxes}<nav>{links}</nav>\n'
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _figure(picture: Picture, svg: bytes) -> str:
    # As an image and not as elements of the page: identifiers of two drawings cannot clash.
    data = base64.b64encode(svg).decode("ascii")
    caption = typeset(picture.caption)
    return (
        f'<figure id="{picture.name}"><img alt="{html.escape(picture.caption, quote=True)}" '
        f'src="data:image/svg+xml;base64,{data}">\n<figcaption>{caption}</figcaption></figure>'
    )
