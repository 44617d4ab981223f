"""Check tensors that come from a file: whether they are those of a head or a buffer, before and after loading."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.heads.samples import Samples
from cifnet_pl.heads.shapes import as_stored_now, fits
from cifnet_pl.model.photo_hashes import PhotoHashes
from cifnet_pl.utilities.errors import CheckpointError, CifnetError
from cifnet_pl.utilities.text import first_line, printable

Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(
    head: Head, buffer: CalibrationBuffer | None, tasks: Sequence[int], shapes: Shapes, where: str
) -> None:
    """Compare the shapes in a file with those that a head and a buffer expect.

    Args:
        head: an empty head with the settings of the file.
        buffer: an empty buffer, or None.
        tasks: number of classes of each task.
        shapes: name of each stored tensor → its shape.
        where: what an error calls the file.

    Raises:
        CheckpointError: a tensor too many or too few, or of another shape.
    """
    shapes = as_stored_now(shapes)
    expected = {f"head.{name}": sizes for name, sizes in head.expected_shapes(tasks).items()}
    for name, sizes in expected.items():
        if not fits(shapes.get(name, (-1,)), sizes):
            raise CheckpointError(
                f"{where} is damaged or of another version: tensor {name} has shape {shapes.get(name)}, which "
                f"{sum(tasks)} classes in {len(tasks)} tasks and an embedding of width {head.in_features} do not have"
            )
    if buffer is not None:
        expected |= {f"buffer.{name}": () for name in buffer.state_dict()}
    if any(name.startswith("photos.") for name in shapes):
        expected |= {f"photos.{name}": () for name in PhotoHashes().state_dict()}
    # Empty tensors hold nothing: older versions stored some that their head had no use for.
    empty = {name for name, shape in shapes.items() if name.startswith("head.") and not math.prod(shape)}
    foreign = sorted(set(shapes) - set(expected) - empty)
    if foreign:
        raise CheckpointError(f"{where} holds a tensor '{printable(foreign[0][:60])}' that its head does not have")


def load_part(
    module: Head | CalibrationBuffer | PhotoHashes, prefix: str, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Load the tensors whose names begin with ``prefix``.

    Args:
        module: it is changed in place.
        prefix: of the names of its tensors, with the dot.
        tensors: of the whole file.
        where: what an error calls the file.

    Raises:
        CheckpointError: one is not a dense, finite tensor whose memory is all there, or of another dtype.
    """
    state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    for key, value in state.items():
        if not _is_plain(value):
            raise CheckpointError(f"{where} holds '{printable(key)}', which is not a whole tensor of finite numbers")
    try:
        module.load_state_dict(state, strict=True)
    except CifnetError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    except Exception as error:  # tensors from outside can make loading fail in many ways
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{where} does not fit a {type(module).__name__}: {reason}") from error
    for key, value in module.state_dict().items():
        if value.dtype != state[key].dtype:
            raise CheckpointError(f"{where} holds '{key}' in {state[key].dtype}, expected {value.dtype}")


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, finite and complete: a view could claim any size, NaN would spread."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
        and bool(torch.isfinite(tensor).all())
    )


def check_head(head: Head, tasks: Sequence[int], where: str, solved: bool = True) -> None:
    """Check the numbers of a loaded head: whether it is solved, and scores its classes.

    Args:
        head: the loaded head.
        tasks: number of classes of each task.
        where: what an error calls the file.
        solved: whether it must be solved.

    Raises:
        CheckpointError: they do not fit together.
    """
    if solved != bool(head.solved) or bool(head.under_way):
        raise CheckpointError(f"{where} was stored in the middle of a task: go on with that run, then store it")
    classes, numbers = sum(tasks), head.task_of.tolist()
    in_order = numbers == [k for k, size in enumerate(tasks) for _ in range(size)]
    if len(set(head.classes)) < classes or not in_order:
        raise CheckpointError(f"{where} is damaged: the labels or tasks of its classes are not in order")
    if not float(head.temperature) > 0:
        raise CheckpointError(f"{where} is damaged: its temperature is {float(head.temperature):g}")
    for module in head.modules():
        if isinstance(module, Samples):
            same = len(module.z) == len(module.y) == len(module.weight)
            if not same or not set(module.y.tolist()) <= set(head.classes):
                raise CheckpointError(f"{where} is damaged: its samples are not all of classes that it knows")
    if not solved:
        if min(head.class_counts().values()) < 0:
            raise CheckpointError(f"{where} is damaged: it has a class with fewer than no samples")
        return
    try:
        counts = head.class_counts()
        scores = head(torch.zeros(1, head.in_features))
    except Exception as error:  # numbers that do not go together fail wherever they meet first
        raise CheckpointError(f"{where} is damaged: its tensors do not go together ({first_line(error)})") from error
    if min(counts.values()) < 1:
        raise CheckpointError(f"{where} is damaged: it has a class without photos")
    if scores.shape != (1, classes) or not torch.isfinite(scores).all():
        raise CheckpointError(f"{where} is damaged: its head does not give {classes} finite scores")


def check_buffer(buffer: CalibrationBuffer, head: Head, where: str) -> None:
    """Check the tensors of a loaded buffer, among themselves and against the head.

    Args:
        buffer: the loaded buffer.
        head: the loaded head.
        where: what an error calls the file.

    Raises:
        CheckpointError: they do not fit together.
    """
    z, y = buffer.items()
    whole = len(z) == len(y) == len(buffer.key) and z.is_floating_point()
    if not whole or (len(z) and z.shape[1] != head.in_features):
        raise CheckpointError(f"{where} is damaged: the parts of its buffer do not go together")
    if not set(y.tolist()) <= set(head.classes):
        raise CheckpointError(f"{where} is damaged: its buffer holds classes that the head does not know")
