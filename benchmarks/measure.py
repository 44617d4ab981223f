"""Timing two things side by side on a machine that others use too: interleaved, medians, spread;
images to time on.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Row:
    """One line of the benchmark's table: ours against a rival; ``ratio`` is rival / ours unless the
    name says else.
    """

    name: str
    ours: str
    rival: str
    ratio: str
    wanted: str
    settings: str


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def side_by_side(
    ours: Callable[[], object], rival: Callable[[], object], repeats: int
) -> tuple[list[float], list[float]]:
    """Times of both, alternating after one warm-up each, so that a busy machine slows both
    alike.
    """
    seconds(ours), seconds(rival)
    pairs = [(seconds(ours), seconds(rival)) for _ in range(repeats)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def spread(times: list[float], scale: float = 1.0, unit: str = "s") -> str:
    """Median and range, e.g. ``0.123 s (0.120–0.130)``."""
    low, middle, high = (
        scale * t for t in (min(times), statistics.median(times), max(times))
    )
    return f"{_shown(middle)} {unit} ({_shown(low)}–{_shown(high)})"


def ratio(numerator: list[float], denominator: list[float]) -> str:
    """Median of the pairwise ratios and their range."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return f"{_shown(statistics.median(ratios))} ({_shown(min(ratios))}–{_shown(max(ratios))})"


def _shown(number: float) -> str:
    if number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def jpegs(count: int, shape: tuple[int, int], seed: int = 0) -> list[bytes]:
    """JPEG files of smoothed noise, (width, height): as costly to decode and embed as images of
    their size.
    """
    draw = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        small = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(small).resize(shape, Image.Resampling.BICUBIC).save(out, "JPEG")
        files.append(out.getvalue())
    return files
