"""Sums, means and rows over all processes, for losses that depend on more than the own images."""

from __future__ import annotations

from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from cifnet_pl.utilities.files import of_all_processes


class Processes:
    """The processes of a module's Trainer.

    Args:
        module: attached to a Trainer before anything is reduced.

    Attributes:
        share: weight of this process's mean loss in that of all processes, times their number; 1
            for one process.
    """

    def __init__(self, module: LightningModule):
        self._module = module
        self.share = 1.0

    @property
    def count(self) -> int:
        """Number of processes."""
        return self._module.trainer.world_size

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return self._module.trainer.global_rank

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; it may be changed in place."""
        if self.count == 1:
            return value
        return cast(
            Tensor, self._module.trainer.strategy.reduce(value, reduce_op="sum")
        )

    def set_share(self, samples: int) -> bool:
        """Set ``share`` for the next step.

        Args:
            samples: number of this process's samples in the step.

        Returns:
            Whether any process has samples.
        """
        own = torch.tensor(samples, device=self._module.device)
        total = int(self.sum(own))
        if total:
            self.share = samples * self.count / total
        return total > 0

    def gather(self, local: Tensor) -> Tensor:
        """Return the rows (n, …) of all processes, in the order of their ranks.

        Gradients flow back to each process. Divide a loss on these rows by ``share``, as each
        process computes all of it.
        """
        if self.count == 1:
            return local
        sizes = of_all_processes(len(local))
        lacking = max(sizes) - len(local)
        missing = local.new_zeros(lacking, *local.shape[1:])
        padded = torch.cat([local, missing])
        parts = cast(Any, all_gather)(padded)
        own_parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        return torch.cat(own_parts)

    def mean_where(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Return the mean of some values over all processes, 0 if there are none.

        Args:
            values: (n,).
            chosen: (n,) bool, which values count.
        """
        chosen_here = chosen.sum().float()
        chosen_count = float(self.sum(chosen_here))
        count = max(chosen_count, 1.0)
        scale = self.count / (self.share * count)
        return (values * chosen).sum() * scale

    def mean_loss(self, loss: Tensor) -> float:
        """Return the mean loss over all samples, from the mean loss of each process."""
        own = loss.detach() * self.share
        total = self.sum(own)
        return float(total) / self.count
