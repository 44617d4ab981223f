"""The base class of all heads: the task protocol, the checks of what comes in, and the state."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from cifnet_pl.statistics import Choice, ClassDistances, ClassMoments, Discriminant, Ridge
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UnsupportedError,
    UsageError,
    check_choice,
    check_embeddings,
    check_that,
)
from cifnet_pl.utilities.growing_tensors import keeping_dtypes, make_room, state_of
from cifnet_pl.utilities.memory import matrices_given_back

Capability = Literal["merges", "pools", "subtracts", "reduces", "leaves_one_out", "tells_novelty"]

ACTIONS: dict[Capability, str] = {
    "merges": "merge",
    "pools": "merge whole sites, or add samples to a class that is learned already",
    "subtracts": "subtract",
    "reduces": "be reduced over processes",
    "leaves_one_out": "leave samples out",
    "tells_novelty": "tell unknown things from known ones",
}
"""Capability → what a head without it cannot do, as error messages say it."""

REASONS: dict[Capability, str] = {
    "leaves_one_out": "it has no closed form for that, so it cannot be calibrated",
    "tells_novelty": "it keeps no Gram matrix of all samples and their class sums; RidgeHead does",
}
"""Capability → why a head has none, where that is the same for all heads; else the head's own
``reason``.
"""


Sizes = tuple[frozenset[int] | None, ...]
"""Allowed sizes of each dimension of a tensor; None for any size."""


def grown_sizes(one: tuple[int, ...], two: tuple[int, ...], classes: int, any_rows: bool) -> Sizes:
    """Infer the sizes of a tensor from its shapes with one class and with two classes.

    A dimension that is empty both times is filled by ``solve``: it may be empty or have one entry
        for each class.

    Args:
        one: shape with one class.
        two: shape with two classes.
        classes: number of classes.
        any_rows: whether empty dimensions may have any size, as those of stored samples.
    """
    sizes: list[frozenset[int] | None] = []
    for small, large in zip(one, two, strict=True):
        if any_rows and small == 0:
            sizes.append(None)
        elif small == large == 0:
            sizes.append(frozenset({0, classes}))
        else:
            sizes.append(frozenset({small + (classes - 1) * (large - small)}))
    return tuple(sizes)


def fits(shape: tuple[int, ...], sizes: Sizes) -> bool:
    """Return whether a tensor of ``shape`` is one of those that ``sizes`` allow."""
    pairs = zip(shape, sizes, strict=False)
    return len(shape) == len(sizes) and all(
        allowed is None or size in allowed for size, allowed in pairs
    )


H = TypeVar("H", bound="Head")
P = ParamSpec("P")
R = TypeVar("R")
AnyHead = TypeVar("AnyHead", bound="Head")


def in_full_precision(
    method: Callable[Concatenate[AnyHead, P], R],
) -> Callable[Concatenate[AnyHead, P], R]:
    """Decorate a method that changes statistics, so that no setting of the caller changes what is
    stored.

    Inside there is no autograd graph; no autocast, which would round products to bfloat16; and no
    inference mode, whose tensors could never be updated in place again.
    """

    @functools.wraps(method)
    def wrapped(self: AnyHead, /, *args: P.args, **kwargs: P.kwargs) -> R:
        autocast = torch.autocast(self.labels.device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), autocast, matrices_given_back():
            return method(self, *args, **kwargs)

    return wrapped


Dtype = Literal["float64", "float32"]
"""Precision of the statistics."""

LeftOut = Callable[[Tensor | None], Tensor]
"""Function from the number of each sample's group (n,) int64, or None where each stands alone, to
the scores (n, C) of the samples without their group."""

Metric = Literal["cosine", "euclidean"]
"""How two embeddings are compared."""


def number_or_gcv(
    name: str, value: float | str, expected: str, most: float = sys.float_info.max
) -> Ridge:
    """Check an argument that is a positive number, or "gcv".

    Args:
        name: of the argument, for the error.
        value: the argument.
        expected: what the error says was expected.
        most: the largest number.

    Returns:
        The number as a float, or "gcv".

    Raises:
        UsageError: neither.
    """
    if value == "gcv":
        return "gcv"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is '{value}', expected {expected}") from None
    check_that(0 < number <= most, name, number, expected)
    return number


def check_ridge(ridge: Ridge) -> Ridge:
    """Check a ridge as :func:`number_or_gcv`."""
    return number_or_gcv("ridge", ridge, "a positive number or gcv")


def check_samples(z: Tensor, y: Tensor, weight: Tensor | None, width: int) -> None:
    """Check a batch at the boundary.

    Args:
        z: (n, ``width``) finite float embeddings.
        y: (n,) int64 labels.
        weight: (n,) positive finite sample weights, or None.
        width: of the embeddings.

    Raises:
        UsageError: labels or weights that do not fit.
        CifnetError: embeddings of another width or dtype, or that hold NaN or Inf.
    """
    check_embeddings(z, width)
    if y.shape != (len(z),) or y.dtype != torch.int64:
        raise UsageError(
            f"labels have shape {tuple(y.shape)} and dtype {y.dtype}, expected ({len(z)},) int64"
        )
    if weight is not None:
        if weight.shape != (len(z),):
            raise UsageError(f"weights have shape {tuple(weight.shape)}, expected ({len(z)},)")
        if not (torch.isfinite(weight) & (weight > 0)).all():
            raise UsageError("sample weights must be positive and finite")


def log_odds(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute by how much each row's largest logit is above all others together.

    Args:
        logits: (n, C) float.

    Returns:
        (n, 1) column of the most probable class; (n, 1) logarithm of its odds; (n, C) log
        probability of each other class among those, infinite or NaN at the most probable one.
    """
    first = logits.argmax(dim=1, keepdim=True)
    others = logits.masked_fill(
        torch.arange(logits.shape[1], device=logits.device) == first, -torch.inf
    )
    together = others.logsumexp(dim=1, keepdim=True)
    return first, logits.gather(1, first) - together, others - together


