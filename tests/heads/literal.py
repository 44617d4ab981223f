"""The paper's classifier word by word: one singular value decomposition for every class and every batch.

Slow, and shares no formula with the package: targets by a logit of clipped labels, the sigmoid's slope at each sample's
own target, oversampling by copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Batch = tuple[Array, Ints]


def paper_slope(target: Array) -> Array:
    """The sigmoid's derivative f(t)(1 − f(t)) at the logit t."""
    value = 1 / (1 + np.exp(-target))
    return value * (1 - value)


def released_slope(target: Array) -> Array:
    """What the released code computes: t(1 − t) of the logit itself."""
    return target * (1 - target)


SLOPES: dict[str, Callable[[Array], Array]] = {"derivative": paper_slope, "released": released_slope}


class Neuron:
    """Statistics (U, S, m) of one class."""

    def __init__(self, width: int):
        self.u, self.s, self.m = np.zeros((width, 0)), np.zeros(0), np.zeros(width)

    def update(self, z: Array, positive: NDArray[np.bool_], epsilon: float, slope: Callable[[Array], Array]) -> None:
        """Stages 1 and 2 for one batch, then eq:moment_update and eq:svd_update."""
        x = np.concatenate([np.ones((1, len(z))), z.T])
        clipped = np.clip(positive.astype(float), epsilon, 1 - epsilon)
        target = np.log(clipped / (1 - clipped))
        f = np.diag(slope(target))
        u, s, _ = np.linalg.svd(x @ f, full_matrices=False)
        self.m = self.m + x @ f.T @ f @ target
        self.u, self.s, _ = np.linalg.svd(np.concatenate([self.u * self.s, u * s], axis=1), full_matrices=False)

    def weights(self, ridge: float) -> Array:
        """Stage 3, eq:weights_rrls."""
        return self.u @ np.diag(1 / (self.s**2 + ridge)) @ self.u.T @ self.m


class LiteralCIFNet:
    """All neurons, and who sees what: Algorithm 1 of the paper."""

    def __init__(self, features: int, ridge: float, epsilon: float, update_past: bool, weighting: str):
        self.features, self.ridge, self.epsilon, self.update_past = features, ridge, epsilon, update_past
        self.slope = SLOPES[weighting]
        self.neurons: dict[int, Neuron] = {}

    def learn_task(self, classes: Sequence[int], batches: Sequence[Batch], buffer: Batch, copies: Ints) -> None:
        """Learn one task; sample i of the buffer comes ``copies[i]`` times, to the new neurons only."""
        if self.update_past:
            self._show(list(self.neurons), batches)
        for label in classes:
            self.neurons[label] = Neuron(self.features + 1)
        oversampled = (np.repeat(buffer[0], copies, axis=0), np.repeat(buffer[1], copies))
        self._show(classes, [*batches, oversampled])

    def _show(self, labels: Sequence[int], batches: Sequence[Batch]) -> None:
        for z, y in batches:
            for label in labels if len(z) else []:
                self.neurons[label].update(z, y == label, self.epsilon, self.slope)

    def weights(self) -> Array:
        """(d+1, C), columns in the order in which the classes were learned."""
        return np.stack([neuron.weights(self.ridge) for neuron in self.neurons.values()], axis=1)
