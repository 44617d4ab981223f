"""What more images of each class would bring: a forecast by the calibration samples."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from cifnet_pl.heads.probabilities import CalibrationSamples, calibrate
from cifnet_pl.model.calibration import MIN_IMAGES_PER_CLASS, Interval
from cifnet_pl.statistics.leaving_out import errors
from cifnet_pl.utilities.text import number_of


def gain_of_more_images(samples: CalibrationSamples | None) -> Interval | None:
    """Estimate how many points ten more images of each class would bring on new groups.

    What the last ten brought is measured: a head learns all samples but ten of each class, drawn at
    random. Both heads predict the samples that it learned, each without its group. Errors are taken
    to fall with the square root of the number of images n, so that the next ten bring
    ``(n^-½ − (n + 10)^-½) / ((n − 10)^-½ − n^-½)`` of that.

    Args:
        samples: buffer samples by which a model is calibrated, all that it learned.

    Returns:
        95 % interval over the images of classes with ``MIN_IMAGES_PER_CLASS`` or more; None where
        most classes have fewer.
    """
    if samples is None or not samples.learned:
        return None
    head = samples.head
    if not head.leaves_one_out or head.uses_buffer:
        return None
    y = samples.columns
    count = y.bincount(minlength=len(head.classes))
    enough = count >= MIN_IMAGES_PER_CLASS
    is_whole = len(y) == sum(head.class_counts().values())
    if not is_whole or 2 * int(enough.sum()) < len(count):
        return None
    added = 10 * enough
    rows = _all_but_the_last(samples.z, y, added)
    fewer = head.fresh()
    fewer.begin_task(head.classes, (count - added).tolist())
    fewer.observe(samples.z[rows], samples.y[rows])
    fewer.solve()
    learned_by_fewer = CalibrationSamples(
        fewer, samples.z[rows], samples.y[rows], samples.groups[rows]
    )
    calibrate(learned_by_fewer)
    columns = y[rows]
    before = errors(learned_by_fewer.scores(), columns)
    after = errors(samples.scores()[rows], columns)
    gains = (before - after)[enough[columns]]
    gains = gains[gains.isfinite()]
    if len(gains) < 2:
        return None
    n = float(count[enough].double().mean())
    fall_of_last = (n - 10) ** -0.5 - n**-0.5
    fall_of_next = n**-0.5 - (n + 10) ** -0.5
    points = 100 * fall_of_next / fall_of_last
    mean = float(gains.mean()) * points
    margin = 1.96 * float(gains.std()) / len(gains) ** 0.5 * points
    return Interval(mean - margin, mean + margin)


def gain_text(gain: Interval | None) -> str:
    """Return what more images would bring, in words; only the upper end is promised.

    Args:
        gain: result of :func:`gain_of_more_images`.
    """
    if gain is None:
        return "too few to say"
    most = round(gain.high)
    if most < 1:
        return "less than a point"
    return f"at most {number_of(most, 'point')}"


def _all_but_the_last(z: Tensor, y: Tensor, left_out: Tensor) -> Tensor:
    """Return the rows of all samples but some of each class, drawn at random.

    Args:
        z: (n, d) embeddings.
        y: (n,) column of each sample.
        left_out: (C,) samples of each class to leave out.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(len(y), generator=generator)
    # The same images are drawn in whatever order they came.
    by_content = z.double().sum(dim=1).argsort()
    order = by_content[drawn.to(y.device)]
    columns = pd.Series(y[order].cpu())
    number = columns.groupby(columns).cumcount()
    is_left_out = left_out.cpu().numpy()[columns] > number
    return order[torch.from_numpy(~is_left_out.to_numpy()).to(y.device)]
