"""``python -m benchmarks.studies.group_rule BURSTS …``: compare rules that find groups.

Each of BURSTS is a folder that ``benchmarks.studies.bursts`` made. The head learns its training
images; each rule finds the groups that are left out together, which calibrate the head. Rules
differ in :data:`PART`, how much of its class an image's cluster may be, and in the cut: the one
with the largest harm, or the finest within its standard error. The rule with the smallest negative
log likelihood of the validation images, on average over BURSTS, is named last.
"""

from __future__ import annotations

from typing import Any

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

PARTS = (0.125, 0.25, 0.5, 1.0)
CUTS = ("finest", "largest")
COLUMNS = ("estimate − true", "ECE %", "sets of 95 % hold", "classes", "NLL")


def largest(found: dict[float, Any]) -> float | None:
    """The cut of the largest harm, where there is any."""
    if finest(found) is None:
        return None
    return max(found, key=lambda cut: found[cut].ratio)


finest = grouping._choose


def measured(
    z: torch.Tensor, y: torch.Tensor, val_z: torch.Tensor, val_y: torch.Tensor
) -> list[float]:
    """A row, by the rule that is set now."""
    head = RidgeHead(z.shape[1], decision="auto")
    head.begin_task(y.unique().tolist())
    head.observe(z, y)
    head.solve()
    samples = CalibrationSamples(head, z, y)
    groups = grouping.find_groups(z, samples.columns, samples.left_out).groups
    head.select_rule(z, y, groups)
    samples = CalibrationSamples(head, z, y, groups)
    calibrate(samples)
    p = head.probabilities(val_z)
    confidence, predicted = p.max(dim=1)
    right = predicted == val_y
    own = p.gather(1, val_y[:, None])
    sets = PredictionSets.of(samples, 0.95).of_probabilities(p)
    gap = (samples.accuracy() or 0) - 100 * right.double().mean().item()
    held = sets.gather(1, val_y[:, None]).double().mean()
    size = sets.sum(dim=1).double().mean()
    error = calibration_error(confidence.numpy(), right.numpy())
    return [gap, error, 100 * held.item(), size.item(), -own.log().mean().item()]


def main() -> None:
    """A row for each set and rule."""
    asked = study_parser(__doc__, "+").parse_args()
    sets = [read_images(root, asked, RICH) for root in asked.root]
    show_columns(("bursts", "part", "cut", *COLUMNS))
    losses = {}
    for part in PARTS:
        for cut in CUTS:
            grouping.PART = part
            grouping._choose = finest if cut == "finest" else largest
            rows = [measured(one.z, one.y, one.val_z, one.val_y) for one in sets]
            losses[part, cut] = sum(row[-1] for row in rows) / len(rows)
            for root, row in zip(asked.root, rows, strict=True):
                show([root.name, f"{part:g}", cut, *(f"{cell:.2f}" for cell in row)])
    print("smallest NLL:", *min(losses, key=lambda rule: losses[rule]))


if __name__ == "__main__":
    main()
