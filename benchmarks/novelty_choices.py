"""``python -m benchmarks.novelty_choices ROOT ROOT``: the rule for novelty and for sets of answers, on training photos.

The first table has AUROC / FPR95 in percent of distances for each transform, length of the query, ridge and share of
the overall distance that is subtracted. Known are four fifths of the training photos of half of the classes, tested
on the last fifth, and unknown those of the other half; or known are all classes, and unknown those of the other set.

The second has the size of sets of answers and their coverage, from leave-one-out probabilities: limits from one half of
the training photos, measured on the other half. No validation photo has a say.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.embeddings import Photos, read_photos
from benchmarks.novelty import show
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.confidence import fit_temperature
from cifnet_pl.heads.ridge import TRANSFORMS
from cifnet_pl.model.open_set import detection

SEEDS, MOST = (0, 1), 2500
SHARES = (0.0, 0.5, 1.0)
PENALTIES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)
Rule = tuple[str, str, str, float]


def solved(x: Tensor, y: Tensor, classes: int) -> RidgeHead:
    """The exact head on all rows at once."""
    head = RidgeHead(x.shape[1])
    head.begin_task(range(classes))
    head.observe(x, y)
    head.solve()
    return head


def distance(scatter: Tensor, ridge: float, means: Tensor, q: Tensor) -> Tensor:
    """(n,) squared distances of q (n, d) to the nearest of the means (C, d) under a scatter (d, d)."""
    factor = torch.linalg.cholesky(scatter + ridge * torch.eye(len(scatter), dtype=torch.float64))
    white, centres = (torch.linalg.solve_triangular(factor, rows.T, upper=False).T for rows in (q, means))
    return torch.cdist(white, centres).square().min(dim=1).values


def rules(z: Tensor, labels: Tensor, queries: tuple[Tensor, Tensor]) -> Iterator[tuple[Rule, tuple[float, float]]]:
    """What each rule makes of known and unknown queries, where rows z (n, d) of ``labels`` (n,) were learned."""
    y = torch.unique(labels, return_inverse=True)[1]
    classes = int(y.max()) + 1
    for transform in ("none", "l2", "sqrt_l2"):
        x = TRANSFORMS[transform](z.double())
        counts = torch.bincount(y, minlength=classes).double()
        means = torch.zeros(classes, x.shape[1], dtype=torch.float64).index_add_(0, y, x) / counts[:, None]
        gram, mean = x.T @ x, x.mean(dim=0)
        within, total = gram - (means * counts[:, None]).T @ means, gram - len(x) * torch.outer(mean, mean)
        gcv, eigenvalue = float(solved(x, y, classes).ridge_used), float(within.diagonal().mean())
        ridges = {f"{k} × GCV": k * gcv for k in (1, 3, 10, 30)}
        ridges |= {f"{k:g} × mean": k * eigenvalue for k in (0.1, 0.3, 1, 3)}
        for length in ("own", "stretched") if transform == "none" else ("own",):
            q = [TRANSFORMS[transform](query.double()) for query in queries]
            if length == "stretched":
                q = [torch.nn.functional.normalize(query, dim=1) * (gram.trace() / len(x)).sqrt() for query in q]
            for name, ridge in ridges.items():
                near = [distance(within, ridge, means, query) for query in q]
                overall = [distance(total, ridge, mean[None], query) for query in q]
                for share in SHARES:
                    known, foreign = (a - share * b for a, b in zip(near, overall, strict=True))
                    yield (transform, length, name, share), detection(known, foreign)


def fifths(photos: Photos, classes: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of training photos of some classes: four fifths, and one."""
    rows = torch.isin(photos.y, classes).nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=draw)]
    return rows[len(rows) // 5 :], rows[: len(rows) // 5][:MOST]


def compared(sets: dict[str, Photos]) -> dict[Rule, Tensor]:
    """Each rule's (2,) mean over all comparisons and seeds."""
    scores: dict[Rule, list[tuple[float, float]]] = defaultdict(list)
    for seed in SEEDS:
        draw = torch.Generator().manual_seed(seed)
        for name, photos in sets.items():
            known, unknown = torch.randperm(photos.classes, generator=draw).tensor_split([photos.classes // 2])
            learned, asked = fifths(photos, known, draw)
            rows = torch.isin(photos.y, unknown).nonzero().flatten()
            others = [photos.z[rows[torch.randperm(len(rows), generator=draw)[:MOST]]]]
            parts = [(learned, asked)]
            for other in (theirs for key, theirs in sets.items() if key != name):
                parts.append(fifths(photos, torch.arange(photos.classes), draw))
                others.append(other.z[torch.randperm(len(other.z), generator=draw)[:MOST]])
            for (kept, inside), foreign in zip(parts, others, strict=True):
                for rule, result in rules(photos.z[kept], photos.y[kept], (photos.z[inside], foreign)):
                    scores[rule].append(result)
    return {rule: torch.tensor(results).mean(dim=0) for rule, results in scores.items()}


def set_sizes(photos: Photos) -> Iterator[list[str]]:
    """A row for each way to make sets of answers and each coverage asked for."""
    scores = solved(photos.z, photos.y, photos.classes).leave_one_out(photos.z, photos.y)
    p = torch.softmax(scores / fit_temperature(scores[::7], photos.y[::7]), dim=1)
    ordered, order = p.sort(dim=1, descending=True)
    right, rank = order == photos.y[:, None], torch.arange(photos.classes, dtype=torch.float64)
    before = ordered.cumsum(dim=1) - ordered
    ways = {f"penalty {k:g}": before + k * rank for k in PENALTIES}
    ways["probability alone"] = (1 - ordered).index_fill(1, torch.tensor([0]), 0.0)
    half = torch.rand(len(photos.y), generator=torch.Generator().manual_seed(0)) < 0.5
    for coverage in (0.9, 0.95, 0.99):
        for name, way in ways.items():
            inside = way[~half] <= torch.quantile(way[right][half], coverage)
            hit = 100 * (inside & right[~half]).any(dim=1).double().mean()
            yield [f"{100 * coverage:g} %", name, f"{inside.sum(dim=1).double().mean():.2f}", f"{hit:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", type=Path, nargs="+", metavar="ROOT")
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--cache_folder", type=Path, default=Path("~/.cache/cifnet_pl"))
    arguments = parser.parse_args()
    sets = {root.name: read_photos(root, arguments.image_size, arguments.cache_folder) for root in arguments.roots}
    show(["transform", "query", "ridge", "overall", "AUROC / FPR95"])
    show(["---"] * 5)
    for (transform, length, ridge, share), (auroc, wrong) in compared(sets).items():
        show([transform, length, ridge, f"{share:g}", f"{auroc:.2f} / {wrong:.2f}"])
    print()
    show(["set", "asked", "way", "classes", "covered"])
    show(["---"] * 5)
    for name, photos in sets.items():
        for row in set_sizes(photos):
            show([name, *row])


if __name__ == "__main__":
    main()
