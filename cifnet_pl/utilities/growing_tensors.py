"""Hash the tensors of a model, and load tensors into modules whose buffers grow with the classes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CheckpointError


def fingerprint(about: str, tensors: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 of a text and of tensors, on whatever device they are.

    Args:
        about: the text.
        tensors: name → tensor; names, dtypes and shapes count too, the order does not.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(about.encode())
    for key, tensor in sorted(tensors.items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class GrowingModule(nn.Module):
    """An ``nn.Module`` whose ``load_state_dict`` works into a fresh object with smaller (empty) buffers.

    ``.to(device, dtype)`` moves it but never changes a dtype: the dtype of sums is chosen when they are made, and a
    sum that was rounded once stays wrong.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return cast(Any, super())._apply(keep_dtype, recurse)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        state = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        self._before_load(state)
        for name, buffer in self._buffers.items():
            incoming = state.get(name)
            if buffer is None or not isinstance(incoming, Tensor):
                continue
            if incoming.ndim != buffer.ndim or incoming.is_floating_point() != buffer.is_floating_point():
                raise CheckpointError(
                    f"stored tensor '{prefix}{name}' has shape {tuple(incoming.shape)} and dtype {incoming.dtype}, "
                    f"expected {buffer.ndim} dimensions of {buffer.dtype}: the file is of another model or damaged"
                )
            self._buffers[name] = buffer.new_zeros(incoming.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        """Create the children that ``state`` (this module's part of the state, without prefix) has tensors for."""
