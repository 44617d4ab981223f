"""The methods that a head class writes itself; :class:`cifnet_pl.heads.base.Head` calls them with checked arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from cifnet_pl.heads.abilities import Abilities
from cifnet_pl.heads.labels import LabelSpace


class Hooks(Abilities, LabelSpace, ABC):
    """What is specific to a head. ``columns`` (n,) are the positions of the samples' classes in ``labels``."""

    @abstractmethod
    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        """Make room for ``new`` classes."""

    @abstractmethod
    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        """Add checked samples; ``columns`` are positions in ``labels``."""

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        """Add checked samples of earlier classes."""

    @abstractmethod
    def _solve(self) -> None:
        """Bring the weights up to date."""

    @abstractmethod
    def _scores(self, z: Tensor) -> Tensor:
        """Scores of checked embeddings."""

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes; for a head that ``reduces``."""
        raise NotImplementedError

    def _leave_one_out(self, z: Tensor, columns: Tensor) -> Tensor:
        """Leave-one-out scores of checked samples; for a head that ``leaves_one_out``."""
        raise NotImplementedError

    def _merge(self, other: Any) -> None:
        """Add the statistics of a head of the same class and settings; for a head that ``merges``."""
        raise NotImplementedError

    def _subtract(self, other: Any) -> None:
        """Take the statistics of a head of the same class and settings out; for a head that ``subtracts``."""
        raise NotImplementedError

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """The scores of a solved head as a function of (n, d) embeddings whose steps do not depend on their values.

        Unchecked: for graphs (ONNX). A head whose ``_scores`` looks at tensors to decide what to do overrides this.
        """
        return self._scores

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        """Rename the labels that are kept beside ``labels``; ``new`` maps (n,) old ones to (n,) new ones."""

    @abstractmethod
    def _discard(self) -> None:
        """Forget what was observed since the last solve."""

    @abstractmethod
    def _keep(self, columns: Tensor) -> None:
        """Drop all classes but those at ``columns``, and their weights."""

    @abstractmethod
    def state_elements(self) -> dict[str, int]:
        """Numbers kept between tasks, by component (as in the paper's tab:memory_breakdown)."""

    @abstractmethod
    def class_counts(self) -> dict[int, int]:
        """Distinct samples seen of each class, by label; samples not yet solved included."""
