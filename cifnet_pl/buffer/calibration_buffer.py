"""The calibration buffer: a selection of the embeddings of past classes, and how it is selected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows, renamed
from cifnet_pl.utilities.processes import of_all_processes

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64: 2⁶⁴ divided by the golden ratio."""

SPLIT_MIX_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shift and factor of the two steps of SplitMix64's finaliser."""


def split_mix(x: np.ndarray) -> np.ndarray:
    """Mix the bits of (n, …) uint64 by SplitMix64's finaliser; the same on every machine."""
    for shift, factor in SPLIT_MIX_STEPS:
        shifted = x >> np.uint64(shift)
        mixed = x ^ shifted
        x = mixed * np.uint64(factor)
    shifted = x >> np.uint64(31)
    return np.asarray(x ^ shifted)


def mix_keys(keys: Tensor, seed: int) -> Tensor:
    """Hash sample keys with a seed, uniformly.

    Args:
        keys: (n,) int64.
        seed: 0 or more.

    Returns:
        (n,) int64.
    """
    offset = GOLDEN * np.array([seed + 1], dtype=np.uint64)
    values = keys.cpu().numpy().astype(np.uint64)
    hashes = split_mix(values + offset).astype(np.int64)
    return torch.from_numpy(hashes).to(keys.device)


