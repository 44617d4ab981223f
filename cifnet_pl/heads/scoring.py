"""Score embeddings: probabilities, labels, and what the scores of learned samples would be without them."""

from __future__ import annotations

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import check_samples
from cifnet_pl.heads.exactness import exact
from cifnet_pl.heads.novelty import NoveltyHead
from cifnet_pl.utilities.errors import CifnetError, UsageError, check_embeddings


class ScoringHead(NoveltyHead):
    """The predictions of a head that has learned; :class:`cifnet_pl.heads.Head` adds the learning."""

    dtype: torch.dtype
    temperature: Tensor

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
        if not len(self.labels) or not self.solved:
            raise CifnetError("the head is not solved: call solve() after observe()")
        with torch.autocast(z.device.type, enabled=False):
            return self._scores(z)

    def probabilities(self, z: Tensor) -> Tensor:
        """Return the softmax of the scores divided by ``temperature``.

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n, C) float64, columns as in ``classes``.
        """
        return torch.softmax(self(z) / self.temperature, dim=1)

    def predict(self, z: Tensor) -> Tensor:
        """Return the labels with the largest score.

        Args:
            z: (n, d) float embeddings.

        Returns:
            (n,) int64.
        """
        return self.labels[self(z).argmax(dim=1)]

    @exact
    def leave_one_out(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> Tensor:
        """Score learned samples, each as if that one, or all of its group, had never been learned: (n, C) float64.

        For ridge regression this needs no second solve: with h the share of a sample's target y in its own score,
        ``(score − h·y)/(1 − h)`` is exact at the same ridge. A burst of photos tests nothing if only one is left out:
        give its photos the same group.

        Args:
            z: (n, d) embeddings of samples that were observed once, with weight 1, in their class's task, and that
                were among the calibration samples of every later task where the head uses those.
            y: (n,) int64 labels.
            groups: (n,) int64, equal for samples that are left out together; None to leave out each alone.

        Returns:
            NaN where nothing would be known without the sample or its group, such as the only one of all.

        Raises:
            UnsupportedError: this head has no closed form for it, or cannot tell the weight of a sample.
            CifnetError: the head is not solved, or embeddings of another width.
        """
        self.require("leaves_one_out")
        check_samples(z, y, None, self.in_features)
        if not len(self.labels) or not self.solved:
            raise CifnetError("the head is not solved: call solve() after observe()")
        if groups is not None and groups.shape != y.shape:
            raise UsageError(
                f"leave_one_out got {tuple(groups.shape)} groups, expected one for each of {len(y)} samples"
            )
        z, columns = z.to(self.dtype), self._columns(y)
        if groups is None or len(torch.unique(groups)) == len(groups):
            return self._leave_one_out(z, columns).double()
        return self._leave_one_out(z, columns, groups).double()