def to_probabilities(scores: Tensor, temperature: Tensor | float, power: Tensor | float) -> Tensor:
    """Turn scores into probabilities by a temperature, and a power of the odds of the most probable
    class.

    With ``p = softmax(scores / temperature)``, the odds ``p / (1 − p)`` of the largest one become
    their ``power``-th power. The other classes share what is left in the same proportions. As the
    power is at most 1, the largest probability stays the largest one. With 1 it is the softmax.

    Args:
        scores: (n, C) float; rows with NaN give NaN.
        temperature: () above 0.
        power: () above 0 and at most 1.

    Returns:
        (n, C), of the dtype of the scores.

    Example:
        >>> scores = torch.tensor([[4.0, 1.0, 1.0]]).double()
        >>> to_probabilities(scores, 1.0, 0.5)[0].round(decimals=3).tolist()
        [0.76, 0.12, 0.12]
    """
    first, odds, others = log_odds(scores / temperature)
    return (torch.sigmoid(-power * odds) * others.exp()).scatter(
        1, first, torch.sigmoid(power * odds)
    )


RIDGE = 3.0
"""λ as a share of the mean eigenvalue of the scatter within classes (``python -m
benchmarks.studies.novelty``).
"""

OVERALL = 0.5
"""How much of the distance to the mean of all is subtracted: 0 is the plain distance, 1 the
relative one.
"""


class Derived:
    """What was computed from the sums of a head since they changed; each change replaces it by an
    empty one.

    Attributes:
        distances: of the head, or None until they are asked for.
        measure: function from features (n, p) to novelty (n,), or None until it is asked for.
        regression, factors, discriminant: of :class:`~cifnet_pl.heads.RidgeHead`, as far as they
            were asked for.
        inverses: of :class:`~cifnet_pl.heads.FeCAMHead`, likewise.
    """

    def __init__(self) -> None:
        self.distances: ClassDistances | None = None
        self.measure: Callable[[Tensor], Tensor] | None = None
        self.regression: tuple[Tensor, Choice] | None = None
        self.factors: Tensor | None = None
        self.discriminant: Discriminant | None = None
        self.inverses: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Derived:
        return Derived()


