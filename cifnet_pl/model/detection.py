"""Measure how well unknown photos are told from known ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_roc

KEPT = 0.95
"""Share of known photos that are taken for known, where the other error is measured."""


def detection(known: Tensor, foreign: Tensor) -> tuple[float, float]:
    """Compute how well novelty separates foreign photos from known ones.

    Args:
        known: (n,) novelty of known photos, at least one.
        foreign: (m,) novelty of foreign photos, at least one; larger is more foreign.

    Returns:
        In percent: the AUROC, and the share of foreign photos that are taken for known ones at the threshold that keeps
        95 % of the known ones.
    """
    values = torch.cat([known, foreign])
    # Ranks instead of values: torchmetrics takes values outside of 0 and 1 for logits, and rounds their sigmoid.
    ranks = torch.unique(-values, return_inverse=True)[1]
    likely = ranks.double() / max(1, int(ranks.max()))
    target = torch.cat([torch.ones(len(known)), torch.zeros(len(foreign))]).to(ranks)
    false_positives, true_positives, _ = binary_roc(likely, target)
    wrong = false_positives[true_positives >= KEPT].min()
    return 100 * float(binary_auroc(likely, target)), 100 * float(wrong)
