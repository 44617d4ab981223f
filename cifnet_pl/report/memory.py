"""Compute by formula how many numbers are kept between tasks: the paper's (appendix on memory) and this package's.

The paper's totals add rounded or truncated components; the formulas here give 72.1, 140.1 and 27.5 million for
CIFAR-100 and 278.5 and 548.5 million for ImageNet-100, where it prints 72.1, 140.0, 27.5, 278.4 and 548.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from cifnet_pl.report.external_results import published_numbers
from cifnet_pl.report.page import Cell, Column, Table
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import fixed
from cifnet_pl.report.study import Group, Study


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


def numbers_in_paper(sizes: Sizes) -> dict[str, dict[str, int]]:
    """Return how many numbers each method keeps by the paper's formulas.

    ACIL: ``Bd + B² + CB``; DS-AL: ``Bd + 2B² + 2CB``; CIFNet: ``B_cal·d + C(2(d+1) + (d+1)r + r)`` at full rank
    ``r = d+1``, U and S of every class.

    Args:
        sizes: of the embeddings, the stream and the buffer.

    Returns:
        Method → component → numbers.
    """
    d, c, b, rank = sizes.features, sizes.classes, sizes.width, sizes.features + 1
    of_class = c * (d + 1)
    return {
        "ACIL": {"projection": b * d, "factors": b**2, "weights": c * b},
        "DS-AL": {"projection": b * d, "factors": 2 * b**2, "weights": 2 * c * b},
        "CIFNet": {
            "factors": c * ((d + 1) * rank + rank), "moments": of_class, "weights": of_class,
            "buffer": sizes.buffer * d,
        },
    }  # fmt: skip


def numbers_kept(sizes: Sizes) -> dict[str, dict[str, int]]:
    """Return how many numbers the heads of this package keep.

    ACIL: ``B(B+1)/2 + 2CB``, as the projection is drawn from its seed, and half of a symmetric matrix is stored; DS-AL:
    twice that; CIFNet: ``B_cal·d + K(d+1)(d+2)/2 + 2C(d+1)``, one Gram matrix for all classes of a task; exact ridge:
    ``(d+1)(d+2)/2 + 2C(d+1)`` for any number of tasks, a buffer for calibration not included.

    Args:
        sizes: of the embeddings, the stream and the buffer.

    Returns:
        Method → component → numbers.
    """
    d, c, b = sizes.features, sizes.classes, sizes.width
    half_of_gram, half_of_random = (d + 1) * (d + 2) // 2, b * (b + 1) // 2
    of_class = c * (d + 1)
    return {
        "ACIL": {"projection": 0, "factors": half_of_random, "moments": c * b, "weights": c * b},
        "DS-AL": {"projection": 0, "factors": 2 * half_of_random, "moments": 2 * c * b, "weights": 2 * c * b},
        "CIFNet": {
            "factors": sizes.tasks * half_of_gram, "moments": of_class, "weights": of_class, "buffer": sizes.buffer * d,
        },
        "Exact ridge": {"factors": half_of_gram, "moments": of_class, "weights": of_class},
    }  # fmt: skip


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
    columns = [
        Column("method"), Column("numbers"),
        *(Column(f"{component} (M)", None, None, 1e-6, False) for component in parts),
        Column("total (M)", None, "min", 1e-6, False), Column("stored (MB)", None, "min", 1e-6, False),
        Column("backbone (M)", 2, None, 1e-6, False),
    ]  # fmt: skip
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
    methods = numbers_kept(PAPER_SIZES["CIFAR-100"])
    if not any(group.kind == "measured" and group.name in methods for group in study.groups):
        return []
    return [_breakdown(), _scaling()]


def _breakdown() -> Table:
    """Tabulate tab:memory_breakdown: every component, as published, by the paper's formula, and as kept here."""
    columns = [Column("method"), Column("component")]
    counts = {}  # (method, component, column) → numbers
    printed = published_numbers()
    printed = printed[(printed["table"] == "tab:memory_breakdown") & (printed["quantity"] == "elements_m")]
    for name, sizes in PAPER_SIZES.items():
        headers = [f"{name}, B = {sizes.width:,}: {kind} (M)" for kind in ("published", "formula", "here")]
        columns += [Column(header, 2, None, 1e-6) for header in headers]
        own = printed[printed["dataset"] == name]
        for method, component, millions in zip(own["method"], own["variant"], own["value"], strict=True):
            counts[method, component, headers[0]] = millions * 1e6
        for header, by_method in zip(headers[1:], (numbers_in_paper(sizes), numbers_kept(sizes)), strict=True):
            for method, parts in by_method.items():
                for component, count in {**parts, "total": sum(parts.values())}.items():
                    counts[method, component, header] = float(count)
    rows: list[list[Cell]] = []
    theirs = numbers_in_paper(PAPER_SIZES["CIFAR-100"])
    for method, ours in numbers_kept(PAPER_SIZES["CIFAR-100"]).items():
        for component in [*dict.fromkeys([*theirs.get(method, {}), *ours]), "total"]:
            cells = [fixed(counts.get((method, component, column.header))) for column in columns[2:]]
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
    theirs = numbers_in_paper(PAPER_SIZES["CIFAR-100"])
    ours = [numbers_kept(Sizes(512, 100, k)) for k in tasks]
    rows: list[list[Cell]] = []
    for method, grows_with in growth.items():
        paper = fixed(PAPER_BYTES * 1e-6 * sum(theirs[method].values())) if method in theirs else None
        here = [fixed(1e-6 * _stored(by_method[method])) for by_method in ours]
        rows.append([method, grows_with, paper, *here])
    notes = [
        "d = 512, 100 classes, B = 8,192, a buffer of 2000 embeddings. The paper counts 4 bytes a number; here sums "
        "are float64 (8 bytes) and embeddings float32."
    ]
    return Table("memory_scaling", "Megabytes kept between tasks by number of tasks", columns, rows, notes)


