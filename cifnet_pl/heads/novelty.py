"""Measure how unlike everything learned a sample is, from the sums that the head keeps anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import check_samples
from cifnet_pl.heads.exactness import exact
from cifnet_pl.heads.head_settings import StoredHead
from cifnet_pl.statistics import ClassDistances, ClassMoments, shared_groups
from cifnet_pl.utilities.errors import CifnetError, check_embeddings

RIDGE = 3.0
"""λ as a share of the mean eigenvalue of the scatter within classes (``python -m benchmarks.novelty``)."""

OVERALL = 0.5
"""How much of the distance to the mean of all is subtracted: 0 is the plain distance, 1 the relative one."""


class Stage:
    """A mark that is replaced after every change of a head, and holds what was computed from its sums meanwhile.

    Attributes:
        distances: of the head, or None until they are asked for.
        measure: function from features (n, p) to novelty (n,), or None until it is asked for.
    """

    def __init__(self) -> None:
        self.distances: ClassDistances | None = None
        self.measure: Callable[[Tensor], Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Stage:
        return Stage()


class NoveltyHead(StoredHead):
    """A head that, where its class declares ``tells_novelty``, says how foreign a sample is.

    Nothing is stored for it: the distances come from the Gram matrix and the class sums, so whatever is exact for
    these (merge, subtract, more classes, several processes) is exact for them.
    """

    solved: Tensor
    in_features: int

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()

    @exact
    def distances(self) -> ClassDistances:
        """Return the distances of this head's features to its classes; computed once after each change.

        Raises:
            UnsupportedError: this head has no scatter within classes (``tells_novelty``).
            CifnetError: the head is not solved.
        """
        self.require("tells_novelty")
        if not len(self.labels) or not self.solved:
            raise CifnetError("the head is not solved: call solve() after observe()")
        if self.stage.distances is None:
            self.stage.distances = ClassDistances(self._moments(), RIDGE)
        return self.stage.distances

    def novelty(self, z: Tensor) -> Tensor:
        """Measure how far embeddings are from everything learned.

        That is the squared Mahalanobis distance to the nearest class mean less half of that to the mean of all samples
        (:class:`~cifnet_pl.statistics.ClassDistances`).

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

    @exact
    def measuring(self) -> Callable[[Tensor], Tensor]:
        """Return :meth:`novelty` as a function whose steps do not depend on the embeddings' values.

        The embeddings are not checked: it is made for graphs.
        """
        distances, stage = self.distances(), self.stage
        measure = stage.measure = stage.measure or distances.relative(OVERALL)
        return lambda z: measure(self._rows(z))

    @exact
    def leave_one_out_novelty(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the novelty (n,) float64 of learned samples, each as if it, or its group, had never been learned.

        The result is exact at the same ridge.

        Args:
            z: (n, d) embeddings of samples that were observed once, with weight 1, in their class's task.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each alone.

        Returns:
            NaN for a sample without which, or without whose group, no class would be known.

        Raises:
            UnsupportedError, CifnetError: as for :meth:`distances`.
        """
        check_samples(z, y, None, self.in_features)
        distances, columns = self.distances(), self._columns(y)
        rows, weight = self._rows(z), self._learned_weight(columns)
        near, overall = distances.left_out(rows, columns, weight)
        for group in shared_groups(groups) if groups is not None else ():
            own = (rows[group], columns[group], weight[group])
            near[group], overall[group] = distances.left_out_together(*own)
        return near - OVERALL * overall

    def _rows(self, z: Tensor) -> Tensor:
        """Return the features (n, p) of embeddings (n, d) that the Gram matrix is over, without the bias.

        Only heads that declare ``tells_novelty`` have them.
        """
        raise NotImplementedError

    def _moments(self) -> ClassMoments:
        """Return the moments of these features over all that was learned."""
        raise NotImplementedError

    def _learned_weight(self, columns: Tensor) -> Tensor:
        """Return (n,) weight in the Gram matrix that samples of the classes at ``columns`` (n,) have."""
        return torch.ones(len(columns), dtype=torch.float64, device=columns.device)

    def _begin_stage(self) -> None:
        """Drop what was computed from the sums before they changed."""
        self.stage = Stage()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._begin_stage()
        return super()._apply(fn, recurse)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        self._begin_stage()
