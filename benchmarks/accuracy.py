"""``python -m benchmarks.accuracy ROOT``: our head against ACIL, DS-AL and the offline bound, on photos.

Three class orders, tasks of ten classes, the same embeddings for all. Our head's choices come from training statistics
alone; the rivals get the ridge that is best on the validation images, the bound its best penalty likewise, so what we
are compared with is optimistic. Differences are paired over validation images: mean over the orders, and a 95 %
interval from the spread over images.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.embeddings import Photos, learn, read_photos, seen
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.calibration import calibrate, fit_temperature
from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, RidgeHead

ORDERS, PER_TASK, SHARES, PENALTIES = (1, 2, 3), 10, (0.01, 0.03, 0.1, 0.3), (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
Make = Callable[[int], Head]


def correct(make: Make, photos: Photos, order: int) -> tuple[Tensor, Tensor]:
    """(K, n) float64: 1 where validation image i is classified correctly after task k; and bool: where it counts."""
    head = make(photos.z.shape[1])
    right, counts = [], []
    for classes in photos.tasks(order, PER_TASK):
        learn(head, photos, classes)
        rows = seen(photos, head)
        right.append(torch.zeros(len(photos.val_y)).double())
        right[-1][rows] = (head.predict(photos.val_z[rows]) == photos.val_y[rows]).double()
        counts.append(torch.zeros(len(photos.val_y), dtype=torch.bool).index_fill(0, rows, True))
    return torch.stack(right), torch.stack(counts)


def shares(make: Make, photos: Photos) -> tuple[Tensor, Tensor]:
    """What each validation image adds to Ā and to A_K, in points, mean over the orders: (n,) and (n,)."""
    average, final = torch.zeros(len(photos.val_y)).double(), torch.zeros(len(photos.val_y)).double()
    for order in ORDERS:
        right, counts = correct(make, photos, order)
        part = 100 * right / counts.sum(1, keepdim=True) / len(ORDERS)
        average, final = average + part.mean(0), final + part[-1]
    return average, final


def interval(ours: Tensor, theirs: Tensor) -> str:
    """Difference of two sums over images with its 95 % interval, the images being a sample."""
    gap = ours - theirs
    half = 1.96 * gap.std().item() * math.sqrt(len(gap))
    return f"{gap.sum().item():+.2f} ± {half:.2f}"


def best_ridge(make: Callable[..., Head], photos: Photos) -> float:
    """The ridge with the best A_K on the validation images in the first order, among shares of the mean eigenvalue."""
    mean = ACILHead(photos.z.shape[1], width=256)  # the mean eigenvalue hardly depends on the width
    learn(mean, photos, list(range(photos.classes)))
    unit = mean.sums.gram.diagonal().mean().item()
    found = {}
    for share in SHARES:
        right, _ = correct(partial(make, ridge=share * unit), photos, ORDERS[0])
        found[share] = right[-1].mean().item()
    best = max(found, key=lambda share: found[share])
    print(f"A_K for ridges {', '.join(f'{s}: {100 * a:.2f}' for s, a in found.items())} of the mean eigenvalue")
    return best * unit


def offline(photos: Photos) -> tuple[float, Tensor]:
    """The best penalty of logistic regression on everything at once, standardised; each image's share of A_K."""
    mean, scale = photos.z.mean(0), photos.z.std(0) + 1e-6
    x, val = ((z - mean) / scale for z in (photos.z, photos.val_z))
    found = {}
    for penalty in PENALTIES:
        model = LogisticRegression(C=penalty / len(x) * 100, max_iter=300)
        model.fit(x.numpy(), photos.y.numpy())
        found[penalty] = (torch.from_numpy(model.predict(val.numpy())) == photos.val_y).double()
    best = max(found, key=lambda penalty: found[penalty].mean().item())
    return best, 100 * found[best] / len(photos.val_y)


def calibration(make: Make, photos: Photos) -> str:
    """Largest and last gap between the ECE at the leave-one-out temperature and at the one fitted on the test set."""
    head, buffer, gaps = make(photos.z.shape[1]), CalibrationBuffer(2000), []
    for classes in photos.tasks(ORDERS[0], PER_TASK):
        learn(head, photos, classes, buffer)
        rows = seen(photos, head)
        scores, y = head(photos.val_z[rows]), photos.val_y[rows]
        columns = (y[:, None] == head.labels).int().argmax(dim=1)
        errors = [
            100 * multiclass_calibration_error((scores / t).softmax(1), columns, scores.shape[1], n_bins=15).item()
            for t in (1.0, calibrate(head, *buffer.items()[:2]), fit_temperature(scores, columns))
        ]
        gaps.append(errors)
    table = torch.tensor(gaps)
    apart = (table[:, 1] - table[:, 2]).abs()
    mean = ", ".join(f"{value:.2f}" for value in table.mean(0).tolist())
    last = ", ".join(f"{value:.2f}" for value in table[-1].tolist())
    return f"{mean} | {last} | {apart.mean().item():.2f} | {apart.max().item():.2f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--width", type=int, default=8192, help="of ACIL and DS-AL")
    parser.add_argument("--cache_folder", type=Path, default=Path("~/.cache/cifnet_pl"))
    args = parser.parse_args()
    photos = read_photos(args.root, args.image_size, args.cache_folder)
    width = args.width
    acil = partial(ACILHead, width=width, dtype="float32")
    dsal = partial(DSALHead, width=width, dtype="float32")
    ours: Make = partial(RidgeHead, transform="joined")
    heads: dict[str, Make] = {
        "RidgeHead, joined": ours,
        "RidgeHead": RidgeHead,
        f"ACIL {width}": partial(acil, ridge=best_ridge(acil, photos)),
        f"DS-AL {width}": partial(dsal, ridge=best_ridge(dsal, photos)),
    }
    found = {name: shares(make, photos) for name, make in heads.items()}
    penalty, bound = offline(photos)
    print_comparison(found, bound)
    print(f"penalty of the bound: {penalty}\n")
    print("| head | ECE mean: T = 1, leave-one-out, test set | ECE last: the same | mean gap | largest gap |")
    print("|---|---|---|---|---|")
    calibrated: dict[str, Make] = {
        "RidgeHead, joined": ours,
        "RidgeHead": RidgeHead,
        "CIFNetHead": partial(CIFNetHead, ridge=1.0),
        "ACIL 2048": partial(ACILHead, width=2048, ridge="gcv"),
        "DS-AL 2048": partial(DSALHead, width=2048, ridge="gcv"),
    }
    for name, make in calibrated.items():
        print(f"| {name} | {calibration(make, photos)} |")


def print_comparison(found: dict[str, tuple[Tensor, Tensor]], bound: Tensor) -> None:
    """A row a head; the first one is compared with all others."""
    print("| head | Ā | A_K | ours − it, Ā | ours − it, A_K |\n|---|---|---|---|---|")
    mine, *_ = found.values()
    for name, (average, final) in found.items():
        gaps = [interval(mine[0], average), interval(mine[1], final)] if final is not mine[1] else ["", ""]
        print(f"| {name} | {average.sum():.2f} | {final.sum():.2f} | {gaps[0]} | {gaps[1]} |")
    print(f"| offline logistic regression | – | {bound.sum():.2f} | – | {interval(mine[1], bound)} |")


if __name__ == "__main__":
    main()