def select_random(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` samples with the smallest seeded hash, in that order (bottom-k).

    The selection depends on the keys alone, not on batch order, batch size or process. The
    selection from a union is the bottom-k of the selections from its parts.

    Example:
        >>> keys = torch.arange(100)
        >>> picks = select_random(torch.zeros(100, 1), keys, seed=0, quota=3)
        >>> parts = [half[select_random(torch.zeros(50, 1), half, 0, 3)] for half in keys.split(50)]
        >>> set(picks.tolist()) <= set(torch.cat(parts).tolist())
        True
    """
    hashes = mix_keys(keys, seed)
    return torch.argsort(hashes, stable=True)[:quota]


def select_centroid(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` embeddings nearest to the mean of the class, nearest first.

    Returns:
        (min(quota, n),) int64 positions of the samples, best first.
    """
    z = z.double()
    centred = z - z.mean(dim=0)
    squared_distance = centred.square().sum(dim=1)
    return torch.argsort(squared_distance, stable=True)[:quota]


def select_herding(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select by herding (iCaRL): each pick brings the mean of the picks closest to the class mean.

    As in iCaRL the embeddings are L2-normalised first. The first k picks are herding's choice of k.

    Returns:
        (min(quota, n),) int64 positions of the samples, best first.
    """
    doubles = z.double()
    z = normalize(doubles, dim=1)
    mean = z.mean(dim=0)
    norms = z.square().sum(dim=1)
    total = torch.zeros_like(mean)
    picked = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    picks = []
    count = min(quota, len(z))
    for k in range(1, count + 1):
        # ‖(total + z_i)/k − mean‖² without the terms that are common to all i.
        target = k * mean - total
        distance = norms - 2 * (z @ target)
        remaining = distance.masked_fill(picked, torch.inf)
        nearest = remaining.argmin()
        picks.append(nearest)
        picked[nearest] = True
        total += z[nearest]
    return torch.stack(picks)


def select_kmeans(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the member nearest to the centre of each of ``quota`` k-means clusters.

    Members of large clusters come first. Where there are fewer clusters, as of equal embeddings,
    further members follow, those nearest to a centre first.

    Returns:
        (min(quota, n),) int64 positions of the samples, best first.
    """
    from sklearn.cluster import KMeans

    if quota >= len(z):
        return select_centroid(z, keys, seed, quota)
    points = z.double().cpu().numpy()
    model = KMeans(n_clusters=quota, n_init=1, random_state=seed)
    label = model.fit(points).labels_
    size = np.bincount(label)[label]
    offsets = points - model.cluster_centers_[label]
    distance = np.square(offsets).sum(axis=1)
    order = np.lexsort((distance, label, -size))
    is_first = np.diff(label[order], prepend=-1) != 0
    nearest = order[is_first]
    rest = order[~is_first]
    by_distance = np.argsort(distance[rest], kind="stable")
    ranked = np.concatenate([nearest, rest[by_distance]])
    return torch.from_numpy(ranked[:quota]).to(z.device)


def group_positions(groups: Tensor) -> Tensor:
    """Return the position of each sample's group among those of its class.

    The samples are gone through in their order, and each brings its whole group, whose position is
    that of its middle. So groups are drawn in proportion to their size, and a class has about as
    many samples up to a position as that says.

    Args:
        groups: (n,) int64 group of each sample of one class, the preferred samples first.

    Returns:
        (n,) float64, from ½ to n − ½.

    Example:
        >>> group_positions(torch.tensor([7, 5, 5, 5, 7])).tolist()
        [1.0, 3.5, 3.5, 3.5, 1.0]
    """
    number, _ = pd.factorize(groups.cpu().numpy())  # in order of appearance
    sizes = np.bincount(number)
    middle = sizes.cumsum() - sizes / 2
    return torch.from_numpy(middle[number])


Strategy = Literal["random", "herding", "kmeans", "centroid"]
"""Names of the selection strategies."""

Select = Callable[[Tensor, Tensor, int, int], Tensor]
"""Function from embeddings (n, d), keys (n,), seed and quota to positions, best first."""

STRATEGIES: dict[str, Select] = {
    "random": select_random,
    "herding": select_herding,
    "kmeans": select_kmeans,
    "centroid": select_centroid,
}
"""Name → selection strategy."""

STREAMING = {"random"}
"""Strategies that may prune early: selecting from a union equals selecting from its selections."""

MAX_CANDIDATES_RATIO = 4
"""Most candidates that are in memory, as a multiple of the capacity.

With the random strategy the rest are dropped, but for some classes of which all are kept; the
others need all until the task ends."""


class BufferSamples(NamedTuple):
    """Samples in the buffer, or candidates of the current task.

    Attributes:
        z: (n, d) float embeddings.
        y: (n,) int64 labels.
        key: (n,) int64 identity of each sample, such as the hash of its content.
        group: (n,) int64, equal for samples of one class that are not independent, of which all are
            in the buffer; negative where that is not known. ``-2 - g`` is group g of a candidate
            that the user gave.
    """

    z: Tensor
    y: Tensor
    key: Tensor
    group: Tensor

    def at(self, rows: Tensor | np.ndarray | slice) -> BufferSamples:
        """Return the samples at some rows, a mask or positions; arrays go to any device."""
        return BufferSamples(*(column[rows] for column in self))

    def to(self, device: torch.device) -> BufferSamples:
        """Return the samples on a device."""
        return BufferSamples(*(column.to(device) for column in self))


def buffer_samples(
    z: Tensor,
    y: Tensor,
    key: Tensor,
    group: Tensor | None = None,
) -> BufferSamples:
    """Return samples as the buffer holds them.

    Args:
        z, y, key, group: as in :class:`BufferSamples`; None where no group is known.
    """
    if group is None:
        group = torch.full_like(key, -1)
    return BufferSamples(z, y, key, group.to(key.device))


def given_groups(groups: np.ndarray | None, rows: Tensor) -> Tensor | None:
    """Return the groups that the user gave of some samples, as :class:`BufferSamples` have them.

    Args:
        groups: int64 of all samples of a set; None without any.
        rows: (n,) positions in the set.

    Returns:
        (n,) int64; None without groups.
    """
    if groups is None:
        return None
    own = torch.from_numpy(groups[rows.cpu().numpy()])
    return -2 - (own & 2**62 - 1)


def concatenate(parts: Sequence[BufferSamples]) -> BufferSamples:
    """Join samples; embeddings get the dtype of the last part that has any."""
    parts = [part for part in parts if len(part.y)] or parts[-1:]
    last = parts[-1].z
    alike = [part._replace(z=part.z.to(last)) for part in parts]
    return BufferSamples(*map(torch.cat, zip(*alike, strict=True)))


def first_drawn(samples: BufferSamples, seed: int, quota: int) -> BufferSamples:
    """Return the samples of each class that :func:`select_random` selects, class after class.

    Args:
        samples: of several classes; of equal ones the first stays.
        seed: of the selection.
        quota: number of samples of each class.
    """
    hashes = mix_keys(samples.key, seed).cpu()
    drawn = pd.DataFrame({"label": samples.y.cpu(), "hash": hashes})
    drawn = drawn.drop_duplicates().sort_values(["label", "hash"])
    rows = drawn.groupby("label").head(quota).index.to_numpy(copy=True)
    return samples.at(rows)


class CalibrationBuffer(GrowingModule):
    """Embeddings of past classes, at most ``capacity`` in all or ``per_class`` of each.

    With a total capacity each class keeps ``⌊capacity / classes⌋`` samples, with the number of
    classes seen so far, so the quota shrinks with every task.

    ``add`` collects candidates of the current task. ``commit`` selects among them and shrinks the
    older classes. Images that are not independent are selected in whole groups: what is left out
    must leave the sums completely.

    Buffers:
        z: (n, d) embeddings, in the dtype they came in.
        y: (n,) int64 labels.
        key: (n,) int64 identity of each sample.
        group: (n,) int64 group of each, negative where it is not known (:class:`BufferSamples`).

    The samples are grouped by class in the order of commit, best first within a class.

    Args:
        capacity: total number of embeddings. With ``per_class`` it bounds only the number of
            candidates in memory (``MAX_CANDIDATES_RATIO``).
        per_class: number of embeddings of each class, or None.
        strategy: one of ``STRATEGIES``.
        seed: of the selection; on the command line, ``--seed_everything`` unless it is given.
        oversample: whether ``oversampling`` gives eq:oversampling or all ones (ablation of the
            paper).
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
        check_that(capacity >= 1, "buffer capacity", capacity, "at least 1")
        if per_class is not None:
            check_that(per_class >= 1, "buffer capacity", per_class, "at least 1")
        check_that(seed >= 0, "buffer seed", seed, "at least 0")
        self.capacity = capacity
        self.per_class = per_class
        self.strategy = strategy
        self.seed = seed
        self.oversample = oversample
        self.z = no_rows(torch.float32, 0)
        self.y = no_rows(torch.int64)
        self.key = no_rows(torch.int64)
        self.group = no_rows(torch.int64)
        self._pending: list[BufferSamples] = []
        self._prune_at = MAX_CANDIDATES_RATIO * capacity

    def _before_load(self, state: Mapping[str, Any]) -> None:
        z = state.get("z")
        # Embeddings keep the dtype that they came in.
        if isinstance(z, Tensor) and z.is_floating_point():
            self.z = self.z.to(z.dtype)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {
            name: getattr(self, name)
            for name in inspect.signature(type(self)).parameters
        }

    def quota(self, classes: int) -> int:
        """Return how many embeddings are kept of each class.

        Args:
            classes: number of classes that share the buffer, at least 1.

        Raises:
            UsageError: without ``per_class``, the capacity is smaller than the number of classes.
        """
        if self.per_class is not None:
            return self.per_class
        if self.capacity < classes:
            raise UsageError(
                f"a buffer of {self.capacity} cannot hold {classes} classes: use a capacity of"
                f" {classes}"
            )
        return self.capacity // classes

    def add(
        self,
        z: Tensor,
        y: Tensor,
        key: Tensor,
        group: Tensor | None = None,
    ) -> None:
        """Offer samples of the current task.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels.
            key: (n,) int64 identity of each sample, such as the hash of its content; repeats are
                dropped when samples are selected.
            group: (n,) int64 (:class:`BufferSamples`); None where no group is known.
        """
        if not len(z) == len(y) == len(key):
            raise UsageError(
                f"buffer got {len(z)} embeddings, {len(y)} labels and {len(key)} keys"
            )
        given = buffer_samples(z.detach(), y, key, group)
        self._pending.append(BufferSamples(*(column.clone() for column in given)))
        in_memory = sum(len(batch.y) for batch in self._pending)
        if self.strategy in STREAMING and in_memory > self._prune_at:
            self._prune_pending()

    def at_hand(self) -> BufferSamples:
        """Return stored samples and candidates, each image of a class once, class after class."""
        samples = concatenate([self.samples, self.pending()])
        numbers = torch.stack([samples.y, samples.key, samples.group], dim=1)
        table = pd.DataFrame(numbers.cpu(), columns=["y", "key", "group"])
        # Of an image with several groups, the largest is taken: one that was selected before.
        in_order = table.sort_values([*table])
        distinct = in_order.drop_duplicates(["y", "key"], keep="last")
        return samples.at(distinct.index.to_numpy(copy=True))

    def commit_groups(self, samples: BufferSamples) -> None:
        """Select whole groups of the samples at hand, of all classes alike, and none in part.

        The groups with the smallest positions are kept (:func:`group_positions`). To select from
        what was selected before gives the same as to select from all.

        Args:
            samples: as :meth:`at_hand` returns them, in their groups.
        """
        classes = self._classes_with(samples)
        limit = self.capacity
        if self.per_class is not None:
            limit = self.per_class * len(classes)
        select = STRATEGIES[self.strategy]
        parts = []
        positions = []
        for label in classes:
            whole = samples.at((samples.y == label) & (samples.group >= 0))
            if not len(whole.y):
                continue
            best_first = select(whole.z, whole.key, self.seed, len(whole.y))
            preferred = whole.at(best_first)
            parts.append(preferred)
            positions.append(group_positions(preferred.group))
        candidates = concatenate(parts)
        groups = candidates.group.cpu().numpy()
        order = np.lexsort((groups, torch.cat(positions).numpy()))
        first = np.sort(order[:limit])
        # A group that is kept in part goes.
        is_whole = ~np.isin(groups[first], groups[order[limit : limit + 1]])
        self.discard_pending()
        self.z, self.y, self.key, self.group = candidates.at(first[is_whole])

    def commit(self) -> None:
        """Select among the candidates, and shrink every class to its quota.

        An older class without new candidates keeps its first samples.
        """
        pending = self.pending()
        stored = self.samples
        classes = self._classes_with(pending)
        if not classes:
            return
        quota = self.quota(len(classes))
        self.discard_pending()
        select = STRATEGIES[self.strategy]
        parts = []
        for label in classes:
            old = stored.at(stored.y == label)  # in order of preference already
            new = pending.at(pending.y == label)
            if not len(new.y):
                parts.append(old.at(slice(quota)))
                continue
            both = concatenate([old, new])
            # In the order of their keys, so that the order of arrival has no effect.
            first = np.unique(both.key.cpu().numpy(), return_index=True)[1]
            distinct = both.at(first)
            best = select(distinct.z, distinct.key, self.seed, quota)
            parts.append(distinct.at(best))
        self.z, self.y, self.key, self.group = concatenate(parts)

    def _classes_with(self, others: BufferSamples) -> list[int]:
        """Return the labels of the classes in the buffer, then those of others, ascending."""
        labels = [*self.y.tolist(), *torch.unique(others.y).tolist()]
        return list(dict.fromkeys(labels))

    @property
    def samples(self) -> BufferSamples:
        """The samples in the buffer."""
        return BufferSamples(self.z, self.y, self.key, self.group)

    def items(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings (n, d) and labels (n,) of the buffer, of all committed tasks."""
        return self.z, self.y

    def oversampling(self, n_max: int) -> Tensor:
        """Compute each sample's weight: ``r_c = ⌊n_max / n'_c⌋``, at least 1 (eq:oversampling).

        :func:`cifnet_pl.model.task_learner.observe_buffer` applies it when a task ends.

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
        _, inverse, counts = torch.unique(
            self.y, return_inverse=True, return_counts=True
        )
        repeats: Tensor = (n_max // counts).clamp_min(1)
        return repeats.double()[inverse]

    def remove_classes(self, labels: list[int]) -> None:
        """Drop all embeddings of some classes.

        Args:
            labels: of the classes; those that are not in the buffer are ignored.
        """
        removed = torch.isin(self.y, self.y.new_tensor(labels))
        self.z, self.y, self.key, self.group = self.samples.at(~removed)

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes.

        Args:
            labels: old label → new one, of every class in the buffer.
        """
        self.y = renamed(self.y, labels)

    def pending(self) -> BufferSamples:
        """Return the pending candidates of the current task."""
        none = self.samples.at(slice(0))
        return concatenate([none, *self._pending])

    def join_candidates(self) -> None:
        """Join the pending candidates of all processes; each process must call this."""
        own = self.pending().to(torch.device("cpu"))
        joined = concatenate(of_all_processes(own))
        self._pending = [joined.to(self.z.device)]

    def discard_pending(self) -> None:
        """Discard the pending candidates."""
        self._pending = []

    def _prune_pending(self) -> None:
        """Select among the candidates: no class can keep more than its current quota, or groups of
        the first classes.

        Groups can be told, and kept, where all images of a class are at hand. So of the first
        classes, in random order, all candidates stay that fit into the capacity together. More
        candidates, whatever their order, only shorten the list of these classes.
        """
        pending = self.pending()
        quota = self.quota(len(self._classes_with(pending)))
        labels, column, counts = torch.unique(
            pending.y, return_inverse=True, return_counts=True
        )
        order = torch.argsort(mix_keys(labels, self.seed), stable=True)
        fits = torch.zeros_like(labels, dtype=torch.bool)
        fits[order] = counts[order].cumsum(dim=0) <= self.capacity
        is_first = fits[column]
        drawn = first_drawn(pending.at(~is_first), self.seed, quota)
        selected = concatenate([pending.at(is_first), drawn])
        self._pending = [selected]
        places = MAX_CANDIDATES_RATIO * self.capacity
        self._prune_at = max(places, 2 * len(selected.y))
