"""The exact head: joint ridge regression over everything seen, from one shared Gram matrix, without a buffer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from cifnet_pl.heads.base import Dtype, Ridge, Sizes, check_ridge, exact
from cifnet_pl.heads.cifnet import signed_targets, target_limit
from cifnet_pl.heads.confidence import near_copies
from cifnet_pl.heads.prototypes import draw_normal
from cifnet_pl.heads.sums import SumsHead
from cifnet_pl.statistics import (
    Centred,
    Choice,
    ClassSums,
    Discriminant,
    Place,
    augment,
    left_out_together,
    shared_groups,
    within_scatter,
)
from cifnet_pl.statistics.sums import RememberingSums, Sums
from cifnet_pl.utilities.errors import UsageError, check_choice, unknown_name

Remember = str | Sequence[int | str] | None
"""Classes to remember: "all", labels or names, or names in one text with commas between them; None for none."""

ALL = "all"


class Remembered:
    """The classes that :data:`Remember` means.

    A head knows labels only. Where classes are given by name, whoever knows the names says which labels have them
    (``note_names``) before their task begins.

    Args:
        options: the argument of a head, or ``text`` of another object of this kind.

    Attributes:
        text: "", "all", or the classes as a JSON list: what a description can hold.
    """

    def __init__(self, options: Remember):
        classes = options
        if isinstance(options, str) and options not in ("", ALL):
            classes = _listed(options)
        elif not options:
            classes = []
        if classes != ALL and (
            not isinstance(classes, Sequence) or not all(isinstance(c, int | str) and c != "" for c in classes)
        ):
            raise UsageError(f"remember is {options!r}, expected all, or classes by label or name")
        self.all = classes == ALL
        self.text = ALL if self.all else json.dumps(list(classes or [])) if classes else ""
        self.names = set() if self.all else {c for c in classes or [] if isinstance(c, str)}
        self.labels = set() if self.all else {c for c in classes or [] if isinstance(c, int)}

    def __bool__(self) -> bool:
        return bool(self.text)

    def __contains__(self, label: int) -> bool:
        return self.all or label in self.labels

    def about(self, names: Sequence[str], width: int, itemsize: int) -> str | None:
        """Return a note about the memory that remembered classes take in a run.

        Args:
            names: of all classes of the run.
            width: of the Gram matrix.
            itemsize: bytes of one of its numbers.

        Returns:
            A sentence; None if no class is remembered.

        Raises:
            UsageError: a class to remember is not among ``names``.
        """
        unknown = sorted(self.names - set(names))
        if unknown:
            raise unknown_name("class to remember", unknown[0], names)
        count = len(names) if self.all else len(self.names) + len(self.labels)
        if not count:
            return None
        size = count * width * (width + 1) // 2 * itemsize / 1e6
        return f"remembering {count} classes takes {size:.1f} MB: they can be forgotten without their photos"

    def note_names(self, names: Mapping[int, str]) -> None:
        """Take over the labels of classes that were given by name.

        Args:
            names: label → name.
        """
        self.labels |= {label for label, name in names.items() if name in self.names}


def kept_apart(sums: ClassSums, labels: Tensor) -> set[int]:
    """Return the labels whose Gram matrices are kept apart; in a head from a file, only these tell the labels of names.

    Args:
        sums: of a head.
        labels: (C,) of its classes.
    """
    return set(labels[sums.place >= 0].tolist()) if isinstance(sums, RememberingSums) else set()


def _listed(text: str) -> Sequence[int | str]:
    """Return the classes of a JSON list, or names with commas between them."""
    if text.startswith("["):
        try:
            classes: Sequence[int | str] = json.loads(text)
            return classes
        except ValueError:
            raise UsageError(
                f"remember is {text!r}, which is no JSON list: expected all, or classes by label or name"
            ) from None
    return [name.strip() for name in text.split(",")]


Decision = Literal["ridge", "discriminant", "auto"]
"""Ridge regression, linear discriminant analysis, or the one with the higher leave-one-out accuracy."""


def is_better(other: Tensor, current: Tensor, columns: Tensor) -> bool:
    """Tell whether one way of scoring is right significantly more often than another; both leave one out.

    On samples where only one of the two is right, each would be right equally often if both were equally good. The
    difference has to be more than twice its standard deviation (McNemar, 1947), so that a choice does not change back
    and forth from task to task.

    Args:
        other, current: (n, C) scores of the same samples; rows that are not all finite in both do not count.
        columns: (n,) int64 true column of each.
    """
    known = (torch.isfinite(other) & torch.isfinite(current)).all(dim=1)
    right = [scores[known].argmax(dim=1) == columns[known] for scores in (other, current)]
    gained, lost = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    return gained - lost > 2 * math.sqrt(gained + lost)


def rows_without(rows: Tensor, gone: Tensor) -> Tensor | None:
    """Remove one copy of each of some rows.

    Args:
        rows: (n, p).
        gone: (m, p) rows to remove.

    Returns:
        (n − m, p); None if one of them is not among ``rows``.
    """
    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for row in gone.to(rows.device):
        matches = ((rows == row).all(dim=1) & kept).nonzero()
        if not len(matches):
            return None
        kept[matches[0]] = False
    return rows[kept]


SHARE = 0.5
"""Norm of the random products beside an embedding of norm 1."""


def sqrt_l2(z: Tensor) -> Tensor:
    """Return the signed square root of (n, d) embeddings, L2-normalised."""
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def l2(z: Tensor) -> Tensor:
    """Return L2-normalised (n, d) embeddings."""
    return torch.nn.functional.normalize(z, dim=1)


def joined(z: Tensor) -> Tensor:
    """Join L2-normalised (n, d) embeddings and their :func:`sqrt_l2`: (n, 2d)."""
    return torch.cat([l2(z), sqrt_l2(z)], dim=1)


def products(z: Tensor, drawn: Tensor | None = None) -> Tensor:
    """Return L2-normalised (n, d) embeddings beside 1.5 d random products of them: (n, d + 3d/2).

    A product is ``(p·z)(q·z)`` with p and q standard normal, scaled so that inner products of the result approximate
    ``x·y + (x·y)²/4`` (Kar and Karnick, AISTATS 2012). p and q depend on d alone, are drawn anew in each process and
    are not part of the state.

    Args:
        z: (n, d) embeddings.
        drawn: what :func:`directions` returns, in the dtype and on the device of ``z``; None to draw it.
    """
    unit = l2(z)
    first, second = (directions(z.shape[1]).to(z) if drawn is None else drawn).chunk(2)
    return torch.cat([unit, SHARE * len(first) ** -0.5 * (unit @ first.T) * (unit @ second.T)], dim=1)


@lru_cache(maxsize=4)
def directions(in_features: int) -> Tensor:
    """Draw the 2·⌈1.5 d⌉ directions (…, d) float64 of :func:`products`, the same ones always."""
    return draw_normal(2 * -(-3 * in_features // 2), in_features, seed=0)


Transform = Literal["none", "l2", "sqrt_l2", "joined", "products"]
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "l2": l2,
    "sqrt_l2": sqrt_l2,
    "joined": joined,
    "products": products,
}
"""Name of each :data:`Transform` → its function."""


def transformed(z: Tensor, transform: Transform, dtype: torch.dtype, drawn: Tensor | None) -> Tensor:
    """Return transformed embeddings; without a transform as they are, of whatever dtype.

    Args:
        z: (n, d) embeddings.
        transform: its name.
        dtype: of the result of a transform.
        drawn: directions of :func:`products`, in this dtype and on the device of ``z``.
    """
    if transform == "products":
        return products(z.to(dtype), drawn)
    return z if transform == "none" else TRANSFORMS[transform](z.to(dtype))


ADDED = {"decision": "ridge", "remember": ""}
"""Arguments that files of older versions do not name, and what those files mean."""


class RidgeHead(SumsHead):
    """Ridge regression on targets ±L over all data ever seen, or the discriminant of the same sums; exact at any task.

    The joint optimum needs no buffer: for a class never seen before all earlier samples are negatives, and
    their sum is the first row of the common Gram matrix. ``W = (G_c + λI)⁻¹ Q_c``, ``b = t̄ − Wᵀμ`` with
    centred features and targets, the bias free; ``m_c = L(2·Σ_{y=c} x̃ − Σ x̃)``, ``L = logit(1 − ε)``.
    Linear discriminant analysis, ``zᵀΛμ_c − ½ μ_cᵀΛμ_c`` with ``Λ = ((S + λI)/n)⁻¹``, S the scatter within classes,
    is solved from the same sums with the same λ; which of the two is better depends on the photos.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to the unweighted centred Gram matrix, or "gcv" (chosen anew at every solve).
        epsilon: clip of the one-hot targets; scales all scores alike.
        transform: "none"; "l2", normalised; "sqrt_l2", the signed square root followed by L2 normalisation;
            "joined", both of these, at twice the width; or "products", "l2" and random products, at 2.5 times it.
        balanced: weigh each sample by (mean class count) / (count of its class). Needs ``counts`` in
            ``begin_task``, and refuses ``merge_`` and ``subtract_``: a class's count must be final.
        dtype: of the sums, "float64" or "float32".
        decision: "ridge"; "discriminant"; or "auto", the one with the higher leave-one-out accuracy on stored samples
            (:meth:`decide`), which is ridge regression until there are any.
        remember: classes whose own Gram matrix is kept, (d+1)(d+2)/2 numbers each, so that they can be forgotten
            exactly without their samples: "all", or labels or, in a model that knows them, names; on the command line
            names with commas between them.
    """

    title = "Exact ridge"
    leaves_one_out = True

    sums: Sums
    increment: Sums | None
    directions: Tensor | None
    class_weight: Tensor
    ridge_used: Tensor
    scale_used: Tensor
    removed_sums: Tensor
    discriminates: Tensor

    def __init__(
        self,
        in_features: int,
        ridge: Ridge = "gcv",
        epsilon: float = 0.05,
        transform: Transform = "none",
        balanced: bool = False,
        dtype: Dtype = "float64",
        decision: Decision = "ridge",
        remember: Remember = None,
    ):
        check_choice("transform", transform, Transform)
        check_choice("decision", decision, Decision)
        width = 1 + TRANSFORMS[transform](torch.zeros(1, max(in_features, 1))).shape[1]
        super().__init__(in_features, width, dtype)
        self.ridge = check_ridge(ridge)
        self.place: Place = "given"
        self.limit = target_limit(epsilon)
        self.epsilon, self.transform, self.balanced = epsilon, transform, balanced
        if balanced:
            self.merges = self.pools = self.subtracts = False
            self.reason = "balanced=True weighs samples by final class counts"
        if remember and balanced:
            raise UsageError("remember needs samples that can be taken out again, which balanced=True has not")
        self._remembered = Remembered(remember)
        self.remember = self._remembered.text
        if self._remembered:
            self.sums_type = RememberingSums
            self.sums = RememberingSums(width, dtype=self.dtype)
        self.decision = decision
        self.decides = decision == "auto"
        drawn = directions(in_features).to(self.dtype) if transform == "products" else None
        self.register_buffer("directions", drawn, persistent=False)
        self.register_buffer("class_weight", torch.zeros(0, dtype=self.dtype))
        self.register_buffer("ridge_used", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale_used", torch.ones((), dtype=self.dtype))
        # States of a head that only knows ridge regression are as they were before there was anything else.
        more = decision != "ridge"
        self.register_buffer("removed_sums", torch.zeros(0, width, dtype=self.dtype), persistent=more)
        self.register_buffer("discriminates", torch.tensor(decision == "discriminant"), persistent=more)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on.

        Arguments that older versions did not have are left out.
        """
        return {name: value for name, value in super().settings().items() if ADDED.get(name) != value}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> RidgeHead:
        """Return an empty head (see :meth:`Head.from_settings`)."""
        return cls(**{**ADDED, **settings})

    def begin_task(self, classes: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Open a task (see :meth:`Head.begin_task`); with ``balanced``, ``counts`` must be given."""
        if self.balanced and counts is None:
            raise UsageError("balanced=True needs the class counts before the samples: begin_task(classes, counts)")
        super().begin_task(classes, counts)

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        super()._begin(new, counts)
        if self.balanced:
            weight = 1 / self.class_weight.new_tensor(counts)
            self.class_weight = torch.cat([self.class_weight, weight])
        self._remember(self.sums, self.labels[-new:])

    def _remember(self, sums: ClassSums, labels: Tensor) -> None:
        """Have ``sums`` keep the Gram matrices of those of ``labels`` that are to be remembered."""
        if isinstance(sums, RememberingSums):
            kept = kept_apart(self.sums, self.labels)
            chosen = [label for label in labels.tolist() if label in self._remembered or label in kept]
            sums.remember(self._columns(labels.new_tensor(chosen)))

    def _open_increment(self) -> ClassSums:
        fresh = self.increment is None
        increment = super()._open_increment()
        if fresh:
            self._remember(increment, self.labels)
        return increment

    def fresh(self) -> RidgeHead:
        """Return an empty head that merges with this one, and remembers the same classes."""
        empty = super().fresh()
        assert isinstance(empty, RidgeHead)
        empty._remembered.labels |= self._remembered.labels | kept_apart(self.sums, self.labels)
        return empty

    def note_names(self, names: Mapping[int, str]) -> None:
        """Take note of the names of classes (see :meth:`Head.note_names`): ``remember`` may name them."""
        self._remembered.note_names(names)

    def about_remembering(self, names: Sequence[str]) -> str | None:
        """Return what remembering takes in a run (see :meth:`Head.about_remembering`)."""
        return self._remembered.about(names, self.sums.width, self.dtype.itemsize)

    @exact
    def share_of(self, label: int) -> RidgeHead | None:
        """Return a head that has learned class ``label`` alone, if it is remembered (see :meth:`Head.share_of`)."""
        column = int(self._columns(self.labels.new_tensor([label])))
        share = self.sums.share(column) if isinstance(self.sums, RememberingSums) else None
        if share is None or self.increment is not None:
            return None
        head = self.fresh()
        head.begin_task([label])
        head.sums = share
        return head

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        if self.balanced:
            balance = self.class_weight[columns]
            weight = balance if weight is None else balance * weight.to(balance)
        super()._observe(z, columns, weight)

    def _features(self, z: Tensor) -> Tensor:
        return augment(transformed(z, self.transform, self.dtype, self.directions), self.dtype)

    @property
    def _scale(self) -> Tensor:
        # Balanced weights average to one, so that a numeric ridge means the same with and without them.
        return (1 / self.class_weight).mean() if self.balanced else self.class_weight.new_ones(())

    def _centred(self) -> Centred:
        scale = self.scale_used
        gram = scale * self.sums.gram
        moment = self.limit * (2 * scale * self.sums.class_sums - gram[0]).T
        square = self.limit**2 * gram[0, 0] * len(self.labels)
        return Centred.from_augmented(gram, moment, square, int(self.sums.seen))

    def _solve(self) -> None:
        self._fold()
        self.scale_used = self._scale  # of all classes of this solve; one of them may be removed before the next
        self.weights, choice = self._centred().solve(self.ridge)
        self.ridge_used.fill_(choice.ridge)
        self.place = choice.place
        if self.discriminates:
            self.weights = self._discriminant().weights().to(self.dtype)

    def choices(self) -> list[Choice]:
        """Return the ridge of all classes."""
        return [Choice(self.ridge_used.item(), self.place)]

    def _discriminant(self) -> Discriminant:
        """Solve from the sums as they are, with the ridge of the last solve."""
        sums, removed, scale = self.sums.class_sums, self.removed_sums, self.scale_used
        within = scale * within_scatter(self.sums.gram, torch.cat([sums, removed]))
        return Discriminant.from_sums(within, scale * sums, scale * self.sums.mass, self.ridge_used.item())

    def _leave_one_out(self, z: Tensor, columns: Tensor, groups: Tensor | None = None) -> Tensor:
        left_out = self._discriminant_left_out if self.discriminates else self._ridge_left_out
        return left_out(z, columns, groups)

    def _discriminant_left_out(self, z: Tensor, columns: Tensor, groups: Tensor | None = None) -> Tensor:
        rows, weight, rule = self._features(z)[:, 1:], self._weight_of(columns), self._discriminant()
        scores = rule.left_out(rows, columns, weight)
        for group in shared_groups(groups) if groups is not None else ():
            scores[group] = rule.left_out_together(rows[group], columns[group], weight[group])
        return scores

    def _ridge_left_out(self, z: Tensor, columns: Tensor, groups: Tensor | None = None) -> Tensor:
        features, centred = self._features(z), self._centred()
        weights = centred.solve(self.ridge_used.item())[0] if self.discriminates else self.weights
        mass = self.scale_used * self.sums.mass
        half = centred.half_products(features[:, 1:], self.ridge_used.item(), mass)
        targets = signed_targets(columns, len(self.labels), self.limit)
        return left_out_together(features @ weights, half, self._weight_of(columns), targets, groups)

    def _weight_of(self, columns: Tensor) -> Tensor:
        """Return (n,) float64 weight of samples of the classes at ``columns`` in the sums of the last solve."""
        ones = torch.ones(len(columns), dtype=torch.float64, device=columns.device)
        return self.scale_used * (self.class_weight[columns] if self.balanced else ones)

    @exact
    def decide(self, z: Tensor, y: Tensor) -> None:
        """Choose by leave-one-out accuracy (see :meth:`Head.decide`); near-copies are left out together."""
        if not self.decides or not len(y):
            return
        columns, groups = self._columns(y), near_copies(z, y)
        rows = (z.to(self.dtype), columns, groups)
        ridge, discriminant = self._ridge_left_out(*rows), self._discriminant_left_out(*rows)
        rivals = (ridge, discriminant) if self.discriminates else (discriminant, ridge)
        if is_better(*rivals, columns):
            self.discriminates.logical_not_()
            self._solve()

    def _learned_weight(self, columns: Tensor) -> Tensor:
        return self.class_weight[columns] if self.balanced else super()._learned_weight(columns)

    def _keep(self, columns: Tensor) -> None:
        self._fold()
        if self.decision != "ridge":  # whose samples of no class are negatives, whatever they were
            gone = self.sums.counts > 0
            gone[columns] = False
            self.removed_sums = torch.cat([self.removed_sums, self.sums.class_sums[gone]])
        super()._keep(columns)
        if self.balanced:
            self.class_weight = self.class_weight[columns]

    def _merge(self, other: SumsHead) -> None:
        super()._merge(other)
        assert isinstance(other, RidgeHead)
        self.removed_sums = torch.cat([self.removed_sums, other.removed_sums.to(self.removed_sums.device)])

    def _subtract(self, other: SumsHead) -> None:
        assert isinstance(other, RidgeHead)
        removed = rows_without(self.removed_sums, other.removed_sums)
        if removed is None:
            raise UsageError("cannot subtract: a class was removed from the other head that was not removed from this")
        super()._subtract(other)
        self.removed_sums = removed

    def expected_shapes(self, task_sizes: Sequence[int]) -> dict[str, Sizes]:
        """Return sizes of the stored tensors (see :meth:`Head.expected_shapes`): any number of classes was removed."""
        shapes = super().expected_shapes(task_sizes)
        for name in ("removed_sums", "sums.own"):
            if name in shapes:
                shapes[name] = (None, *shapes[name][1:])
        return shapes

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: a triangle of width d+1 and twice C times d+1.

        With a discriminant d+1 more for each class that was removed; a triangle more for each class remembered.
        """
        elements = super().state_elements()
        if self.decision != "ridge":
            elements["moments"] += self.removed_sums.numel()
        return elements | ({"remembered": self.sums.own.numel()} if isinstance(self.sums, RememberingSums) else {})


JUMP = 100.0
"""Factor between the ridges before and after a lesson from which a note is written."""

REMARKS = {
    "smallest": "note: the classes are told apart without any error, as happens where photos are copies of each other: "
    "look for those (the ridge is at the lower edge of its grid, {})",
    "largest": "note: the photos are too few, or nothing in them tells their classes apart: add more, and look whether "
    "they are in the right folders (the ridge is at the upper edge of its grid, {})",
}
"""What is said of a ridge at an edge of the grid. One at its cap is usual where photos are few, all distinct and easy,
so that it is told only where many photos are near-copies."""


def at_cap(choices: Sequence[Choice]) -> bool:
    """Return whether a ridge that generalised cross-validation chose is at its cap."""
    return any(choice.place == "cap" for choice in choices)


def about_choices(choices: Sequence[Choice]) -> dict[str, str]:
    """Return notes on ridges that lie at the edge of what generalised cross-validation may choose.

    Args:
        choices: ridges, and where they lie.

    Returns:
        Where → sentence, for each edge that occurs.
    """
    ridges_of: dict[str, list[float]] = {}
    for choice in choices:
        if choice.place in REMARKS:
            ridges_of.setdefault(choice.place, []).append(choice.ridge)
    return {remark: REMARKS[remark].format(_shown(ridges)) for remark, ridges in ridges_of.items()}


def about_lesson(before: Sequence[Choice], after: Sequence[Choice]) -> list[str]:
    """Return notes on the ridges after a lesson, and on how much it changed them.

    Args:
        before: the choices before the lesson.
        after: the choices after it, in the same order.
    """
    jump = about_jump(before, after)
    return [*about_choices(after).values(), *([jump] if jump else [])]


def about_jump(before: Sequence[Choice], after: Sequence[Choice]) -> str | None:
    """Return a note if a ridge grew or shrank by more than a factor of ``JUMP``; else None.

    Args:
        before: the choices before a lesson.
        after: the choices after it, in the same order.
    """
    pairs = [(old.ridge, new.ridge) for old, new in zip(before, after, strict=False) if old.ridge > 0 < new.ridge]
    old, new = max(pairs, key=lambda pair: max(pair[1] / pair[0], pair[0] / pair[1]), default=(1.0, 1.0))
    if max(new / old, old / new) <= JUMP:
        return None
    return (
        "note: these photos change the model as much as if they were unlike all those before, or copies of each other: "
        f"look at them (the ridge went from {old:.3g} to {new:.3g})"
    )


def _shown(ridges: list[float]) -> str:
    low, high = min(ridges), max(ridges)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
