"""The methods that each head class implements; :class:`cifnet_pl.heads.base.Head` calls them with checked arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from cifnet_pl.heads.abilities import Abilities
from cifnet_pl.heads.labels import LabelSpace
from cifnet_pl.statistics import Choice


class Hooks(Abilities, LabelSpace, ABC):
    """The methods specific to a head. ``columns`` (n,) are the positions of the samples' classes in ``labels``."""

    @abstractmethod
    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        """Make room for ``new`` classes."""

    @abstractmethod
    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        """Add checked samples; ``columns`` are positions in ``labels``."""

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        """Add checked samples of earlier classes."""

    def _note_copies(self, count: int) -> None:
        """Count ``count`` of the samples as copies of others; for a head that chooses a ridge by their number."""

    @abstractmethod
    def _solve(self) -> None:
        """Bring the weights up to date."""

    @abstractmethod
    def _scores(self, z: Tensor) -> Tensor:
        """Return the scores of checked embeddings."""

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes; for a head that ``reduces``."""
        raise NotImplementedError

    def _leave_one_out(self, z: Tensor, columns: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the scores of checked samples without their groups (n,), or each without itself.

        Only for a head that ``leaves_one_out``.
        """
        raise NotImplementedError

    def note_names(self, names: Mapping[int, str]) -> None:
        """Take note of the names of the next task's classes before it begins; a no-op if no argument names a class.

        Args:
            names: label → name.
        """

    def about_remembering(self, names: Sequence[str]) -> str | None:
        """Return a note for the user about the memory that remembered classes take; None if there is nothing to say.

        Args:
            names: of all classes of the run.

        Raises:
            UsageError: an argument names a class that is not one of them.
        """
        return None

    def share_of(self, label: int) -> Any:
        """Return a head of the same settings that has learned the samples of one class alone.

        Subtracting it equals subtracting a head that was shown the samples again.

        Args:
            label: of the class.

        Returns:
            The head; None if these sums are not kept.
        """
        return None

    def decide(self, z: Tensor, y: Tensor) -> None:
        """Choose how to score by the leave-one-out scores of stored samples, before they are calibrated.

        A no-op for a head with nothing to choose (``decides``).

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.
        """

    def _merge(self, other: Any) -> None:
        """Add the statistics of a head of the same class and settings; for a head that ``merges``."""
        raise NotImplementedError

    def _subtract(self, other: Any) -> None:
        """Take the statistics of a head of the same class and settings out; for a head that ``subtracts``."""
        raise NotImplementedError

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores of a solved head as a function of (n, d) embeddings, without branches on values.

        Unchecked: for graphs (ONNX). A head whose ``_scores`` looks at tensors to decide what to do overrides this.
        """
        return self._scores

    def choices(self) -> list[Choice]:
        """Return the ridges of the last solve, the same ones at each solve first; empty for a head that has none."""
        return []

    @abstractmethod
    def _discard(self) -> None:
        """Forget what was observed since the last solve."""

    @abstractmethod
    def _keep(self, columns: Tensor) -> None:
        """Drop all classes but those at ``columns``, and their weights."""

    @abstractmethod
    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks, by component (as in the paper's tab:memory_breakdown)."""

    @abstractmethod
    def class_counts(self) -> dict[int, int]:
        """Return the number of distinct samples seen of each class, by label; samples not yet solved included."""
