"""The base class of all heads: the task protocol, the checks of its inputs, and the state."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.statistics import ClassDistances, LeftOut, to_probabilities
from cifnet_pl.utilities.errors import (
    CifnetError,
    UnsupportedError,
    UsageError,
    check_choice,
    check_count,
    check_embeddings,
    explained,
)
from cifnet_pl.utilities.growing_tensors import make_room, moved, no_rows, renamed

ACTIONS: dict[str, str] = {
    "merges": "merge, or add samples to a class that is learned already",
    "subtracts": "subtract",
    "reduces": "be reduced over processes",
    "leaves_one_out": "leave samples out",
    "tells_novelty": "score novelty",
}
"""Capability → what a head without it cannot do, for error messages."""

REASONS = {
    "leaves_one_out": "it has no closed form for that, so it cannot be calibrated",
    "tells_novelty": "it keeps no Gram matrix of all samples and their class sums; RidgeHead does",
}
"""Capability → why a head lacks it; where heads differ, see ``Head.reason``."""

Method = TypeVar("Method", bound=Callable[..., Any])


def in_full_precision(method: Method) -> Method:
    """Decorator: run a method without autograd, autocast or inference mode.

    No setting of the caller changes the statistics then: an autograd graph would keep memory,
    autocast would round products to bfloat16, and tensors of inference mode could never be updated
    in place again.
    """

    @functools.wraps(method)
    def wrapped(self: Head, *args: Any, **kwargs: Any) -> Any:
        device = self.labels.device.type
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast(device, enabled=False),
        ):
            return method(self, *args, **kwargs)

    return cast(Method, wrapped)


Dtype = Literal["float64", "float32"]
"""Precision of the statistics."""

Metric = Literal["cosine", "euclidean"]
"""Metric by which two embeddings are compared."""


Numbers = Tensor | np.ndarray | Sequence[Any]
"""A tensor, an array, or lists of numbers."""


def as_tensor(values: Numbers, device: torch.device | str = "cpu") -> Tensor:
    """Return a tensor as it is, and a copy of an array or lists of numbers as a tensor.

    Args:
        values: the numbers.
        device: of the tensor that is made.

    Raises:
        UsageError: lists of uneven length, or values that are no numbers, such as class names.
    """
    if isinstance(values, Tensor):
        return values
    with explained(UsageError, "these values are no array of numbers"):
        return torch.from_numpy(np.array(values)).to(device)


def as_labels(values: Numbers, device: torch.device | str = "cpu") -> Tensor:
    """Return integers as an int64 tensor; UsageError where they are none."""
    labels = as_tensor(values, device)
    if labels.is_floating_point():
        raise UsageError(f"labels are {labels.dtype}, expected integers")
    return labels.long()


def scalar(value: float) -> Tensor:
    """Return a buffer of a single float64 number."""
    return nn.Buffer(torch.tensor(value, dtype=torch.float64))


class Head(nn.Module, ABC):
    """A classifier that learns classes task by task from embeddings, without gradients.

    Protocol per task: ``begin_task(classes)``, then ``observe`` for every batch, then
    ``observe_past`` with samples of earlier classes if the head uses them, then ``solve``. Scores
    are float64.

    A subclass implements the methods under "what a subclass implements", declares its capabilities
    by the attributes below, and keeps every argument of its constructor as an attribute of the same
    name.

    Attributes:
        title: name in tables and figures; the class's own without "Head" if empty.
        merges: whether ``merge_`` adds the statistics of another site, so that the result equals
            one head that saw the samples of both. Then samples of known classes can be added, too.
        subtracts: whether ``subtract_`` removes statistics again.
        reduces: whether ``reduce_`` sums a task over processes, so that several can learn together.
        leaves_one_out: whether ``leave_one_out`` has a closed form, so that the head can be
            calibrated.
        tells_novelty: whether ``novelty`` scores how far a sample is from all classes, which needs
            a Gram matrix and class sums of the same samples. Nothing is stored for it, so whatever
            is exact for these sums is exact for it.
        selects_rule: whether its scores are a sum of several rules, whose weights calibration fits
            to the calibration buffer.
        uses_buffer: whether ``observe_past`` changes the head, so that a calibration buffer is
            worth its memory.
        counterexamples: whether a class's samples change what is known of other classes, so that
            something stays when the class is removed.
        reason: why the head lacks the capabilities that it lacks.
        computed: names of the attributes that are computed from the statistics when they are first
            needed. They are None after each change, and in copies.
        components: stored matrix → component of :meth:`state_elements` to which it counts; one that
            is not here is a component of its own name.
        revision: another object after each change of the scores.

    Buffers:
        labels: (C,) int64, the classes in the order they were learned, any integers; columns of
            every score.
        task_of: (C,) int64, the task (0, 1, …) that introduced each class.
        solved: () bool, whether the statistics hold every sample observed so far.
        under_way: () bool, whether a task has begun and can still be aborted, because its samples
            are not yet added to the statistics of the tasks before.
        temperature: () float64, by which scores are divided to be logits; 1 until calibrated.
        odds_power: () float64, of :func:`to_probabilities`; 1 until calibrated.
    """

    title: ClassVar[str] = ""
    merges: bool = False
    subtracts: bool = False
    reduces: bool = False
    leaves_one_out: bool = False
    tells_novelty: bool = False
    selects_rule: bool = False
    uses_buffer: bool = False
    counterexamples: bool = True
    reason: str = "its state is not a sum over samples"
    computed: ClassVar[tuple[str, ...]] = ("_distances",)
    components: ClassVar[dict[str, str]] = {
        "packed_gram": "factors",
        "class_grams": "factors",
        "class_sums": "moments",
        "removed_sums": "moments",
        "compensation_weights": "weights",
    }

    def __init__(self, in_features: int, dtype: Dtype = "float64"):
        super().__init__()
        cast(Any, self).register_load_state_dict_pre_hook(make_room)
        check_count("in_features", in_features)
        check_choice("dtype of the statistics", dtype, Dtype)
        self.in_features = in_features
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.revision = object()
        self._distances: ClassDistances | None = None
        self.labels = no_rows(torch.int64)
        self.task_of = no_rows(torch.int64)
        self.solved: Tensor = nn.Buffer(torch.tensor(True))
        self.under_way: Tensor = nn.Buffer(torch.tensor(False))
        self.temperature = scalar(1.0)
        self.odds_power = scalar(1.0)

    # ------------------------------------------------------------------ what a subclass implements

    @abstractmethod
    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        """Add checked samples; ``columns`` are positions in ``labels``."""

    @abstractmethod
    def _solve(self) -> None:
        """Commit the current task, and compute the weights."""

    @abstractmethod
    def _scores(self, z: Tensor) -> Tensor:
        """Return the scores of checked embeddings."""

    @abstractmethod
    def _discard(self) -> None:
        """Forget what was observed since the last solve."""

    @abstractmethod
    def _keep(self, columns: Tensor) -> None:
        """Drop all classes but those at ``columns``, and their weights."""

    @abstractmethod
    def _class_counts(self) -> Tensor:
        """Return (C,) int64 numbers of samples for :meth:`class_counts`."""

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        """Make room for ``new`` classes."""

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        """Add checked samples of earlier classes."""

    def _count_duplicates(self, count: int) -> None:
        """Count ``count`` of the samples as duplicates; for a head that chooses a ridge by GCV."""

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes; for a head that ``reduces``."""
        raise NotImplementedError

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        """Prepare leave-one-group-out scores of checked samples; if it ``leaves_one_out``."""
        raise NotImplementedError

    def _merge(self, other: Self) -> None:
        """Add the statistics of a head of the same class and settings; if it ``merges``.

        Its classes are known here already.
        """
        raise NotImplementedError

    def _subtract(self, other: Self) -> None:
        """Remove the statistics of a head of the same class and settings; if it ``subtracts``."""
        raise NotImplementedError

    def statistics_of_class(self, label: int) -> Any:
        """Return a head of the same settings that has learned the samples of one class alone.

        Subtracting it equals subtracting a head that was shown the samples again: duplicates among
        them are not counted as such (:meth:`count_duplicates`).

        Args:
            label: of the class.

        Returns:
            The head; None if these statistics are not kept.
        """
        return None

    def _rules_left_out(self, z: Tensor, columns: Tensor) -> tuple[LeftOut, ...]:
        """Prepare the leave-one-group-out scores of each rule whose sum are the scores."""
        return (self._leaving_out(z, columns),)

    @property
    def decision_rule(self) -> str | None:
        """The decision rule in words; None for a head that has a single one."""
        return None

    def weigh_rules(self, weights: Sequence[float]) -> None:
        """Make the sum of the rules, each times its weight, the logits of the probabilities.

        Args:
            weights: of the rules of :meth:`rules_left_out`, not negative.
        """
        self.temperature.fill_(1 / weights[0])

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores of a solved head as a function of (n, d) embeddings.

        The function has no branches on values and checks nothing: it is made for graphs (ONNX). A
        head whose ``_scores`` branches on values overrides this.
        """
        return self._scores

    def _novelty_features(self, z: Tensor) -> Tensor:
        """Return the features (n, p) of embeddings (n, d) for novelty, without the bias.

        Only heads that declare ``tells_novelty`` have them.
        """
        raise NotImplementedError

    def _class_distances(self) -> ClassDistances:
        """Return the distances of :meth:`_novelty_features` to all that was learned."""
        raise NotImplementedError

    def _statistics_changed(self) -> None:
        """Drop what was computed from the statistics."""
        self.revision = object()
        for name in self.computed:
            setattr(self, name, None)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a copy what can be computed again."""
        return self.__dict__ | dict.fromkeys(self.computed)

    # ------------------------------------------------------------------ learning

    @in_full_precision
    def begin_task(self, classes: Numbers, counts: Sequence[int] | None = None) -> None:
        """Open a task.

        Args:
            classes: labels of the classes that it introduces, any integers.
            counts: number of samples of each class where known.

        Raises:
            UsageError: no class, a class twice, or one that is already learned.
            CifnetError: the task before was never solved.
        """
        if not len(classes):
            raise UsageError("a task needs at least one class, none was given")
        new = as_labels(classes).to(self.labels.device)
        labels = torch.cat([self.labels, new])
        distinct, counts_of_labels = torch.unique(labels, return_counts=True)
        twice = distinct[counts_of_labels > 1]
        if len(twice):
            raise UsageError(
                f"class {int(twice[0])} is given twice, or already learned: a task introduces new"
                " classes only"
            )
        if not self.solved:
            raise CifnetError("the task before was not finished: call solve() first")
        tasks = self.task_of.new_full(new.shape, len(self.tasks))
        self.task_of = torch.cat([self.task_of, tasks])
        self.labels = labels
        self.solved.fill_(False)
        self.under_way.fill_(True)
        self._begin(len(new), counts)

    @in_full_precision
    def observe(self, z: Numbers, y: Numbers, weight: Numbers | None = None) -> None:
        """Add samples of the current task to what it has observed.

        Args:
            z: (n, d) float embeddings; n may be 0 or 1. Here as everywhere in a head, an array or
                lists do as well as a tensor.
            y: (n,) integer labels, all of the task begun last.
            weight: (n,) positive sample weights, or None for ones.

        Raises:
            UsageError: a label that is not of the current task.
        """
        z, columns, weight = self._checked(z, y, weight)
        tasks = self.task_of[columns]
        earlier = columns[tasks < self.task_of.max()]
        if len(earlier):
            label = int(self.labels[earlier[0]])
            raise UsageError(
                f"label {label} is not a class of the current task {self.tasks[-1]}"
            )
        if len(z):
            self.solved.fill_(False)
            self._observe(z, columns, weight)

    @in_full_precision
    def observe_past(
        self,
        z: Numbers,
        y: Numbers,
        weight: Numbers | None = None,
    ) -> None:
        """Show samples of earlier classes (the calibration buffer).

        :class:`~cifnet_pl.heads.CIFNetHead` shows them to this task's neurons only. A no-op
        where a head has no use for it.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels, all of earlier tasks.
            weight: (n,) positive sample weights, or None for ones.

        Raises:
            UsageError: a label of the current task.
        """
        z, columns, weight = self._checked(z, y, weight)
        if (self.task_of[columns] == self.task_of.max()).any():
            raise UsageError(
                "observe_past got labels of the current task; it takes samples of earlier tasks"
            )
        if len(z) and self.uses_buffer:
            self.solved.fill_(False)
            self._observe_past(z, columns, weight)

    def _checked(
        self,
        z: Numbers,
        y: Numbers,
        weight: Numbers | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Check a batch at the boundary.

        Args:
            z: (n, d) finite float embeddings.
            y: (n,) integer labels.
            weight: (n,) positive finite sample weights, or None for ones.

        Returns:
            The embeddings; positions (n,) int64 of their labels in ``labels``; the weights.

        Raises:
            UsageError: labels or weights that do not fit, or a label that is not known.
            CifnetError: embeddings of another width or dtype, or that hold NaN or Inf.
        """
        z = as_tensor(z, self.labels.device)
        check_embeddings(z, self.in_features)
        y = as_labels(y, z.device)
        if y.shape != (len(z),):
            raise UsageError(
                f"labels have shape {tuple(y.shape)}, expected ({len(z)},)"
            )
        if weight is None:
            weight = torch.ones_like(y, dtype=torch.float64)
        weight = as_tensor(weight, z.device)
        fits = torch.isfinite(weight) & (weight > 0)
        if weight.shape != (len(z),) or not fits.all():
            raise UsageError(f"expected {len(z)} sample weights, positive and finite")
        return z, self._columns(y), weight

    @in_full_precision
    def count_duplicates(self, count: int) -> None:
        """Count observed samples as duplicates; call it before ``solve``.

        They keep their weight, but ``ridge: gcv`` chooses by the number of distinct samples. With
        several processes call it after ``reduce_``, in all of them.

        Args:
            count: number of samples; a negative number reverses an earlier call.
        """
        if count:
            self.solved.fill_(False)
            self._count_duplicates(count)

    @in_full_precision
    def reduce_(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes, once, before ``solve``.

        Args:
            sum_in_place: replaces a tensor by its sum over all processes. Earlier tasks are common
                already.

        Raises:
            UnsupportedError: this head cannot (``reduces``).
        """
        self.require("reduces")
        self._reduce(sum_in_place)

    @in_full_precision
    def solve(self) -> None:
        """Commit the current task: everything observed so far is in the statistics then.

        Raises:
            CifnetError: no task yet, a class without samples, or a system that is not positive
                definite.
        """
        if not len(self.labels):
            raise CifnetError("nothing to solve: call begin_task() and observe() first")
        empty = self.labels[self._class_counts() == 0]
        if len(empty):
            raise CifnetError(
                f"class {int(empty[0])} has no samples: observe some, or leave the class out"
            )
        self._statistics_changed()
        self._solve()
        self.solved.fill_(True)
        self.under_way.fill_(False)

    @in_full_precision
    def abort_task(self) -> None:
        """Discard the current task and all that was observed since it began.

        Does nothing once it is solved. Of a task that was solved or merged before, only what was
        observed since is discarded.
        """
        if self.solved:
            return
        self._discard()
        if not self.under_way:
            self.solve()
            return
        self._drop_classes(self.task_of == self.task_of.max())
        self.solved.fill_(True)

    # ------------------------------------------------------------------ the life of a model

    @in_full_precision
    def merge_(self, other: Self) -> None:
        """Add the statistics of another head; call ``solve`` afterwards.

        Args:
            other: it saw other samples. Classes are matched by label; new ones are appended.

        Raises:
            UnsupportedError: this head cannot (``merges``).
            UsageError: ``other`` is of another class or has other settings.
        """
        self.require("merges")
        self._same_kind(other)
        known = set(self.classes)
        for task in other.tasks:
            new = [label for label in task if label not in known]
            if new:
                self.solved.fill_(True)
                self.begin_task(new)
        self._merge(other)
        self.solved.fill_(False)
        self.under_way.fill_(False)

    @in_full_precision
    def subtract_(self, other: Self) -> None:
        """Remove the statistics of another head again; call ``solve`` afterwards.

        Args:
            other: it saw some of the samples that this head saw.

        Raises:
            UnsupportedError: this head cannot (``subtracts``).
            UsageError: ``other`` is of another class or has other settings.
        """
        self.require("subtracts")
        self._same_kind(other)
        self._subtract(other)
        self.solved.fill_(False)

    @in_full_precision
    def remove_classes(self, classes: Sequence[int]) -> None:
        """Remove classes from the label space; their samples stay in the statistics of the others.

        Args:
            classes: their labels.

        Raises:
            UsageError: a class that is not known, or all of them.
        """
        is_removed = torch.zeros_like(self.labels, dtype=torch.bool)
        is_removed[self._columns(self.labels.new_tensor(classes))] = True
        if is_removed.all():
            raise UsageError("cannot remove all classes: at least one must stay")
        self._drop_classes(is_removed)

    def _drop_classes(self, is_dropped: Tensor) -> None:
        """Drop classes (C,) bool; tasks are numbered without gaps."""
        columns = (~is_dropped).nonzero().flatten()
        self._keep(columns)
        self._statistics_changed()
        self.under_way.fill_(False)
        self.labels = self.labels[columns]
        self.task_of = torch.unique(self.task_of[columns], return_inverse=True)[1]

    def _same_kind(self, other: Head) -> None:
        """Raise UsageError unless ``other`` is a head of the same class and settings."""
        if type(other) is not type(self):
            raise UsageError(
                f"cannot combine {type(self).__name__} with {type(other).__name__}"
            )
        ours = self.settings()
        theirs = other.settings()
        for name, value in ours.items():
            if value != theirs[name]:
                raise UsageError(
                    f"cannot combine heads with different {name}: {value} and {theirs[name]}"
                )

    def require(self, capability: str) -> None:
        """Check that this head has a capability.

        Raises:
            UnsupportedError: it has not; the message says why.
        """
        if not getattr(self, capability):
            action = ACTIONS[capability]
            reason = REASONS.get(capability, self.reason)
            raise UnsupportedError(f"{type(self).__name__} cannot {action}: {reason}")

    # ------------------------------------------------------------------ prediction

    def _require_solved(self) -> None:
        """Raise CifnetError if nothing is learned, or not all of it is solved."""
        if not len(self.labels) or not self.solved:
            raise CifnetError("the head is not solved: call solve() after observe()")

    def forward(self, z: Numbers) -> Tensor:
        """Score embeddings.

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n, C) float64, columns as in ``classes``.

        Raises:
            CifnetError: nothing learned yet, unsolved samples, or embeddings of another width.
        """
        z = as_tensor(z, self.labels.device)
        check_embeddings(z, self.in_features)
        self._require_solved()
        with torch.autocast(z.device.type, enabled=False):
            return self._scores(z)

    def probabilities(self, z: Numbers) -> Tensor:
        """Return the probability of each class (:func:`to_probabilities`).

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n, C) float64, columns as in ``classes``.
        """
        return to_probabilities(self(z), self.temperature, self.odds_power)

    def predict(self, z: Numbers) -> Tensor:
        """Return the labels with the largest score.

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n,) int64.
        """
        return self.labels[self(z).argmax(dim=1)]

    def leave_one_out(
        self,
        z: Numbers,
        y: Numbers,
        groups: Numbers | None = None,
    ) -> Tensor:
        """Score learned samples, each as if it, or all of its group, had never been learned.

        For ridge regression this needs no second solve: with h the sample's leverage (its diagonal
        entry of the hat matrix) and y its target, ``(score − h·y)/(1 − h)`` is exact at the same
        ridge. For images that are not independent, such as a burst, leaving out one of them tests
        nothing: give them the same group.

        Args:
            z: (n, d) embeddings of samples that were observed once, with weight 1, in their class's
                task, and that were among the buffer samples of every later task where the head
                uses those, with one weight for each class.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each
                alone.

        Returns:
            (n, C) float64 scores; NaN where nothing would be known without the sample or its group,
            such as the only sample of all.

        Raises:
            UnsupportedError: this head has no closed form for it.
            CifnetError: the head is not solved, or embeddings of another width.
        """
        rules = self.rules_left_out(z, y)
        own = self._groups(groups, len(y))
        return self.sum_of_rules(torch.stack([left_out(own) for left_out in rules]))

    def _groups(self, groups: Numbers | None, count: int) -> Tensor:
        """Return the groups (count,) as a tensor; each sample its own where none are given."""
        if groups is None:
            groups = torch.arange(count)
        return as_labels(groups, self.labels.device)

    def sum_of_rules(self, scores: Tensor) -> Tensor:
        """Return the scores (n, C) of the head from (rules, n, C); most heads have one rule."""
        return scores[0]

    @in_full_precision
    def rules_left_out(self, z: Numbers, y: Numbers) -> tuple[LeftOut, ...]:
        """Return the leave-out function of each rule; the scores are the sum of the rules' scores.

        Such a function computes the scores of a rule without the group of each sample. What does
        not depend on the groups is computed once, here.

        Args:
            z: (n, d) embeddings, as for :meth:`leave_one_out`.
            y: (n,) int64 labels.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`leave_one_out`.
        """
        self.require("leaves_one_out")
        self._require_solved()
        z, columns, _ = self._checked(z, y)
        return self._rules_left_out(z.to(self.dtype), columns)

    # ------------------------------------------------------------------ novelty

    @in_full_precision
    def distances(self) -> ClassDistances:
        """Return the distances of this head's features to its classes; computed once after each
        change.

        Raises:
            UnsupportedError: this head has no scatter within classes (``tells_novelty``).
            CifnetError: the head is not solved.
        """
        self.require("tells_novelty")
        self._require_solved()
        if self._distances is None:
            self._distances = self._class_distances()
        return self._distances

    @in_full_precision
    def novelty(self, z: Numbers) -> Tensor:
        """Measure how far embeddings are from everything learned.

        That is the squared Mahalanobis distance to the nearest class mean less half of that to the
        mean of all samples (:class:`~cifnet_pl.statistics.ClassDistances`).

        Args:
            z: (n, d) embeddings.

        Returns:
            (n,) float64, larger for samples that are more novel.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`distances`.
        """
        z = as_tensor(z, self.labels.device)
        check_embeddings(z, self.in_features)
        return self.novelty_function()(z)

    @in_full_precision
    def novelty_function(self) -> Callable[[Tensor], Tensor]:
        """Return :meth:`novelty` as a function without branches on values.

        The embeddings are not checked: it is made for graphs (ONNX).
        """
        relative_distance = self.distances().relative
        return lambda z: relative_distance(self._novelty_features(z))

    @in_full_precision
    def leave_one_out_novelty(
        self,
        z: Numbers,
        y: Numbers,
        groups: Numbers | None = None,
    ) -> Tensor:
        """Return the novelty of learned samples, each as if it, or its group, had not been learned.

        The result is exact at the same ridge.

        Args:
            z: (n, d) embeddings of samples that were observed once, with weight 1, in their class's
                task.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each
                alone.

        Returns:
            (n,) float64; NaN where no class would be known without the sample, or its group.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`distances`.
        """
        distances = self.distances()
        z, columns, _ = self._checked(z, y)
        features = self._novelty_features(z)
        own = self._groups(groups, len(features))
        return distances.left_out(features, columns, own)

    # ------------------------------------------------------------------ labels

    @property
    def classes(self) -> list[int]:
        """Labels in column order, those of a task that is under way included."""
        return self.labels.tolist()

    def class_counts(self) -> dict[int, int]:
        """Return the number of samples observed of each class, by label.

        Duplicates are included, and samples that are not yet solved.
        """
        counts = self._class_counts().tolist()
        return dict(zip(self.classes, counts, strict=True))

    @property
    def tasks(self) -> list[list[int]]:
        """Labels of each task, in the order learned."""
        tasks = torch.unique(self.task_of)
        return [self.labels[self.task_of == task].tolist() for task in tasks]

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes; nothing else changes.

        Args:
            labels: old label → new one, of every class.

        Raises:
            UsageError: a class without a new label, or two with the same one.
        """
        distinct = set(labels.values())
        if set(labels) != set(self.classes) or len(distinct) < len(labels):
            raise UsageError(
                f"relabel needs one new label for each of {self.classes}, got {dict(labels)}"
            )
        new = renamed(self.labels, labels)
        self._rename(lambda y: new[self._columns(y)])
        self.labels = new

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        """Rename labels that are kept beside ``labels``; ``new`` maps old ones (n,) to new ones."""

    def _columns(self, y: Tensor) -> Tensor:
        """Return the positions of labels in ``labels``.

        Raises:
            UsageError: a label that is not known.
        """
        unknown = y[~torch.isin(y, self.labels)]
        if len(unknown):
            raise UsageError(
                f"label {int(unknown[0])} was not introduced by begin_task()"
            )
        ascending, order = self.labels.sort()
        return order[torch.searchsorted(ascending, y.contiguous())]

    # ------------------------------------------------------------------ storing

    def state_elements(self) -> dict[str, int]:
        """Count the values kept between tasks, by component (tab:memory_breakdown of the paper).

        They are the elements of all matrices that are stored in floating point.
        """
        elements: Counter[str] = Counter()
        for key, value in self.state_dict().items():
            if value.is_floating_point() and value.ndim >= 2:
                name = key.rpartition(".")[2]
                elements[self.components.get(name, name)] += value.numel()
        return dict(+elements)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on.

        They are plain numbers, strings and booleans.
        """
        names = inspect.signature(type(self)).parameters
        settings = {name: getattr(self, name) for name in names}
        if "dtype" in settings:
            settings["dtype"] = str(self.dtype).removeprefix("torch.")
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return an empty head into which a state with these ``settings()`` can be loaded."""
        return cls(**settings)

    def fresh(self) -> Self:
        """Return an empty head that merges with this one, on the same device."""
        return type(self).from_settings(self.settings()).to(self.labels.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._statistics_changed()
        return cast(Any, super())._apply(functools.partial(moved, fn), recurse)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        """Create the children that ``state`` has tensors for.

        Args:
            state: this head's part of the state, without prefix.
        """
        self._statistics_changed()
