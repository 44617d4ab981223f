"""Keep a growing set of embeddings with labels and weights, for heads that need more than sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.growing_tensors import GrowingModule


class Samples(GrowingModule):
    """Embeddings in the order in which they came, until ``sort`` orders them by their values.

    Buffers:
        z: (n, d) embeddings, in the dtype given.
        y: (n,) int64 labels.
        weight: (n,) float64 sample weights.
    """

    z: Tensor
    y: Tensor
    weight: Tensor

    def __init__(self, width: int, dtype: torch.dtype):
        super().__init__()
        self.width = width
        self.register_buffer("z", torch.zeros(0, width, dtype=dtype))
        self.register_buffer("y", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("weight", torch.zeros(0, dtype=torch.float64))
        self._chunks: list[tuple[Tensor, Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self.y) + sum(len(chunk[1]) for chunk in self._chunks)

    def add(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Append copies of rows.

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.
            weight: (n,) weights, or None for ones.
        """
        ones = torch.ones(len(y), dtype=torch.float64, device=y.device)
        chunk = (z.detach().to(self.z.dtype, copy=True), y.clone(), ones if weight is None else weight.double())
        self._chunks.append(chunk)

    def gather(self) -> None:
        """Copy what was added since the last call into the buffers: one copy for many batches."""
        if self._chunks:
            parts = [(self.z, self.y, self.weight), *self._chunks]
            self.z, self.y, self.weight = (torch.cat(group) for group in zip(*parts, strict=True))
            self._chunks = []

    def take(self, other: Samples) -> None:
        """Append all rows of ``other``."""
        other.gather()
        device = self.y.device
        self.add(other.z.to(device), other.y.to(device), other.weight.to(device))
        self.gather()

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but those at ``rows``, a mask over gathered rows or positions of them."""
        self.z, self.y, self.weight = self.z[rows], self.y[rows], self.weight[rows]

    def keep_labels(self, labels: Tensor) -> None:
        """Drop all rows but those with one of ``labels``."""
        self.gather()
        self.keep(torch.isin(self.y, labels))

    def rename(self, new: Callable[[Tensor], Tensor]) -> None:
        """Rename all labels; ``new`` maps (n,) old ones to (n,) new ones."""
        self.gather()
        self.y = new(self.y)

    def clear(self) -> None:
        """Drop all rows."""
        self._chunks = []
        self.keep(self.y.new_zeros(0))

    def sort(self) -> None:
        """Order rows by their bytes: embedding first, then weight, then label.

        What is computed from them afterwards does not depend on batch order or size. The label comes last, so that it
        only decides between equal embeddings: renaming classes changes nothing else.
        """
        self.gather()
        columns = [self.z.double(), self.weight[:, None], self.y.view(torch.float64)[:, None]]
        content = torch.cat(columns, dim=1).cpu().contiguous().numpy()
        keys = content.view(np.dtype((np.void, content.shape[1] * content.itemsize))).ravel()
        self.keep(torch.from_numpy(np.argsort(keys, kind="stable")).to(self.y.device))

    def counts(self, labels: Tensor) -> Tensor:
        """Return (C,) int64 number of rows of each of ``labels`` (C,)."""
        self.gather()
        return (self.y[:, None] == labels).sum(dim=0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.gather()
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.gather()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        self._chunks = []
        stored = state.get("z")
        if isinstance(stored, Tensor) and stored.shape[1:] != (self.width,):
            raise CheckpointError(
                f"stored embeddings have shape {tuple(stored.shape)}, expected (n, {self.width}): "
                "they are of another backbone"
            )
