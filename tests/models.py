"""Small learned models in plain torch, and bundles with forged content."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.model.bundle import CONFIG, Event
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.task_learner import observe_buffer
from tests.heads import suite

SIDE = 2
WIDTH = 3 * SIDE**2

MAKERS: dict[str, Callable[[], Head]] = {
    name: partial(make, WIDTH) for name, make in suite.MAKERS.items()
}
"""Every head, and every setting that changes which tensors it keeps."""

TASKS = [["ant", "bee"], ["cat"], ["dog", "elk", "fox"]]


def learn_digits(
    head: Head, buffer: CalibrationBuffer, z: torch.Tensor, y: torch.Tensor
) -> None:
    """Learn five tasks of two digits; the buffer is observed and filled after each."""
    for k in range(5):
        rows = (y // 2 == k).nonzero().flatten()
        head.begin_task([2 * k, 2 * k + 1])
        head.observe(z[rows], y[rows])
        buffer.add(z[rows], y[rows], rows)
        observe_buffer(head, buffer)
        buffer.commit()
        head.solve()


def samples(
    names: Sequence[str], count: int = 7, seed: int = 0
) -> tuple[Tensor, list[str], Tensor]:
    """(n, d) embeddings of well separated classes, their names, and a key each."""
    z = []
    own = []
    keys = []
    for name in names:
        number = int.from_bytes(name.encode("utf-8", "surrogateescape"), "big")
        draw = torch.Generator().manual_seed(seed + number % 2**31)
        centre = 3 * torch.randn(WIDTH, generator=draw)
        z.append(centre + 0.5 * torch.randn(count, WIDTH, generator=draw))
        own += [name] * count
        keys += torch.randint(0, 2**62, (count,), generator=draw).tolist()
    return torch.cat(z), own, torch.tensor(keys)


def empty(head: str = "cifnet", capacity: int = 12) -> Classifier:
    """A model that knows nothing, on pixels of images of 2 × 2."""
    made = MAKERS[head]()
    buffer = (
        CalibrationBuffer(capacity) if made.uses_buffer or made.selects_rule else None
    )
    return Classifier(
        build_backbone(f"pixels:{SIDE}"), made, buffer, [], SIDE, 1.0, (0.2, 0)
    )


def learn_embeddings(
    model: Classifier,
    names: Sequence[str],
    z: Tensor,
    y: Tensor,
    keys: Tensor | None = None,
    groups: Tensor | None = None,
) -> Classifier:
    """Learn one more task of (n, d) embeddings and labels; keys are positions if none are given."""
    model.begin_task(names)
    model.observe(z, y, torch.arange(len(y)) if keys is None else keys, groups)
    model.finish_task()
    return model


def learn_task(
    model: Classifier, names: Sequence[str], count: int = 7, seed: int = 0
) -> Classifier:
    """Learn one more task of synthetic embeddings."""
    z, class_of, keys = samples(names, count, seed)
    model.begin_task(names, [count] * len(names))
    model.observe(z, torch.tensor(model.labels(class_of)), keys)
    model.finish_task()
    model.history.append(Event("task", len(model.class_names), None, 90.0, seconds=0.1))
    return model


def learned(
    head: str = "cifnet", tasks: Sequence[Sequence[str]] = TASKS, seed: int = 0
) -> Classifier:
    """A model that has learned a few classes."""
    model = empty(head)
    for names in tasks:
        learn_task(model, names, seed=seed)
    return model


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def config_of(bundle: Path) -> dict[str, Any]:
    """The content of ``config.json``."""
    return json.loads((bundle / CONFIG).read_text())


def tensors_of(bundle: Path) -> dict[str, Tensor]:
    """The tensors of a bundle."""
    (path,) = bundle.glob("tensors-*.safetensors")
    return load(path.read_bytes())


def forge(
    bundle: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor] | bytes | None = None,
) -> None:
    """Replace the content of a bundle, with correct checksums, as an attacker can."""
    if tensors is not None:
        for old in bundle.glob("tensors-*.safetensors"):
            old.unlink()
        if isinstance(tensors, bytes):
            content = tensors
        else:
            content = save({k: v.contiguous() for k, v in tensors.items()})
        digest = hashlib.sha256(content).hexdigest()
        (bundle / f"tensors-{digest[:16]}.safetensors").write_bytes(content)
        config = {**config, "tensors": {"sha256": digest, "bytes": len(content)}}
    unsigned = {key: value for key, value in config.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(unsigned, sort_keys=True).encode()).hexdigest()
    (bundle / CONFIG).write_text(json.dumps({**unsigned, "sha256": digest}))


def tensors_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether two models hold the same tensors, bit by bit."""
    return ours.keys() == theirs.keys() and all(
        torch.equal(value, theirs[key]) for key, value in ours.items()
    )
