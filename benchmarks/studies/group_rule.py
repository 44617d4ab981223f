"""``python -m benchmarks.studies.group_rule BURSTS …``: how groupings are weighted.

Each of BURSTS is a folder that ``benchmarks.studies.bursts`` made. The head learns its training
images; each rule finds the groupings that estimates are averaged over, and the grouping that
calibrates the head. Rules differ in the constants of :mod:`cifnet_pl.statistics.groups`: the power
of the harm, the part of a class from which on a cut loses its weight, and the quantile of the
grouping to calibrate by. The rule with the smallest negative log likelihood of the validation
images, on average over BURSTS, is named last.
"""

from __future__ import annotations

import itertools

import torch

from benchmarks.studies.images import (
    RICH,
    read_images,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.confidence import CalibrationSamples, PredictionSets, calibrate
from cifnet_pl.model.metrics import calibration_error
from cifnet_pl.statistics import groups as grouping

POWERS = (1.0, 3.0, 6.0)
PARTS = (0.2, 0.28, 0.4)
QUANTILES = (0.5, 0.75)
COLUMNS = ("estimate − true", "ECE %", "coverage at 95 %", "classes", "NLL")


def estimate(samples: CalibrationSamples, found: grouping.FoundGroups) -> float:
    """Accuracy in percent, averaged over the groupings."""
    if not found.groupings:
        return accuracy(samples.left_out(None), samples.columns)
    total = 0.0
    for each in found.groupings:
        left_out = samples.left_out(each.groups)
        total += each.weight * accuracy(left_out, samples.columns)
    return total


def accuracy(scores: torch.Tensor, columns: torch.Tensor) -> float:
    """Percent of the samples with scores that are predicted correctly."""
    known = ~scores.isnan().any(dim=1)
    correct = scores[known].argmax(dim=1) == columns[known]
    return 100 * correct.double().mean().item()


def measured(
    z: torch.Tensor, y: torch.Tensor, val_z: torch.Tensor, val_y: torch.Tensor
) -> list[float]:
    """A row, by the constants that are set now."""
    head = RidgeHead(z.shape[1], decision="auto")
    head.begin_task(y.unique().tolist())
    head.observe(z, y)
    head.solve()
    samples = CalibrationSamples(head, z, y)
    found = grouping.find_groups(z, samples.columns, samples.left_out)
    head.select_rule(z, y, found.groups)
    samples = CalibrationSamples(head, z, y, found.groups)
    calibrate(samples)
    p = head.probabilities(val_z)
    confidence, predicted = p.max(dim=1)
    correct = predicted == val_y
    own = p.gather(1, val_y[:, None])
    sets = PredictionSets.of(samples, 0.95).of_probabilities(p)
    gap = estimate(samples, found) - 100 * correct.double().mean().item()
    coverage = 100 * sets.gather(1, val_y[:, None]).double().mean().item()
    size = sets.sum(dim=1).double().mean().item()
    error = calibration_error(confidence.numpy(), correct.numpy()) or 0.0
    return [gap, error, coverage, size, -own.log().mean().item()]


def main() -> None:
    """A row for each set and rule."""
    asked = study_parser(__doc__, "+").parse_args()
    sets = [read_images(root, asked, RICH) for root in asked.root]
    show_columns(("bursts", "power", "part", "quantile", *COLUMNS))
    losses = {}
    for power, part, quantile in itertools.product(POWERS, PARTS, QUANTILES):
        grouping.HARM_POWER = power
        grouping.LARGEST_PART = part
        grouping.CALIBRATION_QUANTILE = quantile
        rows = [measured(one.z, one.y, one.val_z, one.val_y) for one in sets]
        rule = f"{power:g}", f"{part:g}", f"{quantile:g}"
        losses[rule] = sum(row[-1] for row in rows) / len(rows)
        for root, row in zip(asked.root, rows, strict=True):
            show([root.name, *rule, *(f"{cell:.2f}" for cell in row)])
    print("smallest NLL:", *min(losses, key=lambda rule: losses[rule]))


if __name__ == "__main__":
    main()
