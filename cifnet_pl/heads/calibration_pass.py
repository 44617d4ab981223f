"""One pass over the calibration buffer, from which all leave-one-out scores are computed.

A pass is made of a solved head and of learned samples. It computes each expensive thing once, and
answers any number of questions then: scores without each sample, or without its group, for as many
groupings as are tried. The head keeps nothing of it. It is not the paper's neuron calibration,
which is :meth:`Head.observe_past`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from cifnet_pl.statistics import LeftOut


class CalibrationPass(ABC):
    """Leave-one-out scores for any grouping, with shared computations cached."""

    @abstractmethod
    def left_out(self, groups: Tensor | None) -> Tensor:
        """Return the leave-one-group-out scores (n, C) float64 of the samples.

        Args:
            groups: (n,) int64, equal for samples that are left out together; None to leave out each
                alone.

        Returns:
            NaN where nothing would be known without the sample or its group.
        """

    def approximately_left_out(self, groups: Tensor | None) -> Tensor:
        """Return the scores of :meth:`left_out`, or others nearly the same that cost less."""
        return self.left_out(groups)

    def at(self, rows: Tensor) -> CalibrationPass | None:
        """Return the pass over some of the samples; None where it would share nothing with this.

        Args:
            rows: (k,) int64 positions of the samples.
        """
        return None

    @abstractmethod
    def select(self, groups: Tensor | None) -> None:
        """Select the decision rule and ridge by leave-one-group-out likelihood.

        From then on :meth:`left_out` gives the scores of the head as selected. A no-op where the
        head has nothing to choose.

        Args:
            groups: as for :meth:`left_out`.
        """


class FixedRulePass(CalibrationPass):
    """Leave-one-out scores of a head that has nothing to select.

    Args:
        left_out: function from groups to scores.
    """

    def __init__(self, left_out: LeftOut):
        self._left_out = left_out

    def left_out(self, groups: Tensor | None) -> Tensor:
        """Return the scores of the function (see :meth:`CalibrationPass.left_out`)."""
        return self._left_out(groups).double()

    def select(self, groups: Tensor | None) -> None:
        """Select nothing: there is one rule."""
