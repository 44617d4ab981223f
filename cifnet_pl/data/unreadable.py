"""Find every image of a set that cannot be decoded, so that a user need not find them one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

from cifnet_pl.data.image_sets import ImageSet, SampleSet
from cifnet_pl.data.images import UnreadableImage
from cifnet_pl.data.workers import cores

NAMED = 50
"""Unreadable images that one error names."""

CHECKED_AT_ONCE = 256
"""Images that are handed to the threads which look for unreadable ones, before the next are."""


def name_unreadable(known: Sequence[str], sets: Sequence[SampleSet], size: int, crop_ratio: float) -> str:
    """Return a sentence that names the unreadable images of some sets.

    Args:
        known: "place: reason" of those that were found already; they come first.
        sets: all are looked through.
        size, crop_ratio: how the images are decoded.
    """
    others = chain.from_iterable(unreadable_images(s, size, crop_ratio) for s in sets if isinstance(s, ImageSet))
    names = list(islice(dict.fromkeys(chain(known, others)), NAMED + 1))
    shown = "; ".join(names[:NAMED]) + ("; and more" if len(names) > NAMED else "")
    if len(names) == 1:
        return f"cannot read image {shown}: repair or remove it, or use --data.on_corrupt skip"
    return f"cannot read these images: {shown}: repair or remove them, or use --data.on_corrupt skip"


def unreadable_images(images: ImageSet, size: int, crop_ratio: float) -> Iterator[str]:
    """Decode all images of a set in threads, and yield "place: reason" of each that cannot be decoded.

    Args:
        images: the set.
        size, crop_ratio: how the images are decoded.
    """

    def failure(row: int) -> str | None:
        try:
            images.square(row, size, crop_ratio)
        except UnreadableImage as error:
            return f"{images.place(row)}: {error}"
        return None

    with ThreadPoolExecutor(cores(), "check") as pool:
        for start in range(0, len(images), CHECKED_AT_ONCE):
            rows = range(start, min(start + CHECKED_AT_ONCE, len(images)))
            yield from (image for image in pool.map(failure, rows) if image is not None)
