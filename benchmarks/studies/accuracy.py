"""``python -m benchmarks.studies.accuracy ROOT``: our head against ACIL, DS-AL and the offline bound, on photos.

Three class orders, tasks of ten classes. Ours is RidgeHead as it is (λ by GCV) on the embeddings of
``+layers+mirror``; its choices come from training photos alone (``benchmarks.studies.choices``). The rivals get the
ridge that is best on the validation images, the bound its best penalty likewise, so what we are compared with is
optimistic.
Differences are paired over validation images: mean over the orders, and a 95 % interval from the spread over images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.studies.photos import (
    RICH,
    Make,
    Photos,
    interval,
    learn,
    mean_eigenvalue,
    read_photos,
    seen,
    show,
    show_columns,
    stored,
    study_parser,
)
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, RidgeHead
from cifnet_pl.heads.confidence import calibrate, fit_temperature

ORDERS, PER_TASK, PENALTIES = (1, 2, 3), 10, (0.003, 0.01, 0.03, 0.1)
SHARE, STEP = 0.1, 10**0.5
"""Where the search for a rival's ridge begins, as a share of the mean eigenvalue, and the factor of its steps."""
Shares = tuple[Tensor, Tensor, int]


def correct(make: Make, photos: Photos, order: int) -> tuple[Tensor, Tensor, int]:
    """(K, n) float64, 1 where validation image i is classified correctly after task k; bool, where it counts; state."""
    head = make(photos.z.shape[1])
    right, counts = [], []
    for classes in photos.tasks(order, PER_TASK):
        learn(head, photos, classes)
        rows = seen(photos, head)
        right.append(torch.zeros(len(photos.val_y)).double())
        right[-1][rows] = (head.predict(photos.val_z[rows]) == photos.val_y[rows]).double()
        counts.append(torch.zeros(len(photos.val_y), dtype=torch.bool).index_fill(0, rows, True))
    return torch.stack(right), torch.stack(counts), sum(head.state_elements().values())


def shares(make: Make, photos: Photos) -> Shares:
    """What each validation image adds to Ā and to A_K, in points, mean over the orders, (n,) and (n,); numbers kept."""
    average, final = torch.zeros(len(photos.val_y)).double(), torch.zeros(len(photos.val_y)).double()
    for order in ORDERS:
        right, counts, state = correct(make, photos, order)
        share = 100 * right / counts.sum(1, keepdim=True) / len(ORDERS)
        average, final = average + share.mean(0), final + share[-1]
    return average, final, state


def best_ridge(name: str, make: Callable[..., Head], photos: Photos) -> Make:
    """The head with the best ridge by A_K on the validation images in the first order; steps up, then down."""
    unit = mean_eigenvalue(photos.z, 256)  # which hardly depends on the width
    by_ridge: dict[float, float] = {}

    def better(share: float) -> bool:
        right, *_ = correct(partial(make, ridge=share * unit), photos, ORDERS[0])
        by_ridge[share] = 100 * right[-1].mean().item()
        return by_ridge[share] == max(by_ridge.values())

    better(SHARE)
    for step in (STEP, 1 / STEP):
        share = SHARE * step
        while better(share):
            share *= step
    shown = ", ".join(f"{share:.2g}: {by_ridge[share]:.2f}" for share in sorted(by_ridge))
    print(f"{name}, A_K by ridge as a share of the mean eigenvalue: {shown}", flush=True)
    return partial(make, ridge=max(by_ridge, key=lambda share: by_ridge[share]) * unit)


def offline(name: str, photos: Photos) -> Tensor:
    """Logistic regression on everything at once, standardised, best penalty: each validation image's share of A_K."""
    mean, scale = photos.z.mean(0), photos.z.std(0) + 1e-6
    x, val = (((z - mean) / scale).numpy() for z in (photos.z, photos.val_z))
    by_penalty = {}
    for penalty in PENALTIES:
        model = LogisticRegression(C=1 / (penalty * len(x)), max_iter=150, tol=1e-3)
        model.fit(x, photos.y.numpy())
        by_penalty[penalty] = 100 * (torch.from_numpy(model.predict(val)) == photos.val_y).double() / len(photos.val_y)
    shown = ", ".join(f"{penalty:g}: {share.sum().item():.2f}" for penalty, share in by_penalty.items())
    print(f"{name}, accuracy by penalty: {shown}", flush=True)
    return max(by_penalty.values(), key=lambda share: share.sum().item())


