"""A device that is not there: tensors that say they are on a GPU, for machines without one.

What they hold is in the CPU's memory. As on a GPU, an operation of tensors on two devices fails,
and so does NumPy; so code that works here puts every tensor where it belongs. What is left to a
real GPU: its rounding, autocast, streams (hence a backward pass), pinned memory, and processes that
talk through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from cifnet_pl.backbones import engines

DEVICE = torch.device("cuda", 0)

DRIVER: dict[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "set_device": lambda device: None,
    "get_device_name": lambda device=None: "a simulated GPU",
    "get_device_capability": lambda device=None: (9, 0),
    "is_bf16_supported": lambda *args, **kwargs: True,
    "empty_cache": lambda: None,
    "synchronize": lambda device=None: None,
    "Event": mock.Mock,
    "current_stream": lambda device=None: mock.Mock(query=lambda: True),
}
"""What the driver says to Lightning and to the package."""

aten = torch.ops.aten
MAY_MIX = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put_.default,
}
"""Operations that a GPU too does with tensors elsewhere: copies, and indices on the CPU."""


WITHOUT_FLOAT64: list[bool] = []
"""Not empty where the device has no float64, as Apple's MPS."""

WAITS: list[str] = []
"""Operations so far for which a GPU must finish all that it was told to do."""

READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
}
"""Operations whose result, or its size, must be known on the CPU."""


class There(Tensor):
    """A tensor on ``DEVICE``; ``held`` is what it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        if WITHOUT_FLOAT64 and held.dtype == torch.float64:
            raise TypeError("Cannot convert a simulated tensor to float64 dtype")
        shape = held.shape
        stride = held.stride()
        offset = held.storage_offset()
        made: There = Tensor._make_wrapper_subclass(
            cls, shape, stride, offset, dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(operator, args, kwargs or {})

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"There({self.held!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """Copied to the CPU, as of any tensor."""
        WAITS.append("tolist")
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        """Refused, as by a GPU's tensor."""
        raise TypeError("no numpy of a tensor on the simulated device: use .cpu()")


@contextmanager
def gpu() -> Iterator[torch.device]:
    """Give the GPU of this machine, where tests may see one, else the simulated one."""
    if torch.cuda.is_available():
        yield DEVICE
    else:
        with simulated_device() as device:
            yield device


@contextmanager
def device_without_float64() -> Iterator[torch.device]:
    """While entered, the simulated device exists, and refuses float64."""
    WITHOUT_FLOAT64.append(True)
    try:
        with simulated_device() as device:
            yield device
    finally:
        WITHOUT_FLOAT64.clear()


@contextmanager
def simulated_device() -> Iterator[torch.device]:
    """While entered, ``DEVICE`` exists in this thread.

    No network can be exported meanwhile, whether or not its graph is kept already: torch's exporter
    asks the driver for more than there is here.
    """
    if not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        pytest.skip("this version of torch cannot simulate a device")
    torch._C._ensureCUDADeviceGuardSet()
    _configure(True)
    error = AssertionError("torch embeds by a network where a device is simulated")
    refused = mock.Mock(side_effect=error)
    try:
        with (
            mock.patch.multiple(torch.cuda, **DRIVER),
            mock.patch("torch.accelerator.set_device_index"),
            mock.patch.object(Tensor, "pin_memory", lambda tensor, device=None: tensor),
            mock.patch.object(engines, "graph_file", refused),
            _Mode(),
        ):
            yield DEVICE
    finally:
        _configure(False)


def _configure(simulated: bool) -> None:
    # torch.tensor(…, device=…) makes it here, and moves it.
    torch._C._set_only_lift_cpu_tensors(simulated)
    # Not .data, which would stay here.
    torch.__future__.set_overwrite_module_params_on_conversion(simulated)
    torch.backends.cudnn.enabled = not simulated  # operations that the CPU knows too


class _Mode(TorchDispatchMode):
    # torch then does not look for a driver.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        if has_kernel(operator.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode these arrive whole
                return operator.decompose(*args, **kwargs)
        holds = any(issubclass(kind, There) for kind in types)
        if holds or _is_there(kwargs.get("device")):
            return _run(operator, args, kwargs)
        return operator(*args, **kwargs)


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _run(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on what the tensors hold, and its results where they would be."""
    parts = tree_flatten((args, kwargs))[0]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    _check_devices(operator, tensors)
    device = kwargs.get("device")
    copied = operator is aten._to_copy.default and device is not None
    if operator in READS or (copied and not kwargs.get("non_blocking")):
        WAITS.append(str(operator))
    there = isinstance(tensors[0], There) if device is None else _is_there(device)
    if _is_there(device):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    parts, tree = tree_flatten((args, kwargs))
    known = {id(part.held): part for part in parts if isinstance(part, There)}
    own_args, own_kwargs = tree_unflatten(
        [part.held if isinstance(part, There) else part for part in parts], tree
    )
    with torch._C._DisableTorchDispatch():
        result = operator(*own_args, **own_kwargs)

    def wrapped(part: Any) -> Any:
        if not isinstance(part, Tensor) or id(part) in known:
            return known.get(id(part), part)
        with torch.inference_mode(False):
            if there:
                return There(part)
            return part

    return tree_map(wrapped, result)


def _check_devices(operator: Any, tensors: Sequence[Tensor]) -> None:
    if operator in MAY_MIX:
        mixed = operator is aten.index.Tensor and not isinstance(tensors[0], There)
    else:
        # Scalars may be anywhere.
        mixed = (
            len({isinstance(tensor, There) for tensor in tensors if tensor.ndim}) > 1
        )
    if mixed and any(isinstance(tensor, There) for tensor in tensors):
        devices = [str(tensor.device) for tensor in tensors]
        raise RuntimeError(f"{operator} of tensors on two devices: {devices}")
