"""Read weight files of any training framework without executing anything, and match their names to a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.text import first_line

PREFIXES = (
    *("module.", "_orig_mod.", "model.", "network.", "net.", "backbone.", "trunk.", "encoder.", "encoder_q."),
    *("base_encoder.", "online_encoder.", "teacher."),
)
"""Prefixes that training frameworks put before a network's names, stripped repeatedly.

Of frameworks that train two copies of a network, only those of the copy that is meant to be used.
"""


def match_names(stored: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Rename stored tensors as a network names them, with as few of ``PREFIXES`` stripped as possible.

    Names that fit nothing are left out. A name of the network may itself begin with a prefix (``encoder.`` in a vision
    transformer).

    Args:
        stored: tensors by the names of any training framework.
        names: of the network's tensors.

    Returns:
        Name of the network → tensor.

    Raises:
        CheckpointError: two tensors fit the same name, so that it is not clear which network is meant.

    Example:
        >>> match_names({"module.encoder_q.conv1.weight": torch.ones(1)}, ["conv1.weight"])
        {'conv1.weight': tensor([1.])}
    """
    keys: dict[str, str] = {}
    for key in stored:
        name: str | None = key
        while name is not None and name not in names:
            prefix = next((p for p in PREFIXES if name.startswith(p)), None)
            name = name[len(prefix) :] if prefix else None
        if name is None:
            continue
        if name in keys:
            raise CheckpointError(
                f"the checkpoint holds two networks, {keys[name]} and {key} both fit {name}: save one of them alone"
            )
        keys[name] = key
    return {name: stored[key] for name, key in keys.items()}


def fill(network: nn.Module, stored: Mapping[str, Tensor], source: str) -> None:
    """Load all tensors of a network.

    Args:
        network: it is changed in place.
        stored: tensors by the names of any training framework.
        source: name of the file or weights, for errors.

    Raises:
        CheckpointError: tensors are missing or of another shape.
    """
    parameters = network.state_dict()
    matched = match_names(stored, parameters)
    counters = {k for k in parameters if k.endswith("num_batches_tracked")}  # unused in evaluation mode
    missing = sorted(parameters.keys() - counters - matched.keys())
    unlike = sorted(k for k in matched if matched[k].shape != parameters[k].shape)
    if missing or unlike:
        listed = ", ".join((missing + unlike)[:10]) + (", …" if len(missing + unlike) > 10 else "")
        raise CheckpointError(
            f"{source} does not fill the network: {len(missing)} tensors missing and {len(unlike)} of another shape, "
            f"of {len(parameters)} ({listed})"
        )
    network.load_state_dict(parameters | matched)


NESTED = ("state_dict", "model", "model_state_dict", "teacher", "student", "network", "net", "backbone", "encoder")
"""Keys under which training frameworks store a state dict inside a checkpoint, the likelier first."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, which is a state dict or holds one; never execute code from it.

    Args:
        path: a file of torch or safetensors.

    Returns:
        Name → tensor.

    Raises:
        UsageError: there is no such file.
        CheckpointError: it cannot be read, or holds more than tensors.
    """
    if not path.is_file():
        raise UsageError(f"checkpoint {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any parser may fail in its own way on a damaged or hostile file
        # torch's own advice is to execute the file, with escape codes for a terminal in it.
        objects = "Weights only load failed" in str(error)
        reason = "it holds more than tensors: save the module's state_dict()" if objects else first_line(error)
        raise CheckpointError(f"cannot read {path}: {type(error).__name__}: {reason}") from error
    while isinstance(content, dict):
        inner = next((content[key] for key in NESTED if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {k: v for k, v in content.items() if isinstance(v, Tensor)}
        content = inner
    raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
