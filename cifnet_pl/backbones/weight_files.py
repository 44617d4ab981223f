"""Read the tensors of a checkpoint of any framework, by the names that a network gives them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CheckpointError, UsageError, explained
from cifnet_pl.utilities.files import refuse_pointer

PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
    "network.",
    "net.",
    "backbone.",
    "trunk.",
    "encoder.",
    "encoder_q.",
    "base_encoder.",
    "online_encoder.",
    "teacher.",
)
"""Prefixes that training frameworks put before a network's names; stripped repeatedly.

Of frameworks that train two copies of a network, only those of the copy that is meant to be used.
"""

STATE_KEYS = (
    "state_dict",
    "model",
    "model_state_dict",
    "teacher",
    "student",
    "network",
    "net",
    "backbone",
    "encoder",
)
"""Keys under which frameworks store a state dict inside a checkpoint, the likelier first."""


def match_names(
    stored: Mapping[str, Tensor],
    names: Collection[str],
) -> dict[str, Tensor]:
    """Rename stored tensors as a network names them, with as few prefixes stripped as possible.

    Names that fit nothing are left out. A name of the network may itself begin with one of
    ``PREFIXES``, such as ``encoder.`` in a vision transformer.

    Args:
        stored: tensors by the names of any training framework.
        names: of the network's tensors.

    Returns:
        Name in the network → tensor.

    Raises:
        CheckpointError: two tensors fit the same name, so that the network is ambiguous.

    Example:
        >>> match_names({"module.encoder_q.conv1.weight": torch.ones(1)}, ["conv1.weight"])
        {'conv1.weight': tensor([1.])}
    """
    key_of: dict[str, str] = {}
    for key in stored:
        name = _stripped(key, names)
        if name is None:
            continue
        if name in key_of:
            raise CheckpointError(
                f"the file holds two networks, {key_of[name]} and {key} both fit {name}: save one"
            )
        key_of[name] = key
    return {name: stored[key] for name, key in key_of.items()}


def _stripped(key: str, names: Collection[str]) -> str | None:
    """Strip prefixes from a stored name until it is one of the network; None if it never is."""
    name = key
    while name not in names:
        fitting = [prefix for prefix in PREFIXES if name.startswith(prefix)]
        if not fitting:
            return None
        name = name.removeprefix(fitting[0])
    return name


def load_tensors(path: Path, map_location: Any = "cpu") -> Any:
    """Read a file of torch without executing anything from it.

    Args:
        path: the file.
        map_location: device for the tensors, as for ``torch.load``.

    Raises:
        CheckpointError: the file holds more than tensors and plain containers.
        Exception: any other one on a damaged file.
    """
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        if "Weights only load failed" not in str(error):
            raise
        # torch's own message advises to execute the file, with escape codes for a terminal in it.
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint: it holds more than tensors and plain"
            " containers, such as a whole module, and loading these would execute code from the"
            " file; save the module's state_dict()"
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, which is a state dict or holds one; execute no code.

    Args:
        path: a file of torch or safetensors.

    Returns:
        Name → tensor.

    Raises:
        UsageError: the file does not exist.
        CheckpointError: the file cannot be read, or holds more than tensors.
    """
    if not path.is_file():
        raise UsageError(f"checkpoint {path} does not exist")
    with explained(CheckpointError, f"cannot read {path}"):
        refuse_pointer(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = load_tensors(path)
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, expected a dictionary of tensors"
        )
    state = _inner_state(content)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _inner_state(content: dict[str, Any]) -> dict[str, Any]:
    """Return the innermost state dict of a checkpoint."""
    for key in STATE_KEYS:
        inner = content.get(key)
        if isinstance(inner, dict):
            return _inner_state(inner)
    return content