def calibration(make: Make, photos: Photos) -> list[str]:
    """ECE along the stream, and how far the leave-one-out temperature's is from that of the test set's temperature."""
    head, buffer, rows = make(photos.z.shape[1]), CalibrationBuffer(2000), []
    for classes in photos.tasks(ORDERS[0], PER_TASK):
        learn(head, photos, classes, buffer)
        seen_samples = seen(photos, head)
        scores, y = head(photos.val_z[seen_samples]), photos.val_y[seen_samples]
        columns = (y[:, None] == head.labels).int().argmax(dim=1)
        temperatures = (1.0, calibrate(stored(head, buffer)), fit_temperature(scores, columns))
        rows.append([ece(scores / t, columns) for t in temperatures])
        last = [torch.nn.functional.cross_entropy(scores / t, columns).item() for t in temperatures]
    errors = torch.tensor(rows)
    apart = (errors[:, 1] - errors[:, 2]).abs()
    figures = [*errors.mean(0).tolist(), *errors[-1].tolist()]
    gaps = [f"{apart.mean():.2f}", f"{apart.max():.2f}"]
    return [*(f"{value:.2f}" for value in figures), *(f"{value:.3f}" for value in last), *gaps]


def ece(scores: Tensor, columns: Tensor) -> float:
    """In percent, with 15 bins."""
    return 100 * multiclass_calibration_error(scores.softmax(1), columns, scores.shape[1], n_bins=15).item()


def rivals(plain: Photos, rich: Photos, width: int) -> dict[str, Shares]:
    """What we are compared with, each at its best ridge or penalty."""
    acil, dsal = (partial(kind, width=width, dtype="float32") for kind in (ACILHead, DSALHead))
    rows_of: dict[str, Shares] = {}
    for name, make, photos in (("ACIL", acil, plain), ("ACIL, our embeddings", acil, rich), ("DS-AL", dsal, plain)):
        rows_of[f"{name} {width}"] = shares(best_ridge(name, make, photos), photos)
    for name, photos in (("offline bound", plain), ("offline bound, our embeddings", rich)):
        bound = offline(name, photos)
        rows_of[name] = torch.full_like(bound, torch.nan), bound, photos.z.numel()
    return rows_of


def main() -> None:
    """Print a table of calibration and one of accuracies, each with a row a head."""
    parser = study_parser(__doc__)
    parser.add_argument("--width", type=int, default=8192, help="of ACIL and DS-AL; 0: without them and the bound, "
                        "which take hours on two cores where ours takes minutes")  # fmt: skip
    options = parser.parse_args()
    plain, rich = read_photos(options.root, options), read_photos(options.root, options, RICH)
    joined = partial(RidgeHead, transform="joined")
    calibrated: dict[str, tuple[Make, Photos]] = {
        "ours": (RidgeHead, rich),
        "ours, joined": (joined, rich),
        "RidgeHead": (RidgeHead, plain),
        "CIFNetHead": (partial(CIFNetHead, ridge=1.0), plain),
        "ACIL 2048": (partial(ACILHead, width=2048, ridge="gcv"), plain),
        "DS-AL 2048": (partial(DSALHead, width=2048, ridge="gcv"), plain),
    }
    print("Temperature 1, leave-one-out, fitted on the test set: ECE mean over tasks, ECE last, NLL last; gaps of ECE")
    show_columns(["head", *["ECE"] * 3, *["ECE last"] * 3, *["NLL last"] * 3, "mean gap", "largest gap"])
    for name, (make, photos) in calibrated.items():
        show([name, *calibration(make, photos)])
    rows_of = {
        "ours": shares(RidgeHead, rich),
        "ours, joined": shares(joined, rich),
        "RidgeHead": shares(RidgeHead, plain),
    }
    if options.width:
        rows_of |= rivals(plain, rich, options.width)
    average, final, _ = rows_of["ours"]
    show_columns(["head", "Ā", "A_K", "ours − it, Ā", "ours − it, A_K", "numbers kept, millions"])
    for name, (theirs, last, state) in rows_of.items():
        shown = "–" if theirs.isnan().any() else f"{theirs.sum():.2f}"
        show([name, shown, f"{last.sum():.2f}", interval(average, theirs), interval(final, last), f"{state / 1e6:.2f}"])


if __name__ == "__main__":
    main()