def _stored(parts: dict[str, int]) -> float:
    return float(sum(n * (EMBEDDING_BYTES if part == "buffer" else SUM_BYTES) for part, n in parts.items()))


# ---------------------------------------------------------------------- the buffer


@dataclass(frozen=True)
class BufferSize:
    """A buffer after the last task: its samples, the width of its embeddings, and the side of the images in pixels."""

    samples: int
    features: int
    side: int

    @property
    def megabytes(self) -> tuple[float, float, float]:
        """As embeddings (float32), as images of bytes, and as images of float32 (the paper's count)."""
        pixels = self.samples * 3 * self.side * self.side
        return self.samples * self.features * 4e-6, pixels * 1e-6, pixels * 4e-6


def buffers(study: Study) -> list[tuple[Group, BufferSize]]:
    """Return the references that keep a buffer and know the size of their images; one for each data set and size."""
    found: dict[tuple[str, BufferSize], Group] = {}
    for group in (group for group in study.groups if group.is_reference):
        run = group.outcomes[0].run
        about = {} if run is None else {**(run.summary.get("head_settings") or {}), **run.summary}
        elements, features, side = (about.get(key) for key in ("buffer_elements", "in_features", "image_size"))
        if elements and features and side:
            size = BufferSize(int(elements) // int(features), int(features), int(side))
            found.setdefault((group.setting.dataset, size), group)
    return [(group, size) for (_, size), group in found.items()]


def buffer_bytes_table(study: Study) -> Table:
    """Tabulate a buffer of embeddings against as many raw images (the paper: 4.1 MB against 1206 MB)."""
    sizes, megabytes = ("samples", "width", "pixels"), ("embeddings (MB)", "images, uint8 (MB)", "images, float32 (MB)")
    columns = [Column("setting"), Column("method"), *(Column(header, 0, spread=False) for header in sizes)]
    columns += [Column(header, None, spread=False) for header in megabytes]
    rows: list[list[Cell]] = []
    for group, size in buffers(study):
        numbers = [size.samples, size.features, size.side, *size.megabytes]
        rows.append([study.names[group.setting], group.label, *(fixed(number, group.seeds) for number in numbers)])
    if rows:
        paper = [fixed(number) for number in (2000, 512, 224, 4.10, None, 1206.40)]
        rows.append(["ImageNet-100 (published)", "CIFNet", *paper])
    notes = ["The same samples kept as embeddings (float32), as raw images (bytes), and as float32 images."]
    return Table("buffer_bytes", "A buffer of embeddings against as many raw images", columns, rows, notes)
