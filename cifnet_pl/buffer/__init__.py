"""The calibration buffer: a compact, order-independent sample of past embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.growing_tensors import GrowingModule
from cifnet_pl.utilities.memory import one_thread

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The step between the numbers that SplitMix64 mixes: 2⁶⁴ divided by the golden ratio."""


def split_mix(x: np.ndarray) -> np.ndarray:
    """Mix the bits of numbers, (…) uint64, by SplitMix64's finaliser; the same on every machine."""
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(x ^ (x >> np.uint64(31)))


def mix_keys(keys: Tensor, seed: int) -> Tensor:
    """Hash sample keys with a seed, uniformly.

    Args:
        keys: (n,) int64.
        seed: 0 or more.

    Returns:
        (n,) int64.
    """
    with np.errstate(over="ignore"):
        x = keys.cpu().numpy().astype(np.uint64) + np.uint64(seed + 1) * GOLDEN
    return torch.from_numpy(split_mix(x).astype(np.int64)).to(keys.device)


def select_random(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` samples with the smallest seeded hash, in that order (bottom-k
    sampling).

    Which samples are kept depends on their keys alone, not on batch order, batch size or process,
    and the sample of a union is the bottom-k of the samples of its parts.

    Example:
        >>> keys = torch.arange(100)
        >>> picks = select_random(torch.zeros(100, 1), keys, seed=0, quota=3)
        >>> halves = torch.cat([select_random(torch.zeros(50, 1), half, 0, 3) + half[0] for half in keys.split(50)])
        >>> set(picks.tolist()) <= set(halves.tolist())
        True
    """
    return torch.argsort(mix_keys(keys, seed), stable=True)[:quota]


def select_centroid(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` embeddings nearest to the mean of the class, nearest first."""
    z = z.double()
    return torch.argsort((z - z.mean(dim=0)).square().sum(dim=1), stable=True)[:quota]


def select_herding(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select by greedy mean matching (iCaRL's herding): each pick brings the picks' mean closest to
    the class mean.

    As in iCaRL the embeddings are L2-normalised first. The first k picks are herding's choice of k.
    """
    z = torch.nn.functional.normalize(z.double(), dim=1)
    mean = z.mean(dim=0)
    total = torch.zeros_like(z[0])
    norms = z.square().sum(dim=1)
    taken = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    picks: list[Tensor] = []
    for k in range(1, min(quota, len(z)) + 1):
        # ‖(total + z_i)/k − mean‖² without the terms that are common to all i.
        wanted = k * mean - total
        gap = (norms - 2 * (z @ wanted)).masked_fill(taken, torch.inf)
        picks.append(gap.argmin())
        taken[picks[-1]] = True
        total += z[picks[-1]]
    return torch.stack(picks)


def select_kmeans(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the member nearest to the centre of each of ``quota`` k-means clusters; large clusters
    come first.

    With fewer distinct embeddings than ``quota`` some clusters are empty: further members nearest
    to a centre follow.
    """
    from sklearn.cluster import KMeans

    if quota >= len(z):
        return select_centroid(z, keys, seed, quota)
    points = z.double().cpu()
    clusters = min(quota, len(torch.unique(points, dim=0)))
    with one_thread:
        model = KMeans(n_clusters=clusters, n_init=1, random_state=seed).fit(points.numpy())
    label = torch.from_numpy(model.labels_).long()
    centres = torch.from_numpy(model.cluster_centers_)
    size = torch.bincount(label, minlength=clusters)
    gap = (points - centres[label]).square().sum(dim=1)
    order = torch.from_numpy(np.lexsort((gap, label, -size[label])))
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = label[order][1:] != label[order][:-1]
    others = order[~first]
    rest = others[torch.argsort(gap[others], stable=True)]
    return torch.cat([order[first], rest])[:quota].to(z.device)


def unique_by_key(key: Tensor) -> tuple[Tensor, Tensor]:
    """Sort samples by their keys, each key once.

    Args:
        key: (n,) int64.

    Returns:
        (m,) int64 keys, rising, and (m,) int64 the first row of each.
    """
    keys, rows = (
        torch.from_numpy(x).to(key.device) for x in np.unique(key.cpu().numpy(), return_index=True)
    )
    return keys, rows


def whole_groups(hashes: Tensor, groups: Tensor, quota: int) -> Tensor:
    """Select whole groups, in the order of the smallest hash of each, as far as they fit.

    Args:
        hashes: (n,) int64 of the samples.
        groups: (n,) int64 number of each one's group.
        quota: number of samples at most; if no group fits, so many of the first are selected.

    Example:
        >>> whole_groups(torch.tensor([5, 1, 2, 4]), torch.tensor([7, 8, 8, 7]), 3).tolist()
        [1, 2]
    """
    order = torch.argsort(hashes)
    members = {
        group: order[groups[order] == group] for group in dict.fromkeys(groups[order].tolist())
    }
    chosen = list[Tensor]()
    left = quota
    for rows in members.values():
        if len(rows) <= left:
            chosen.append(rows)
            left -= len(rows)
    if chosen:
        return torch.cat(chosen)
    return next(iter(members.values()))[:quota]


Strategy = Literal["random", "herding", "kmeans", "centroid"]
"""Names of the strategies; the function of each is called ``select_<name>``."""

Select = Callable[[Tensor, Tensor, int, int], Tensor]
STRATEGIES: dict[str, Select] = {name: globals()[f"select_{name}"] for name in get_args(Strategy)}
"""Name → function of this module."""

STREAMING = {"random"}
"""Strategies whose selection from a union is the selection from its selections, so that they may
prune early.
"""


class CalibrationBuffer(GrowingModule):
    """Embeddings of past classes, at most ``capacity`` in all or ``per_class`` of each (Calibration
    Buffer).

    With a total capacity each class keeps ``⌊capacity / classes seen⌋``: early tasks keep more.
    ``add`` collects candidates of the current task; ``commit`` selects among them and shrinks the
    older classes.

    Buffers:
        z: (n, d) stored embeddings, in the dtype they came in; y: (n,) int64 labels; key: (n,)
            int64. Grouped by class in the order of commit, best first within a class.

    Attributes:
        offered: number of samples offered since the last commit, in all processes.

    Args:
        capacity: total number of embeddings; ignored if ``per_class`` is given.
        per_class: number of embeddings of each class, or None.
        strategy: one of ``STRATEGIES``.
        seed: of the selection; on the command line, ``--seed_everything``.
        oversample: whether ``oversampling`` gives eq:oversampling or all ones (the paper's
            ablation).
    """

    def __init__(
        self,
        capacity: int = 2000,
        per_class: int | None = None,
        strategy: Strategy = "random",
        seed: int = 0,
        oversample: bool = True,
    ):
        super().__init__()
        check_choice("buffer strategy", strategy, Strategy)
        if per_class is None:
            least = capacity
        else:
            least = min(capacity, per_class)
        check_that(least >= 1, "buffer capacity", least, "at least 1")
        check_that(seed >= 0, "buffer seed", seed, "at least 0")
        self.capacity = capacity
        self.per_class = per_class
        self.strategy = strategy
        self.seed = seed
        self.oversample = oversample
        self.z: Tensor = nn.Buffer(torch.zeros(0, 0))
        self.y: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.key: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self._pending: list[tuple[Tensor, Tensor, Tensor]] = []
        self._prune_at = 4 * capacity
        self.offered = 0

    def _before_load(self, state: Mapping[str, Any]) -> None:
        z = state.get("z")
        if (
            isinstance(z, Tensor) and z.is_floating_point()
        ):  # embeddings keep the dtype that they came in
            self.z = self.z.to(z.dtype)

    @property
    def classes(self) -> list[int]:
        """Labels of the stored classes, in the order they were committed."""
        return list(dict.fromkeys(self.y.tolist()))

    def settings(self) -> dict[str, int | str | bool | None]:
        """Return the constructor arguments that the stored embeddings depend on."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def quota(self, classes: int) -> int:
        """Return how many embeddings are kept of each class.

        Args:
            classes: number of classes that are known.

        Raises:
            UsageError: the capacity is smaller than the number of classes.
        """
        if self.per_class is not None:
            quota = self.per_class
        else:
            quota = self.capacity // classes
        if quota < 1:
            raise UsageError(
                f"a buffer of {self.capacity} cannot hold {classes} classes: use a capacity of"
                f" {classes}"
            )
        return quota

    @torch.no_grad()
    def add(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Offer samples of the current task.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels.
            key: (n,) int64 identity of each sample, such as the hash of its content; repeats are
                kept once.
        """
        if not len(z) == len(y) == len(key):
            raise UsageError(f"buffer got {len(z)} embeddings, {len(y)} labels and {len(key)} keys")
        self.offered += len(z)
        if len(z):
            self._pending.append((z.detach().clone(), y.clone(), key.clone()))
            if (
                self.strategy in STREAMING
                and sum(len(z_batch) for z_batch, *_ in self._pending) > self._prune_at
            ):
                self._prune_pending()

    def candidates(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return embeddings, labels and keys of the samples to select among, stored and offered,
        class after class.

        Returns:
            Within a class by key, each once; None where all fit, where the strategy does not draw
            at random, and where more than four times the capacity were offered: only a part of
            these is in memory.
        """
        if self.strategy != "random" or not 0 < self.offered <= 4 * self.capacity:
            return None
        offered = self.pending()
        if len(self.y):
            before = (self.z.to(offered[0]), self.y, self.key)
        else:
            before = (offered[0][:0], offered[1][:0], offered[2][:0])
        z, y, key = (torch.cat(pair) for pair in zip(before, offered, strict=True))
        of_class = [(y == label).nonzero().flatten() for label in torch.unique(y)]
        parts = [rows[unique_by_key(key[rows])[1]] for rows in of_class]
        if max(map(len, parts)) <= self.quota(len(parts)):
            return None
        rows = torch.cat(parts)
        return z[rows], y[rows], key[rows]

    @torch.no_grad()
    def commit_groups(self, candidates: tuple[Tensor, Tensor, Tensor], groups: Tensor) -> None:
        """Select whole groups among samples, as far as they fit into the quota of their class.

        Args:
            candidates: what :meth:`candidates` gives.
            groups: (n,) int64 of these, equal for samples of a class that are kept or left
                together.
        """
        z, y, key = candidates
        classes = list(dict.fromkeys([*self.classes, *y.tolist()]))
        quota = self.quota(len(classes))
        hashes = mix_keys(key, self.seed)
        parts = []
        for label in classes:
            rows = (y == label).nonzero().flatten()
            parts.append(rows[whole_groups(hashes[rows], groups[rows], quota)])
        chosen = torch.cat(parts)
        self.z = z[chosen]
        self.y = y[chosen]
        self.key = key[chosen]
        self.discard_pending()

    @torch.no_grad()
    def commit(self) -> None:
        """Select among the samples offered and shrink every class to its quota."""
        self.offered = 0
        z, y, key = self.pending()
        old = self.classes
        new = [label for label in torch.unique(y).tolist() if label not in set(old)]
        quota = self.quota(max(1, len(old) + len(new)))
        self._pending = []
        kept = [self._select(label, z, y, key, quota) for label in old + new]
        if kept:
            self.z, self.y, self.key = (torch.cat(parts) for parts in zip(*kept, strict=True))

    def items(self) -> tuple[Tensor, Tensor]:
        """Return the stored embeddings (n, d) and labels (n,), of past tasks only."""
        return self.z, self.y

    def oversampling(self, n_max: int) -> Tensor:
        """Compute the weight of each stored sample: ``r_c = ⌊n_max / n'_c⌋``, at least 1
        (eq:oversampling).

        Args:
            n_max: number of samples of the largest class of the current task.

        Returns:
            (n,) float64; all ones without ``oversample``.

        Example:
            >>> buffer = CalibrationBuffer(capacity=4)
            >>> buffer.add(torch.randn(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]), torch.arange(6))
            >>> buffer.commit()  # two of each class
            >>> buffer.oversampling(5).tolist()
            [2.0, 2.0, 2.0, 2.0]
        """
        if not self.oversample:
            return torch.ones(len(self.y), dtype=torch.float64, device=self.y.device)
        _, inverse, counts = torch.unique(self.y, return_inverse=True, return_counts=True)
        return torch.div(n_max, counts, rounding_mode="floor").clamp_min(1).double()[inverse]

    @torch.no_grad()
    def remove_classes(self, labels: list[int]) -> None:
        """Drop all embeddings of some classes.

        Args:
            labels: of the classes; those that are not stored are ignored.
        """
        keep = ~torch.isin(self.y, self.y.new_tensor(labels))
        self.z = self.z[keep]
        self.y = self.y[keep]
        self.key = self.key[keep]

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes of the stored embeddings.

        Args:
            labels: old label → new one, of every stored class.
        """
        self.y = self.y.new_tensor([labels[label] for label in self.y.tolist()])

    def state_elements(self) -> int:
        """Return how many numbers are stored."""
        return self.z.numel()

    def pending(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the samples offered since the last commit: embeddings, labels, keys."""
        if not self._pending:
            return self.z[:0], self.y[:0], self.key[:0]
        z, y, key = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        return z, y, key

    def replace_pending(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Replace the samples offered since the last commit, for example by those of all processes.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels.
            key: (n,) int64 identity of each sample.
        """
        self._pending = [(z, y, key)]

    def discard_pending(self) -> None:
        """Forget the samples offered since the last commit."""
        self._pending = []
        self.offered = 0

    def _prune_pending(self) -> None:
        # No class can keep more than its share among the classes that are known already or offered
        # now.
        z, y, key = self.pending()
        present = torch.unique(y).tolist()
        quota = self.quota(len(set(present) | set(self.classes)))
        kept = [self._choose(z[y == c], y[y == c], key[y == c], quota) for c in present]
        z, y, key = (torch.cat(parts) for parts in zip(*kept, strict=True))
        self.replace_pending(z, y, key)
        self._prune_at = max(4 * self.capacity, 2 * len(z))

    def _select(
        self, label: int, z: Tensor, y: Tensor, key: Tensor, quota: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        stored = self.y == label
        offered = y == label
        if not offered.any():  # already in order of preference
            rows = stored.nonzero().flatten()[:quota]
            return self.z[rows], self.y[rows], self.key[rows]
        if len(self.y):
            before = (self.z[stored].to(z), self.y[stored], self.key[stored])
        else:
            before = (z[:0], y[:0], key[:0])
        parts = [
            torch.cat(pair)
            for pair in zip(before, (z[offered], y[offered], key[offered]), strict=True)
        ]
        return self._choose(parts[0], parts[1], parts[2], quota)

    def _choose(
        self, z: Tensor, y: Tensor, key: Tensor, quota: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Sorted by key first, each key once: the result cannot depend on the order of arrival.
        sorted_key, rows = unique_by_key(key)
        best = STRATEGIES[self.strategy](z[rows], sorted_key, self.seed, quota)
        return z[rows][best], y[rows][best], sorted_key[best]
