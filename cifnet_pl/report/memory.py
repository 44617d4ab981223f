"""Compute by formula how many numbers are kept between tasks: the paper's (appendix on memory) and this package's.

The paper's totals add rounded or truncated components; the formulas here give 72.1, 140.1 and 27.5 million for
CIFAR-100 and 278.5 and 548.5 million for ImageNet-100, where it prints 72.1, 140.0, 27.5, 278.4 and 548.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cifnet_pl.report.external_results import published_numbers
from cifnet_pl.report.outcomes import Group, fixed
from cifnet_pl.report.page import Cell, Column, Table
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.study import Study

Elements = dict[str, int]
"""Numbers by component: projection, factors, moments, weights, buffer."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the formulas depend on.

    Attributes:
        features: d, width of the embeddings.
        classes: C.
        tasks: K.
        width: B, random features of ACIL and DS-AL.
        buffer: embeddings in the calibration buffer.
    """

    features: int
    classes: int
    tasks: int
    width: int = 8192
    buffer: int = 2000


def paper_acil(sizes: Sizes) -> Elements:
    """Return ``M = Bd + B² + CB``."""
    d, c, b = sizes.features, sizes.classes, sizes.width
    return {"projection": b * d, "factors": b**2, "weights": c * b}


def paper_dsal(sizes: Sizes) -> Elements:
    """Return ``M = Bd + 2B² + 2CB``."""
    d, c, b = sizes.features, sizes.classes, sizes.width
    return {"projection": b * d, "factors": 2 * b**2, "weights": 2 * c * b}


def paper_cifnet(sizes: Sizes) -> Elements:
    """Return ``M = B_cal·d + C(2(d+1) + (d+1)r + r)`` at full rank ``r = d+1``: U and S of every class."""
    d, c = sizes.features, sizes.classes
    rank = d + 1
    return {
        "factors": c * ((d + 1) * rank + rank),
        "moments": c * (d + 1),
        "weights": c * (d + 1),
        "buffer": sizes.buffer * d,
    }


def triangle(width: int) -> int:
    """Return how many different numbers a symmetric matrix of some width has.

    Example:
        >>> triangle(3)
        6
    """
    return width * (width + 1) // 2


def own_acil(sizes: Sizes) -> Elements:
    """Return ``B(B+1)/2 + 2CB``: the projection is drawn from its seed, and half of a symmetric matrix is stored."""
    c, b = sizes.classes, sizes.width
    return {"projection": 0, "factors": triangle(b), "moments": c * b, "weights": c * b}


def own_dsal(sizes: Sizes) -> Elements:
    """Return ``B(B+1) + 4CB``."""
    c, b = sizes.classes, sizes.width
    return {"projection": 0, "factors": 2 * triangle(b), "moments": 2 * c * b, "weights": 2 * c * b}


def own_cifnet(sizes: Sizes) -> Elements:
    """Return ``B_cal·d + K(d+1)(d+2)/2 + 2C(d+1)``: one Gram matrix for all classes of a task."""
    d, c = sizes.features, sizes.classes
    return {
        "factors": sizes.tasks * triangle(d + 1),
        "moments": c * (d + 1),
        "weights": c * (d + 1),
        "buffer": sizes.buffer * d,
    }


def own_ridge(sizes: Sizes) -> Elements:
    """Return ``(d+1)(d+2)/2 + 2C(d+1)`` for any number of tasks; a buffer for calibration is not included."""
    d, c = sizes.features, sizes.classes
    return {"factors": triangle(d + 1), "moments": c * (d + 1), "weights": c * (d + 1)}


Formula = Callable[[Sizes], Elements]
FORMULAS: dict[str, tuple[Formula | None, Formula]] = {
    "ACIL": (paper_acil, own_acil),
    "DS-AL": (paper_dsal, own_dsal),
    "CIFNet": (paper_cifnet, own_cifnet),
    "Exact ridge": (None, own_ridge),
}
"""Method → the paper's formula, where it has one, and this package's."""


PAPER_BYTES, EMBEDDING_BYTES, SUM_BYTES = 4, 4, 8
"""Bytes of a number in the paper's tables, of a stored embedding (float32), and of a sum (float64) here."""