class Head(nn.Module, ABC):
    """A classifier that learns classes task by task from embeddings, without gradients.

    Protocol per task: ``begin_task(classes)``, then ``observe`` for every batch, then
        ``observe_past`` with
    samples of earlier classes if the head uses them, then ``solve``. Scores are float64.

    A subclass implements the methods under "what a head does in its own way", declares what it can
    do by the attributes below, and keeps every argument of its constructor as an attribute of the
    same name.

    Attributes:
        title: name in tables and figures; the class's own without "Head" if empty.
        merges: whether ``merge_`` adds the statistics of another process or site.
        pools: whether ``merge_`` of whole sites equals one head that saw the samples of both. Then
            samples of classes that are learned already can be added too.
        subtracts: whether ``subtract_`` takes statistics out again.
        reduces: whether ``reduce_`` sums a task over processes, so that several can learn together.
        leaves_one_out: whether ``leave_one_out`` has a closed form, so that the head can be
            calibrated.
        tells_novelty: whether ``novelty`` says how foreign a sample is, which takes a Gram matrix
            and class sums of the same samples. Nothing is stored for it, so whatever is exact for
            these sums is exact for it.
        decides: whether ``decide`` chooses between ways to score, by stored samples.
        uses_buffer: whether ``observe_past`` changes the head, so that a calibration buffer is
            worth its memory.
        counterexamples: whether a class's samples change what is known of other classes, so that
            something stays when the class is removed.
        reason: why the head cannot do what it cannot.

    Buffers:
        labels: (C,) int64, the classes in the order they were learned, any integers; columns of
            every score.
        task_of: (C,) int64, the task (0, 1, …) that introduced each class.
        solved: () bool, whether everything observed so far is in the weights.
        under_way: () bool, whether the task begun last is not yet part of the statistics, so that
            it can be aborted.
        temperature, odds_power: () float64, make scores probabilities (:func:`to_probabilities`); 1
            until calibrated.
    """

    title: ClassVar[str] = ""
    merges: bool = False
    pools: bool = False
    subtracts: bool = False
    reduces: bool = False
    leaves_one_out: bool = False
    tells_novelty: bool = False
    decides: bool = False
    uses_buffer: bool = False
    counterexamples: bool = True
    reason: str = "its state is not a sum over samples"

    def __init__(self, in_features: int, dtype: Dtype = "float64"):
        super().__init__()
        check_that(in_features >= 1, "in_features", in_features, "at least 1")
        check_choice("dtype of the statistics", dtype, Dtype)
        self.in_features = in_features
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.derived = Derived()
        self.kept: dict[tuple[str, bool], tuple[Tensor, Tensor, LeftOut]] | None = None
        self.labels: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.task_of: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.solved: Tensor = nn.Buffer(torch.tensor(True))
        self.under_way: Tensor = nn.Buffer(torch.tensor(False))
        self.temperature: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.odds_power: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))

    # ------------------------------------------------------------------ what a head does in its own
    # way

    @abstractmethod
    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        """Make room for ``new`` classes."""

    @abstractmethod
    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        """Add checked samples; ``columns`` are positions in ``labels``."""

    @abstractmethod
    def _solve(self) -> None:
        """Bring the weights up to date."""

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
    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks, by component (as in the paper's
        tab:memory_breakdown).
        """

    @abstractmethod
    def class_counts(self) -> dict[int, int]:
        """Return the number of distinct samples seen of each class, by label; samples not yet
        solved included.
        """

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        """Add checked samples of earlier classes."""

    def _note_duplicates(self, count: int) -> None:
        """Count ``count`` of the samples as copies of others; for a head that chooses a ridge by
        their number.
        """

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes; for a head that ``reduces``."""
        raise NotImplementedError

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        """Prepare the scores of checked samples, each without its group; for a head that
        ``leaves_one_out``.
        """
        raise NotImplementedError

    def _merge(self, other: Any) -> None:
        """Add the statistics of a head of the same class and settings; for a head that
        ``merges``.
        """
        raise NotImplementedError

    def _subtract(self, other: Any) -> None:
        """Take the statistics of a head of the same class and settings out; for a head that
        ``subtracts``.
        """
        raise NotImplementedError

    def share_of(self, label: int) -> Any:
        """Return a head of the same settings that has learned the samples of one class alone.

        Subtracting it equals subtracting a head that was shown the samples again.

        Args:
            label: of the class.

        Returns:
            The head; None if these sums are not kept.
        """
        return None

    def decide(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> None:
        """Choose how to score by the leave-one-out scores of stored samples, before they are
        calibrated.

        A no-op for a head with nothing to choose (``decides``).

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each
                alone.
        """

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores of a solved head as a function of (n, d) embeddings, without branches
        on values.

        Unchecked: for graphs (ONNX). A head whose ``_scores`` looks at tensors to decide what to do
            overrides this.
        """
        return self._scores

    def choices(self) -> list[Choice]:
        """Return the ridges of the last solve, the same ones at each solve first; empty for a head
        that has none.
        """
        return []

    def _rows(self, z: Tensor) -> Tensor:
        """Return the features (n, p) of embeddings (n, d) that the Gram matrix is over, without the
        bias.

        Only heads that declare ``tells_novelty`` have them.
        """
        raise NotImplementedError

    def _moments(self) -> ClassMoments:
        """Return the moments of these features over all that was learned."""
        raise NotImplementedError

    # ------------------------------------------------------------------ learning

    @in_full_precision
    def begin_task(self, classes: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Open a task.

        Args:
            classes: labels of the classes that it introduces, any integers.
            counts: number of samples of each class where known.

        Raises:
            UsageError: no class, a class twice, or one that is already learned; counts that do not
                fit.
            CifnetError: the task before was never solved.
        """
        new = self._new_labels(classes, counts)
        if not self.solved:
            raise CifnetError("the task before was not finished: call solve() first")
        self._append_task(new)
        self.solved.fill_(False)
        self.under_way.fill_(True)
        self._begin(len(new), counts)

    @in_full_precision
    def observe(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Add samples of the current task to the sums.

        Args:
            z: (n, d) float embeddings; n may be 0 or 1.
            y: (n,) int64 labels, all of the task begun last.
            weight: (n,) positive sample weights, or None for ones.

        Raises:
            UsageError: a label that is not of the current task.
        """
        check_samples(z, y, weight, self.in_features)
        columns = self._columns(y)
        if len(self.task_of):
            current = self.task_of == self.task_of.max()
        else:
            current = self.task_of.bool()
        if not current[columns].all():
            stray = y[~current[columns]][0].item()
            raise UsageError(f"label {stray} is not a class of the current task {self.tasks[-1]}")
        if len(z):
            self.solved.fill_(False)
            self._observe(z, columns, weight)

    @in_full_precision
    def observe_past(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Show samples of earlier classes to this task's neurons only (the calibration buffer).

        A no-op where a head has no use for it.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels, all of earlier tasks.
            weight: (n,) positive sample weights, or None for ones.

        Raises:
            UsageError: a label of the current task.
        """
        check_samples(z, y, weight, self.in_features)
        columns = self._columns(y)
        if (self.task_of[columns] == self.task_of.max()).any():
            raise UsageError(
                "observe_past got labels of the current task; it takes samples of earlier tasks"
            )
        if len(z) and self.uses_buffer:
            self.solved.fill_(False)
            self._observe_past(z, columns, weight)

    @in_full_precision
    def note_duplicates(self, count: int) -> None:
        """Count observed samples as copies of others; call it before ``solve``.

        They keep their weight, but ``ridge: gcv`` chooses by the number of distinct samples. With
            several processes
        call it after ``reduce_``, in all of them.

        Args:
            count: number of samples; a negative number takes an earlier call back.
        """
        if count:
            self.solved.fill_(False)
            self._note_duplicates(count)

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
        """Bring the weights up to date with everything observed.

        Raises:
            CifnetError: no task yet, a class without samples, or a system that is not positive
                definite.
        """
        if not len(self.labels):
            raise CifnetError("nothing to solve: call begin_task() and observe() first")
        empty = [label for label, count in self.class_counts().items() if count == 0]
        if empty:
            raise CifnetError(
                f"class {empty[0]} has no samples: observe some, or leave the class out"
            )
        self.derived = Derived()
        self._solve()
        self.solved.fill_(True)
        self.under_way.fill_(False)

    def refresh(self) -> None:
        """Do now what the first prediction after ``solve`` would do; a no-op for heads that
        ``solve`` at once.
        """

    @in_full_precision
    def abort_task(self) -> None:
        """Forget the current task and all that was observed since it began; does nothing once it is
        solved.

        Of a task that was solved or merged before, only what was observed since is forgotten.
        """
        if self.solved:
            return
        self._discard()
        if not self.under_way:
            self.solve()
            return
        earlier = (self.task_of < self.task_of.max()).nonzero().flatten()
        self._keep(earlier)
        self._keep_labels(earlier)
        self.solved.fill_(True)
        self.under_way.fill_(False)

    # ------------------------------------------------------------------ the life of a model

    @in_full_precision
    def merge_(self, other: Head) -> None:
        """Add the statistics of another head; call ``solve`` afterwards.

        Args:
            other: it saw other samples. Classes are matched by label; new ones are appended.

        Raises:
            UnsupportedError: this head cannot (``merges``).
            UsageError: ``other`` is of another class or has other settings.
        """
        self.require("merges")
        self._same_kind(other)
        self._merge(other)

    @in_full_precision
    def subtract_(self, other: Head) -> None:
        """Take the statistics of another head out again; call ``solve`` afterwards.

        Args:
            other: it saw some of the samples that this head saw.

        Raises:
            UnsupportedError: this head cannot (``subtracts``).
            UsageError: ``other`` is of another class or has other settings.
        """
        self.require("subtracts")
        self._same_kind(other)
        self._subtract(other)

    @in_full_precision
    def remove_classes(self, classes: Sequence[int]) -> None:
        """Take classes out of the label space; their samples stay in the sums of the others.

        Args:
            classes: their labels.

        Raises:
            UsageError: a class that is not known, or all of them.
        """
        removed = set(classes)
        unknown = sorted(removed - set(self.classes))
        if unknown:
            raise UsageError(f"class {unknown[0]} is not known to this head")
        columns = torch.tensor([i for i, label in enumerate(self.classes) if label not in removed])
        if not len(columns):
            raise UsageError("cannot remove all classes: at least one must stay")
        columns = columns.to(self.labels.device)
        self._keep(columns)
        self.derived = Derived()
        self.under_way.fill_(False)
        self._keep_labels(columns)

    def _begin_tasks_of(self, other: Head) -> None:
        """Append the classes of ``other`` that are new here, in its tasks."""
        known = set(self.classes)
        for task in other.tasks:
            new = [label for label in task if label not in known]
            if new:
                self.solved.fill_(True)
                self.begin_task(new)

    def _same_kind(self, other: Head) -> None:
        """Raise UsageError unless ``other`` is a head of the same class and settings."""
        if type(other) is not type(self):
            raise UsageError(f"cannot combine {type(self).__name__} with {type(other).__name__}")
        ours = self.settings()
        theirs = other.settings()
        different = {k: (v, theirs[k]) for k, v in ours.items() if v != theirs[k]}
        if different:
            name, (mine, yours) = next(iter(different.items()))
            raise UsageError(f"cannot combine heads with different {name}: {mine} and {yours}")

    def require(self, capability: Capability) -> None:
        """Check that this head has an capability.

        Raises:
            UnsupportedError: it has not; the sentence says why.
        """
        if not getattr(self, capability):
            raise self._cannot(ACTIONS[capability], REASONS.get(capability, self.reason))

    def _cannot(self, action: str, why: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} cannot {action}: {why}")

    # ------------------------------------------------------------------ prediction

    def _require_solved(self) -> None:
        """Raise CifnetError if nothing is learned, or not all of it is in the weights."""
        if not len(self.labels) or not self.solved:
            raise CifnetError("the head is not solved: call solve() after observe()")

    def forward(self, z: Tensor) -> Tensor:
        """Score embeddings.

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n, C) float64, columns as in ``classes``.

        Raises:
            CifnetError: nothing learned yet, unsolved samples, or embeddings of another width.
        """
        check_embeddings(z, self.in_features)
        self._require_solved()
        with torch.autocast(z.device.type, enabled=False):
            return self._scores(z)

    def probabilities(self, z: Tensor) -> Tensor:
        """Return the probability of each class (:func:`to_probabilities`).

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n, C) float64, columns as in ``classes``.
        """
        return to_probabilities(self(z), self.temperature, self.odds_power)

    def predict(self, z: Tensor) -> Tensor:
        """Return the labels with the largest score.

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n,) int64.
        """
        return self.labels[self(z).argmax(dim=1)]

    def leave_one_out(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> Tensor:
        """Score learned samples, each as if that one, or all of its group, had never been learned:
        (n, C) float64.

        For ridge regression this needs no second solve: with h the share of a sample's target y in
            its own score,
        ``(score − h·y)/(1 − h)`` is exact at the same ridge. A burst of images tests nothing if
        only one is left out: give its images the same group.

        Args:
            z: (n, d) embeddings of samples that were observed once, with weight 1, in their class's
                task, and that were among the calibration samples of every later task where the head
                uses those.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each
                alone.

        Returns:
            NaN where nothing would be known without the sample or its group, such as the only one
            of all.

        Raises:
            UnsupportedError: this head has no closed form for it, or cannot tell the weight of a
                sample.
            CifnetError: the head is not solved, or embeddings of another width.
        """
        if groups is not None and groups.shape != y.shape:
            raise UsageError(
                f"leave_one_out got {tuple(groups.shape)} groups, expected one for each of {len(y)}"
                " samples"
            )
        return self.leaving_out(z, y)(groups)

    @in_full_precision
    def leaving_out(self, z: Tensor, y: Tensor) -> LeftOut:
        """Return :meth:`leave_one_out` of learned samples as a function of their groups, for many
        groupings of them.

        Args:
            z: (n, d) embeddings, and y: (n,) int64 labels, as for :meth:`leave_one_out`.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`leave_one_out`.
        """
        self.require("leaves_one_out")
        check_samples(z, y, None, self.in_features)
        self._require_solved()
        left_out = self._leaving_out(z.to(self.dtype), self._columns(y))
        return lambda groups: left_out(groups).double()

    @contextmanager
    def keeping_left_out(self) -> Iterator[None]:
        """Within the block, keep what was prepared to leave samples out: a calibration asks for the
        same several times.

        It is as large as the samples' features, several times.
        """
        self.kept = {}
        try:
            yield
        finally:
            self.kept = None

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
        if self.derived.distances is None:
            self.derived.distances = ClassDistances(self._moments(), RIDGE)
        return self.derived.distances

    def novelty(self, z: Tensor) -> Tensor:
        """Measure how far embeddings are from everything learned.

        That is the squared Mahalanobis distance to the nearest class mean less half of that to the
        mean of all samples (:class:`~cifnet_pl.statistics.ClassDistances`).

        Args:
            z: (n, d) embeddings.

        Returns:
            (n,) float64, larger for what is more foreign.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`distances`.
        """
        check_embeddings(z, self.in_features)
        measure = self.measuring()
        with torch.autocast(z.device.type, enabled=False):
            return measure(z)

    @in_full_precision
    def measuring(self) -> Callable[[Tensor], Tensor]:
        """Return :meth:`novelty` as a function whose steps do not depend on the embeddings' values.

        The embeddings are not checked: it is made for graphs.
        """
        distances = self.distances()
        derived = self.derived
        measure = derived.measure = derived.measure or distances.relative(OVERALL)
        return lambda z: measure(self._rows(z))

    @in_full_precision
    def leave_one_out_novelty(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the novelty (n,) float64 of learned samples, each as if it, or its group, had
        never been learned.

        The result is exact at the same ridge.

        Args:
            z: (n, d) embeddings of samples that were observed once, with weight 1, in their class's
                task.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each
                alone.

        Returns:
            NaN for a sample without which, or without whose group, no class would be known.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`distances`.
        """
        check_samples(z, y, None, self.in_features)
        distances = self.distances()
        columns = self._columns(y)
        near, overall = distances.left_out(self._rows(z), columns, groups)
        return near - OVERALL * overall

    # ------------------------------------------------------------------ labels

    @property
    def classes(self) -> list[int]:
        """Labels in column order, those of a task that is under way included."""
        labels: list[int] = self.labels.tolist()
        return labels

    @property
    def tasks(self) -> list[list[int]]:
        """Labels of each task, in the order learned."""
        tasks: dict[int, list[int]] = {}
        for task, label in zip(self.task_of.tolist(), self.labels.tolist(), strict=True):
            tasks.setdefault(task, []).append(label)
        return list(tasks.values())

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes; nothing else changes.

        Args:
            labels: old label → new one, of every class.

        Raises:
            UsageError: a class without a new label, or two with the same one.
        """
        if set(labels) != set(self.classes) or len(set(labels.values())) < len(labels):
            raise UsageError(
                f"relabel needs one new label for each of {self.classes}, got {dict(labels)}"
            )
        old = self.labels
        new = self.labels.new_tensor([labels[label] for label in self.classes])
        self._rename(lambda y: new[(y[:, None] == old).nonzero()[:, 1]])
        self.labels = new

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        """Rename the labels that are kept beside ``labels``; ``new`` maps (n,) old ones to (n,) new
        ones.
        """

    def _new_labels(self, classes: Sequence[int], counts: Sequence[int] | None) -> list[int]:
        """Check the labels of a task to come and return them, ``counts`` being their numbers of
        samples where known.

        Raises:
            UsageError: no class, a class twice, or one that is already known; counts that do not
                fit.
        """
        new = [operator.index(c) for c in classes]
        if not new:
            raise UsageError("a task needs at least one class, none was given")
        if not -(2**63) <= min(new) <= max(new) < 2**63:
            raise UsageError(f"classes {new} hold a label that does not fit into 64 bits")
        if len(set(new)) < len(new):
            raise UsageError(f"classes {new} of one task hold a label twice")
        known = sorted(set(new) & set(self.classes))
        if known:
            raise UsageError(
                f"class {known[0]} is already learned: a task introduces new classes only"
            )
        if counts is not None and (len(counts) != len(new) or min(counts) < 1):
            raise UsageError(
                f"counts {list(counts)} do not give one positive number for each of {len(new)}"
                " classes"
            )
        return new

    def _append_task(self, new: Sequence[int]) -> None:
        if len(self.task_of):
            task = int(self.task_of.max()) + 1
        else:
            task = 0
        self.labels = torch.cat([self.labels, self.labels.new_tensor(new)])
        self.task_of = torch.cat([self.task_of, self.task_of.new_full((len(new),), task)])

    def _keep_labels(self, columns: Tensor) -> None:
        """Drop all classes but those at ``columns``; a task whose classes are all gone leaves no
        gap in the numbers.
        """
        self.labels = self.labels[columns]
        self.task_of = self.task_of[columns]
        self.task_of = torch.unique(self.task_of, return_inverse=True)[1]

    def _columns(self, y: Tensor) -> Tensor:
        """Return the positions of labels in ``labels``.

        Raises:
            UsageError: a label that is not known.
        """
        if not len(self.labels):
            raise UsageError("no task has begun: call begin_task() first")
        order = torch.argsort(self.labels)
        position = torch.searchsorted(self.labels[order], y.contiguous()).clamp_max(len(order) - 1)
        columns = order[position]
        wrong = self.labels[columns] != y
        if wrong.any():
            raise UsageError(f"label {y[wrong][0].item()} was not introduced by begin_task()")
        return columns

    # ------------------------------------------------------------------ storing

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on: plain numbers, strings
        and booleans.
        """
        try:
            settings = {
                name: getattr(self, name) for name in inspect.signature(type(self)).parameters
            }
        except AttributeError as error:
            raise UsageError(
                f"each argument of {type(self).__name__}() must be an attribute, too: {error}"
            ) from error
        return {
            name: str(v).removeprefix("torch.") if name == "dtype" else v
            for name, v in settings.items()
        }

    @classmethod
    def from_settings(cls: type[H], settings: Mapping[str, Any]) -> H:
        """Return an empty head into which a state with these ``settings()`` can be loaded."""
        return cls(**settings)

    def fresh(self: H) -> H:
        """Return an empty head that merges with this one, on the same device."""
        return type(self).from_settings(self.settings()).to(self.labels.device)

    def expected_shapes(self, task_sizes: Sequence[int]) -> dict[str, Sizes]:
        """Return the sizes that the stored tensors of a head with these settings have, by name.

        Heads with tensors for each task override this.

        Args:
            task_sizes: number of classes of each task.
        """
        with_one, with_two = (self._shapes_with(classes) for classes in (1, 2))
        samples = {
            f"{name}."
            for name, module in self.named_modules()
            if getattr(module, "any_rows", False)
        }
        return {
            name: grown_sizes(
                one, with_two[name], sum(task_sizes), name[: name.rfind(".") + 1] in samples
            )
            for name, one in with_one.items()
        }

    def _shapes_with(self, classes: int) -> dict[str, tuple[int, ...]]:
        fresh = self.fresh()
        fresh.begin_task(range(classes), [1] * classes)
        return {name: tuple(tensor.shape) for name, tensor in fresh.state_dict().items()}

    def expect(self, state: Mapping[str, Tensor]) -> None:
        """Settle what the constructor left open as a stored state of this head has it, before it is
        loaded.
        """
        self._before_load(state)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.derived = Derived()
        return cast(Any, super())._apply(keeping_dtypes(fn), recurse)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        state = state_of(state_dict, prefix)
        self._before_load(state)
        make_room(self, state, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        """Create the children that ``state`` (this head's part of the state, without prefix) has
        tensors for.
        """
        labels = state.get("labels")
        task_of = state.get("task_of")
        if (
            isinstance(labels, Tensor)
            and isinstance(task_of, Tensor)
            and labels.shape != task_of.shape
        ):
            raise CheckpointError(
                f"stored head has {labels.numel()} labels but {task_of.numel()} task numbers: the"
                " file is damaged"
            )
        self.derived = Derived()
