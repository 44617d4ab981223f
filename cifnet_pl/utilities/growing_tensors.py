"""Hash the tensors of a model, and load tensors into buffers that grow with the classes."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
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
        shape = tuple(tensor.shape)
        digest.update(f"{key} {tensor.dtype} {shape}".encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def chosen_device(device: torch.device | str | None) -> torch.device:
    """Return a device; for None the first GPU if there is one, else the CPU."""
    if device is None and torch.cuda.is_available():
        device = "cuda"
    return torch.device(device or "cpu")


def float64_device(device: torch.device) -> torch.device:
    """Return where what is computed in float64 for a device is kept.

    That is the device itself, or the CPU where it has no float64, as Apple's GPUs (``mps``).
    """
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except TypeError:
        return torch.device("cpu")
    return device


def moved(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return a tensor of statistics where ``fn`` moves one to, but with its own dtype.

    It goes to the CPU in place of a device without float64.
    """
    target = fn(torch.empty(0)).device
    return tensor.to(float64_device(target))


def state_of(state_dict: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the part of a state whose names begin with ``prefix``, without it."""
    own = [key for key in state_dict if key.startswith(prefix)]
    return {key.removeprefix(prefix): state_dict[key] for key in own}


def renamed(y: Tensor, labels: Mapping[int, int]) -> Tensor:
    """Return labels (n,) under their new names; ``labels`` is old label → new label."""
    return y.new_tensor([labels[label] for label in y.tolist()])


def no_rows(dtype: torch.dtype, *columns: int) -> Tensor:
    """Return a buffer (:class:`torch.nn.Buffer`) that has no rows yet, of shape (0, …)."""
    return nn.Buffer(torch.zeros(0, *columns, dtype=dtype))


def make_room(module: Any, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Give the buffers of a module the shapes of stored ones, so that those can be loaded.

    A hook that torch calls before it loads tensors into a module.

    Args:
        module: to load into, a :class:`GrowingModule` or a head; it creates the children that have
            tensors in the state itself (``_before_load``).
        state_dict: the state of the whole model.
        prefix: of the module's names in it.

    Raises:
        CheckpointError: a stored tensor differs in more than the number of its rows, or has another
            kind of numbers. A dimension of size 0 takes any size.
    """
    state = state_of(state_dict, prefix)
    module._before_load(state)
    for name, buffer in module.named_buffers(recurse=False):
        incoming = state.get(name)
        if not isinstance(incoming, Tensor):
            continue
        sizes = zip(incoming.shape[1:], buffer.shape[1:], strict=False)
        if (
            incoming.ndim != buffer.ndim
            or any(own not in (0, stored) for stored, own in sizes)
            or incoming.is_floating_point() != buffer.is_floating_point()
        ):
            incoming_shape = tuple(incoming.shape)
            raise CheckpointError(
                f"stored tensor '{prefix}{name}' has shape {incoming_shape} and dtype"
                f" {incoming.dtype}, expected {tuple(buffer.shape)} with any number of rows and"
                f" {buffer.dtype}: the file is of another model or backbone, or damaged"
            )
        setattr(module, name, buffer.new_zeros(incoming.shape))


class GrowingModule(nn.Module):
    """An ``nn.Module`` whose state loads into a fresh object with smaller (empty) buffers.

    ``.to(device, dtype)`` moves it but never changes a dtype: the dtype of sums is chosen when they
    are made, and a sum that was rounded once stays wrong. It stays on the CPU where the device has
    no float64.
    """

    def __init__(self) -> None:
        super().__init__()
        cast(Any, self).register_load_state_dict_pre_hook(make_room)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return cast(Any, super())._apply(partial(moved, fn), recurse)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        """Create the children that have tensors in ``state``, this module's part without prefix."""
