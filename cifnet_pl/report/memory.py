"""Numbers kept between tasks: the paper's formulas (its appendix on memory), and what this package keeps.

The paper's totals add rounded or truncated components; the formulas here give 72.1, 140.1 and 27.5 million for
CIFAR-100 and 278.5 and 548.5 million for ImageNet-100, where it prints 72.1, 140.0, 27.5, 278.4 and 548.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head

Elements = dict[str, int]
"""Numbers by component: projection, factors, moments, weights, buffer."""


@dataclass(frozen=True)
class Setting:
    """What the sizes depend on.

    features: d, width of the embeddings; classes: C; tasks: K; width: B, random features of ACIL and DS-AL;
    buffer: embeddings in the calibration buffer.
    """

    features: int
    classes: int
    tasks: int
    width: int = 8192
    buffer: int = 2000


def paper_acil(setting: Setting) -> Elements:
    """``M = Bd + B² + CB``."""
    d, c, b = setting.features, setting.classes, setting.width
    return {"projection": b * d, "factors": b**2, "weights": c * b}


def paper_dsal(setting: Setting) -> Elements:
    """``M = Bd + 2B² + 2CB``."""
    d, c, b = setting.features, setting.classes, setting.width
    return {"projection": b * d, "factors": 2 * b**2, "weights": 2 * c * b}


def paper_cifnet(setting: Setting) -> Elements:
    """``M = B_cal·d + C(2(d+1) + (d+1)r + r)`` at full rank ``r = d+1``: U and S of every class."""
    d, c = setting.features, setting.classes
    rank = d + 1
    return {
        "factors": c * ((d + 1) * rank + rank),
        "moments": c * (d + 1),
        "weights": c * (d + 1),
        "buffer": setting.buffer * d,
    }


def own_acil(setting: Setting) -> Elements:
    """``B² + 2CB``: a projection that is drawn from its seed is not stored."""
    c, b = setting.classes, setting.width
    return {"projection": 0, "factors": b**2, "moments": c * b, "weights": c * b}


def own_dsal(setting: Setting) -> Elements:
    """``2B² + 4CB``."""
    c, b = setting.classes, setting.width
    return {"projection": 0, "factors": 2 * b**2, "moments": 2 * c * b, "weights": 2 * c * b}


def own_cifnet(setting: Setting) -> Elements:
    """``B_cal·d + K(d+1)² + 2C(d+1)``: one Gram matrix for all classes of a task."""
    d, c = setting.features, setting.classes
    return {
        "factors": setting.tasks * (d + 1) ** 2,
        "moments": c * (d + 1),
        "weights": c * (d + 1),
        "buffer": setting.buffer * d,
    }


def own_ridge(setting: Setting) -> Elements:
    """``(d+1)² + 2C(d+1)``, whatever the number of tasks; a buffer for calibration comes on top."""
    d, c = setting.features, setting.classes
    return {"factors": (d + 1) ** 2, "moments": c * (d + 1), "weights": c * (d + 1)}


@dataclass(frozen=True)
class Row:
    """One component, or the total, of one method; None where the paper has no formula for it."""

    method: str
    component: str
    paper: int | None
    here: int


def formulas(setting: Setting) -> list[Row]:
    """The paper's tab:memory_breakdown for any setting, beside what the heads of this package keep."""
    return [
        *_rows("ACIL", paper_acil(setting), own_acil(setting)),
        *_rows("DS-AL", paper_dsal(setting), own_dsal(setting)),
        *_rows("CIFNet", paper_cifnet(setting), own_cifnet(setting)),
        *_rows("exact ridge", None, own_ridge(setting)),
    ]


def measured(head: Head, buffer: CalibrationBuffer | None = None) -> list[Row]:
    """What a learned head and its buffer keep, beside the paper's formula for the same d, C, B and buffer."""
    here = head.state_elements()
    stored = 0
    if buffer is not None:
        here = {**here, "buffer": buffer.state_elements()}
        stored = len(buffer.y)
    width = head.width if isinstance(head, ACILHead) else 0
    setting = Setting(head.in_features, len(head.classes), len(head.tasks), width, stored)
    paper = None
    if isinstance(head, DSALHead):
        paper = paper_dsal(setting)
    elif isinstance(head, ACILHead):
        paper = paper_acil(setting)
    elif isinstance(head, CIFNetHead):
        paper = paper_cifnet(setting)
    return _rows(type(head).__name__, paper, here)


def _rows(method: str, paper: Mapping[str, int] | None, here: Mapping[str, int]) -> list[Row]:
    names = list(dict.fromkeys([*(paper or {}), *here]))
    rows = [Row(method, name, (paper or {}).get(name), here.get(name, 0)) for name in names]
    return [*rows, Row(method, "total", sum(paper.values()) if paper else None, sum(here.values()))]


def table(rows: Iterable[Row]) -> str:
    """Rows as a Markdown table, in millions of numbers."""
    lines = ["| method | component | paper (M) | here (M) |", "|---|---|---|---|"]
    for row in rows:
        paper = "–" if row.paper is None else f"{row.paper / 1e6:.2f}"
        lines.append(f"| {row.method} | {row.component} | {paper} | {row.here / 1e6:.2f} |")
    return "\n".join(lines) + "\n"
