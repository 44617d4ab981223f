"""Hold the images, labels and keys that a trained method learns from in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """The images of one step in one process.

    Attributes:
        images: (n, 3, s, s) uint8.
        labels, keys: (n,) int64.
        seed: numbers that the random changes of the images depend on, besides their keys.
        prepare: function from images, their keys and a seed to the network's inputs (n, 3, s, s) float32.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    seed: tuple[int, ...]
    prepare: Callable[[Tensor, Tensor, Sequence[int]], Tensor]

    def inputs(self, view: int = 0) -> Tensor:
        """Return (n, 3, s, s) float32: the images augmented and normalised, in one of several random views.

        Args:
            view: which one, counted from 0; the same view has the same bits again.
        """
        return self.prepare(self.images, self.keys, (*self.seed, view))