PAPER_SIZES = {"CIFAR-100": Sizes(512, 100, 10, width=8192), "ImageNet-100": Sizes(512, 100, 10, width=16384)}
PAPER_NOTE = "Rows marked published are the paper's own numbers, at 4 bytes each, not measured here."


def memory_table(study: Study, setting: Setting) -> Table:
    """Tabulate the numbers kept between tasks by component, and the bytes as they are stored.

    The backbone has a row of its own.

    Args:
        study: all results.
        setting: whose groups are listed.
    """
    groups = [group for group in study.with_published(setting) if group.stat("kept_elements")]
    parts = list(dict.fromkeys(component for group in groups for component in group.components))
    columns = [Column("method"), Column("numbers")]
    columns += [Column(f"{component} (M)", None, None, 1e-6, False) for component in parts]
    columns += [
        Column("total (M)", None, "min", 1e-6, False),
        Column("stored (MB)", None, "min", 1e-6, False),
        Column("backbone (M)", 2, None, 1e-6, False),
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        cells: list[Cell] = [fixed(group.components.get(component), group.seeds) for component in parts]
        totals = [group.stat(key) for key in ("kept_elements", "kept_bytes", "backbone_params")]
        rows.append([group.label, group.kind, *cells, *totals])
    notes = [
        "After the last task. M: millions of numbers, as the paper counts. Stored: bytes in the precision that each is "
        "kept in (sums are float64 unless said otherwise, embeddings float32, images bytes). A projection "
        "that is drawn from its seed is not stored. Parameters of a method "
        "that trains its network are counted without one backbone, which stands apart for all.",
        *([PAPER_NOTE] if any(group.kind == "published" for group in groups) else []),
    ]
    title = f"Memory besides the backbone: {study.names[setting]}"
    return Table(f"memory_{study.slug(setting)}", title, columns, rows, notes, [group.kind for group in groups])


def scaling_tables(study: Study) -> list[Table]:
    """Return the paper's two tables of memory beside this package's formulas.

    They are made only if the report has one of their methods.
    """
    if not any(group.kind == "measured" and group.name in FORMULAS for group in study.groups):
        return []
    return [_breakdown(), _scaling()]


def _breakdown() -> Table:
    """Tabulate tab:memory_breakdown: every component, as published, by the paper's formula, and as kept here."""
    columns = [Column("method"), Column("component")]
    for name, sizes in PAPER_SIZES.items():
        short = f"{name}, B = {sizes.width:,}"
        columns += [Column(f"{short}: {kind} (M)", 2, None, 1e-6) for kind in ("published", "formula", "here")]
    published = {
        (n.dataset, n.method, n.variant): n.value * 1e6
        for n in published_numbers() if n.table == "tab:memory_breakdown" and n.quantity == "elements_m"
    }  # fmt: skip
    rows: list[list[Cell]] = []
    for method, (paper, our_formula) in FORMULAS.items():
        counts = {name: (paper(sizes) if paper else {}, our_formula(sizes)) for name, sizes in PAPER_SIZES.items()}
        first = next(iter(counts.values()))
        for component in [*dict.fromkeys([*first[0], *first[1]]), "total"]:
            cells: list[Cell] = []
            for name, (theirs, ours) in counts.items():
                pair = [sum(c.values()) if component == "total" and c else c.get(component) for c in (theirs, ours)]
                cells += [fixed(published.get((name, method, component))), *(fixed(count) for count in pair)]
            rows.append([method, component, *cells])
    notes = [
        "d = 512, 100 classes, 10 tasks, a buffer of 2000 embeddings; B: random features of ACIL and DS-AL. "
        "Published: the paper's tab:memory_breakdown. Formula: the paper's, for the same sizes. Here: what the "
        "heads of this package keep; a projection that is drawn from its seed is not stored.",
    ]
    return Table("memory_breakdown", "Numbers kept between tasks, component by component", columns, rows, notes)


def _scaling() -> Table:
    """Tabulate memory by number of tasks (tab:memory_scaling): a factor per class in the paper, one per task here."""
    tasks = (10, 20, 50, 100)
    columns = [Column("method"), Column("grows with"), Column("the paper's formula (MB)", 1)]
    columns += [Column(f"here, {k} tasks (MB)", 1) for k in tasks]
    growth = {"ACIL": "B²", "DS-AL": "2B²", "CIFNet": "C·d² (paper), K·d² (here)", "Exact ridge": "d²"}
    rows: list[list[Cell]] = []
    for method, (paper, our_formula) in FORMULAS.items():
        theirs = fixed(PAPER_BYTES * 1e-6 * sum(paper(PAPER_SIZES["CIFAR-100"]).values())) if paper else None
        ours = [_stored(our_formula(Sizes(512, 100, k))) for k in tasks]
        rows.append([method, growth[method], theirs, *(fixed(1e-6 * count) for count in ours)])
    notes = [
        "d = 512, 100 classes, B = 8,192, a buffer of 2000 embeddings. The paper counts 4 bytes a number; here sums "
        "are float64 (8 bytes) and embeddings float32."
    ]
    return Table("memory_scaling", "Megabytes kept between tasks by number of tasks", columns, rows, notes)


def _stored(parts: dict[str, int]) -> float:
    return float(
        sum(count * (EMBEDDING_BYTES if component == "buffer" else SUM_BYTES) for component, count in parts.items())
    )


# ---------------------------------------------------------------------- the buffer


def buffered(study: Study) -> list[Group]:
    """Return the references that keep a buffer and know the size of their images; one for each data set and size."""
    by_setting: dict[Any, Group] = {}
    for group in (group for group in study.groups if group.is_reference and raw_images(group) is not None):
        by_setting.setdefault((group.setting.dataset, raw_images(group)), group)
    return list(by_setting.values())


def raw_images(group: Group) -> tuple[int, int, int] | None:
    """Return the size of a group's buffer after the last task.

    Returns:
        Samples, features and side of the images in pixels; None if they are not known.
    """
    run = group.outcomes[0].run if group.outcomes else None
    if run is None or not run.summary.get("buffer_elements") or not run.summary.get("image_size"):
        return None
    features = (run.summary.get("head_settings") or {}).get("in_features")
    if not features:
        return None
    return int(run.summary["buffer_elements"]) // int(features), int(features), int(run.summary["image_size"])


def buffer_megabytes(samples: int, features: int, side: int) -> tuple[float, float, float]:
    """Return the megabytes of a buffer.

    Args:
        samples: number of embeddings or images.
        features: width of the embeddings.
        side: of the images in pixels.

    Returns:
        As embeddings (float32), as images of bytes, and as images of float32 (the paper's count).
    """
    pixels = samples * 3 * side * side
    return samples * features * 4e-6, pixels * 1e-6, pixels * 4e-6


def buffer_bytes_table(study: Study) -> Table:
    """Tabulate a buffer of embeddings against as many raw images (the paper: 4.1 MB against 1206 MB)."""
    headers = ("embeddings (MB)", "images, uint8 (MB)", "images, float32 (MB)")
    columns = [
        Column("setting"),
        Column("method"),
        *(Column(header, 0, spread=False) for header in ("samples", "width", "pixels")),
    ]
    columns += [Column(header, None, spread=False) for header in headers]
    rows: list[list[Cell]] = []
    for group in buffered(study):
        shape = raw_images(group)
        assert shape is not None
        numbers = [*map(float, shape), *buffer_megabytes(*shape)]
        rows.append([study.names[group.setting], group.label, *(fixed(x, group.seeds) for x in numbers)])
    if rows:
        paper = [fixed(x) for x in (2000.0, 512.0, 224.0, 4.10)]
        rows.append(["ImageNet-100 (published)", "CIFNet", *paper, None, fixed(1206.40)])
    notes = ["The same samples kept as embeddings (float32), as raw images (bytes), and as float32 images."]
    return Table("buffer_bytes", "A buffer of embeddings against as many raw images", columns, rows, notes)
