"""``python -m benchmarks.copies ROOT``: what copies among the training photos do to the ridge that GCV chooses.

Copies are added to a draw of training photos: exact ones; near ones, whose embedding has 5 % of noise added, as that of
the next photo of a burst; and bursts, ten near-copies of each of a few photos. Three rules choose the ridge: plain GCV
(Golub, Heath and Wahba), GCV with at most half as many degrees of freedom as samples, and ours, which counts each
direction by its share of error besides. "exact, known" is what the heads do where the content hashes of the photos say
how many are copies; every other row takes all photos for distinct. What is scored is the validation photos, or with
--held_back training photos that were not drawn: the rule was chosen by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.embeddings import Photos, accuracy, read_photos, study_parser
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import CIFNetHead, Head, RidgeHead
from cifnet_pl.model.metrics import average_accuracy
from cifnet_pl.statistics import GCV_GRID, gcv_ridge
from cifnet_pl.statistics import ridge as gcv

FEW, SHARES, NOISE, BURST = ((12, 5), (12, 10), (12, 25)), (0.01, 0.05, 0.2, 1.0), 0.05, 9
KINDS = ("exact, known", "exact", "near", "bursts")
MANY = ((KINDS[0], 1.0), ("exact", 1.0), ("near", 0.2), ("near", 1.0), ("bursts", 0.2))
STREAM = (("near", 0.05), ("near", 0.2), ("near", 1.0), (KINDS[0], 1.0))
TASKS, PER_TASK, PER_CLASS, BUFFER, HELD_BACK, WIDTH = 5, 10, 25, 500, 50, 384


@contextmanager
def rule(name: str) -> Iterator[None]:
    """Choose ridges by "plain" GCV, with the "cap" alone, or by "ours"."""
    alike = patch.object(gcv, "shares_of_independent_error", lambda energy, *_: (torch.ones_like(energy), 1.0))
    free = patch.object(gcv, "MOST_FREEDOM", 1.0)
    if name == "ours":
        yield
    elif name == "cap":
        with alike:
            yield
    else:
        with alike, free:
            yield


RULES = ("plain", "cap", "ours")


def draw(photos: Photos, classes: list[int], per_class: int, held_back: bool, seed: int) -> Photos:
    """Photos of some classes, ``per_class`` of each to learn; to be scored on all others, or on validation photos."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    others: list[np.ndarray] = []
    for c in classes:
        rows = rng.permutation(np.flatnonzero(photos.y.numpy() == c))
        cut = min(per_class, len(rows) - HELD_BACK // 10 if held_back else len(rows))
        parts.append(rows[:cut])
        others.append(rows[cut : cut + HELD_BACK])
    rows, held = np.concatenate(parts), np.concatenate(others)
    if held_back:
        return Photos(photos.z[rows], photos.y[rows], photos.z[held], photos.y[held])
    val = torch.isin(photos.val_y, torch.tensor(classes))
    return Photos(photos.z[rows], photos.y[rows], photos.val_z[val], photos.val_y[val])


def with_copies(photos: Photos, kind: str, share: float, seed: int) -> Photos:
    """The photos, and copies of a ``share`` of them behind."""
    rng, n = np.random.default_rng(seed), len(photos.y)
    count = max(1, round(share * n)) if share else 0
    if kind == "bursts":
        rows = np.repeat(rng.choice(n, -(-count // BURST), replace=False), BURST)[:count]
    else:
        rows = rng.choice(n, count, replace=False)
    z = photos.z[rows].clone()
    if not kind.startswith("exact"):
        noise = torch.from_numpy(rng.standard_normal(z.shape, dtype=np.float32))
        z += NOISE * noise * (z.norm(dim=1) / noise.norm(dim=1))[:, None]
    return replace(photos, z=torch.cat([photos.z, z]), y=torch.cat([photos.y, photos.y[rows]]))


@dataclass
class Regression:
    """Ridge regression of :class:`RidgeHead` on photos, of which ``distinct`` are; solved at any ridge at no cost."""

    photos: Photos
    distinct: int

    def __post_init__(self) -> None:
        z, self.classes = self.photos.z.double(), self.photos.y.unique()
        target = 2 * (self.photos.y[:, None] == self.classes).double() - 1
        mean, self.target_mean = z.mean(0), target.mean(0)
        z, target = z - mean, target - self.target_mean
        wide = z.shape[0] < z.shape[1]  # the eigenvectors of the smaller product give those of the other
        values, vectors = torch.linalg.eigh(z @ z.T if wide else z.T @ z)
        used = values > 1e-12 * values[-1]
        self.values, vectors = values[used], vectors[:, used]
        basis = z.T @ vectors / self.values.sqrt() if wide else vectors
        self.rotated, self.test = basis.T @ (z.T @ target), (self.photos.val_z.double() - mean) @ basis
        self.energy, self.missing = target.square().sum(), z.shape[1] - len(self.values)

    def choose(self, name: str) -> float:
        """The ridge that a rule chooses."""
        values, energy = (
            torch.nn.functional.pad(vector, (self.missing, 0)) for vector in (self.values, self.rotated.square().sum(1))
        )
        with rule(name):
            return gcv_ridge(values, energy, self.energy, self.distinct).ridge

    def freedom(self, ridge: float) -> float:
        """df/n."""
        return (1 + (self.values / (self.values + ridge)).sum().item()) / self.distinct

    def accuracy(self, ridge: float) -> float:
        """In percent."""
        scores = self.test @ (self.rotated / (self.values + ridge)[:, None]) + self.target_mean
        return 100 * (self.classes[scores.argmax(1)] == self.photos.val_y).double().mean().item()

    def best(self) -> float:
        """The accuracy of the fixed ridge that is best on what is scored."""
        mean = self.values.sum().item() / (len(self.values) + self.missing)
        return max(self.accuracy(ridge * mean) for ridge in GCV_GRID[::2].tolist())


def joint(photos: Photos, settings: list[tuple[int, int, int]], held_back: bool, order: int) -> None:
    """A table: all classes learned at once; a row is a mean over ``settings``' draws."""
    print("| classes × photos | copies | " + " | ".join(f"{r}: ridge | df/n | %" for r in RULES) + " | best ridge % |")
    print("|---" * (3 * len(RULES) + 3) + "|")
    for classes, per_class, draws in settings:
        few = classes * per_class <= photos.z.shape[1]
        pairs = [(kind, share) for kind in KINDS for share in SHARES] if few else list(MANY)
        for kind, share in [("none", 0.0), *pairs]:
            results: list[list[float]] = []
            for seed in range(draws):
                chosen = np.random.default_rng(order + seed).permutation(photos.classes)[:classes].tolist()
                once = draw(photos, chosen, per_class, held_back, seed)
                whole = with_copies(once, kind, share, seed)
                fit = Regression(whole, len(once.y) if kind == KINDS[0] else len(whole.y))
                ridges = [fit.choose(name) for name in RULES]
                results.append([v for r in ridges for v in (np.log(r), fit.freedom(r), fit.accuracy(r))] + [fit.best()])
            *cells, best = np.mean(results, axis=0).tolist()
            shown = " | ".join(
                f"{np.exp(ridge):.2g} | {df:.2f} | {right:.1f}"
                for ridge, df, right in zip(cells[::3], cells[1::3], cells[2::3], strict=True)
            )
            copies = "none" if kind == "none" else f"{kind}, {100 * share:g} %"
            print(f"| {classes} × {per_class} | {copies} | {shown} | {best:.1f} |", flush=True)


def stream(photos: Photos, held_back: bool, order: int) -> None:
    """A table: tasks of ten classes, by plain GCV and by ours, on ``WIDTH`` principal directions, to take minutes."""
    basis = torch.pca_lowrank(photos.z, WIDTH)[2]
    photos = replace(photos, z=photos.z @ basis, val_z=photos.val_z @ basis)
    heads: dict[str, Callable[[int], Head]] = {"RidgeHead": RidgeHead, "CIFNetHead": lambda d: CIFNetHead(d, "gcv")}
    tasks = photos.tasks(order, PER_TASK)[:TASKS]
    once = draw(photos, list(chain.from_iterable(tasks)), PER_CLASS, held_back, order)
    print("| head | copies | plain: Ā | A_K | ours: Ā | A_K |")
    print("|---|---|---|---|---|---|")
    for title, make in heads.items():
        for kind, share in [("none", 0.0), *STREAM]:
            whole, cells = with_copies(once, kind, share, order), []
            for name in ("plain", "ours"):
                with rule(name):
                    values = trajectory(make(photos.z.shape[1]), whole, tasks, kind == KINDS[0])
                cells.append(f"{average_accuracy(values):.1f} | {values[-1]:.1f}")
            copies = "none" if kind == "none" else f"{kind}, {100 * share:g} %"
            print(f"| {title} | {copies} | {' | '.join(cells)} |", flush=True)


def trajectory(head: Head, photos: Photos, tasks: list[list[int]], known: bool) -> list[float]:
    """A_k after each task; where copies are ``known``, each photo stands twice, and the head is told."""
    values, buffer = [], CalibrationBuffer(BUFFER)
    for classes in tasks:
        rows = torch.isin(photos.y, torch.tensor(classes)).nonzero().flatten()
        z, y = photos.z[rows], photos.y[rows]
        head.begin_task(classes)
        head.observe(z, y)
        head.note_copies(len(y) // 2 if known else 0)
        buffer.add(z, y, rows)
        buffer.show_to(head)
        buffer.commit()
        head.solve()
        values.append(accuracy(head, photos))
    return values


def main() -> None:
    """Print the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("--held_back", action="store_true", help="score training photos that were not drawn")
    parser.add_argument("--order", type=int, default=1, help="seed of classes and of their order")
    parser.add_argument("--draws", type=int, default=3, help="draws of 12 classes that a row is a mean over")
    args = parser.parse_args()
    photos = read_photos(args.root, args.image_size, args.cache_folder)
    largest = int(torch.bincount(photos.y).max())
    few = [(classes, per_class, args.draws) for classes, per_class in FEW]
    joint(photos, [*few, (photos.classes, largest, 1)], args.held_back, args.order)
    print()
    stream(photos, args.held_back, args.order)


if __name__ == "__main__":
    main()
