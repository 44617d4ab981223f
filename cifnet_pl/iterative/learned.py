"""Make a model of what a trained method has learned, so that it is exported, asked and extended
like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.onnx_graphs import natural_images
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head, NCMHead, SGDHead
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.bundle import Event, now
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.utilities.errors import CifnetError


def learned_name(structure: str, name: str, architecture: str | None) -> str:
    """Return the name of the backbone that a network is after learning, which needs no other file
    than the model's.

    Args:
        structure: one of :func:`cifnet_pl.backbones.structures.structured`.
        name, architecture: of the backbone that learning began with.
    """
    family, _, rest = name.partition(":")
    if family == "file":
        start = f"random:{architecture}"
    elif family == "timm":
        start = f"random:timm:{rest}"
    elif family == "torchvision":
        start = f"random:{rest.partition('.')[0].removesuffix('_Weights').lower()}"
    else:
        start = name
    return f"learned:{structure}:{start}"


def frozen_backbone(
    structure: str,
    network: nn.Module,
    start: Backbone,
    embed: Callable[[Tensor], Tensor],
) -> Backbone:
    """Return a learned network as a frozen backbone.

    Args:
        structure: of the network.
        network: that has learned.
        start: the backbone that learning began with.
        embed: function from uint8 images (n, 3, s, s) to the embeddings (n, d) that the method
            itself uses.

    Raises:
        CifnetError: they are not the same.
    """
    backbone = build_backbone(learned_name(structure, start.name, start.architecture))
    backbone.load_weights(
        {key: value.cpu() for key, value in network.state_dict().items()}
    )
    images = natural_images(start.preprocessing.image_size)
    device = next(
        iter(network.state_dict().values()), images
    ).device  # a network may have no weights
    ours = backbone.embed(images)
    theirs = embed(images.to(device)).cpu()
    if ours.shape != theirs.shape or not torch.allclose(
        ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())
    ):
        raise CifnetError("learned_network() does not embed as features() does")
    return backbone


def linear_head(
    classifier: nn.Linear, tasks: list[list[int]], counts: list[int]
) -> Head:
    """Return a head that scores as a linear classifier does.

    Args:
        classifier: of embeddings (n, d), a row for each class.
        tasks: labels of each task, in the order of the rows.
        counts: number of images learned of each class.
    """
    head = SGDHead(classifier.in_features)
    weights = torch.cat([classifier.bias[None], classifier.weight.T]).detach().cpu()
    state = {
        **head.state_dict(),
        "labels": torch.tensor([label for task in tasks for label in task]),
        "task_of": torch.tensor([k for k, task in enumerate(tasks) for _ in task]),
        "counts": torch.tensor(counts),
        "weights": weights.to(head.dtype),
    }
    head.load_state_dict(state)
    return head


def learned_model(
    module: TaskModule,
    backbone: Backbone,
    classifier: nn.Linear | None,
    exemplars: tuple[Tensor, Tensor, Tensor],
) -> Classifier:
    """Return a model of a learned network, with its linear classifier or the nearest mean of its
    exemplars.

    Args:
        module: that has learned, attached to its Trainer.
        backbone: the network, frozen.
        classifier: on the network's embeddings; None for the nearest mean of exemplars (iCaRL,
            algorithm 1).
        exemplars: embeddings (n, d), labels (n,) and content hashes (n,) of the images that were
            kept.
    """
    images: dict[str, Any] = module.data.describe_images(module.backbone.preprocessing)
    z, y, key = (part.cpu() for part in exemplars)
    sizes = [len(names) for names in module.learned_tasks]
    tasks = [part.tolist() for part in torch.split(torch.arange(sum(sizes)), sizes)]
    hashes = ImageHashes()
    if classifier is not None:
        source = module.data.source
        rows = np.concatenate([module.data.task_rows(k) for k in range(len(tasks))])
        label_of = {name: label for label, name in enumerate(module.class_names)}
        learned = np.array(
            [
                label_of[source.class_names[place]]
                for place in source.train.labels[rows].tolist()
            ]
        )
        hashes.add(learned, source.train.hashes(rows))
        head: Head = linear_head(
            classifier, tasks, np.bincount(learned, minlength=sum(sizes)).tolist()
        )
        buffer = CalibrationBuffer(len(y)) if len(y) else None
    else:
        head = NCMHead(backbone.features)
        buffer = None
    model = Classifier(
        backbone,
        head,
        buffer,
        list(module.class_names) if classifier is not None else [],
        images["image_size"],
        images["crop_ratio"],
        tuple(images["held_out"]) if images["held_out"] else None,
        precision=str(module.trainer.precision),
        images=hashes,
        engines=["torch"],
    )
    if classifier is None:
        # A class's direction is that of the mean of vectors of length 1; their length is that of
        # embeddings.
        z = functional.normalize(z, dim=1) * z.norm(dim=1).mean()
        for names, labels in zip(module.learned_tasks, tasks, strict=True):
            mine = torch.isin(y, torch.tensor(labels))
            model.begin_task(names)
            model.observe(z[mine], y[mine], key[mine])
            model.finish_task()
        head.temperature.fill_(0.5)  # −‖φ − μ‖² = 2φ·μ − 2 is twice the cosine
    elif buffer is not None:
        buffer.add(z, y, key)
        buffer.commit()
    for names in module.learned_tasks:
        known = sum(len(event.class_names or []) for event in model.history) + len(
            names
        )
        learned_from = sum(model.counts[name] for name in names)
        model.history.append(
            Event("task", known, learned_from, date=now(), class_names=list(names))
        )
    return model
