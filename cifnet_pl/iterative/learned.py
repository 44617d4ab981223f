"""Make a model of what a trained method has learned, to be exported and extended like any other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.engines import natural_images
from cifnet_pl.buffer import BufferSamples, CalibrationBuffer
from cifnet_pl.heads import Head, NCMHead, SGDHead
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.bundle import Event, now
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.utilities.errors import CifnetError


def learned_name(structure: str, name: str, architecture: str | None) -> str:
    """Return the backbone's name of a network after learning, which needs no file of weights.

    Args:
        structure: one of :func:`cifnet_pl.backbones.structures.structured`.
        name, architecture: of the backbone that learning began with.

    Example:
        >>> learned_name("plain", "file:weights.pt", "resnet18")
        'learned:plain:random:resnet18'
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
        network: the network that has learned.
        start: the backbone that learning began with.
        embed: the method's own function from uint8 images (n, 3, s, s) to embeddings (n, d).

    Raises:
        CifnetError: the backbone embeds otherwise than the method.
    """
    backbone = build_backbone(learned_name(structure, start.name, start.architecture))
    state = network.state_dict()
    weights = {name: value.cpu() for name, value in state.items()}
    backbone.load_weights(weights)
    images = natural_images(start.preprocessing.image_size)
    device = images.device
    for value in state.values():
        device = value.device
    ours = backbone.embed(images)
    theirs = embed(images.to(device)).cpu()
    largest = float(theirs.abs().max())
    tolerance = 1e-2 * largest
    if ours.shape != theirs.shape or not torch.allclose(
        ours, theirs, rtol=1e-2, atol=tolerance
    ):
        raise CifnetError("learned_network() does not embed as features() does")
    return backbone


def linear_head(classifier: nn.Linear, sizes: list[int], counts: list[int]) -> Head:
    """Return a head with the scores of a linear classifier.

    Args:
        classifier: of embeddings (n, d), a row for each class.
        sizes: number of classes of each task, in the order of the rows.
        counts: number of images learned of each class.
    """
    head = SGDHead(classifier.in_features)
    weights = torch.cat([classifier.bias[None], classifier.weight.T])
    state = {
        **head.state_dict(),
        "labels": torch.arange(sum(sizes)),
        "task_of": torch.repeat_interleave(torch.tensor(sizes)),
        "counts": torch.tensor(counts),
        "weights": weights.detach().cpu().to(head.dtype),
    }
    head.load_state_dict(state)
    return head


def learned_model(
    module: TaskModule,
    backbone: Backbone,
    classifier: nn.Linear | None,
    exemplars: BufferSamples,
) -> Classifier:
    """Return a model of a learned network, with a linear classifier or the nearest mean.

    Args:
        module: has learned, and is attached to its Trainer.
        backbone: the network, frozen.
        classifier: linear classifier of the network's embeddings; None for the nearest mean of
            exemplars (iCaRL, algorithm 1).
        exemplars: embeddings, labels and content hashes of those of all classes.
    """
    if classifier is not None:
        model = _linear_model(module, backbone, classifier, exemplars)
    else:
        model = _nearest_mean_model(module, backbone, exemplars)
    module.prepare_model(model)
    model.engines = ["torch"]
    known = 0
    for names in module.learned_tasks:
        known += len(names)
        counts = [model.counts[name] for name in names]
        count = sum(counts)
        event = Event("task", known, count, date=now(), class_names=list(names))
        model.history.append(event)
    return model


def _linear_model(
    module: TaskModule,
    backbone: Backbone,
    classifier: nn.Linear,
    exemplars: BufferSamples,
) -> Classifier:
    """Return a model that predicts by a linear classifier."""
    source = module.data.source
    sizes = [len(names) for names in module.learned_tasks]
    learned = module.learned_tasks
    tasks = [module.data.task(k, learned) for k in range(len(learned))]
    rows = np.concatenate([task.rows for task in tasks])
    label_of = {name: label for label, name in enumerate(module.class_names)}
    labels_of_classes = [label_of.get(name, -1) for name in source.class_names]
    labels = np.array(labels_of_classes)[source.train.labels[rows]]
    hashes = ImageHashes()
    hashes.add(labels, source.train.hashes(rows))
    head = linear_head(classifier, sizes, np.bincount(labels).tolist())
    buffer = None
    if len(exemplars.y):
        buffer = CalibrationBuffer(len(exemplars.y))
        buffer.add(*exemplars)
        buffer.commit()
    names = list(module.class_names)
    return Classifier(backbone, head, buffer, names, images=hashes)


def _nearest_mean_model(
    module: TaskModule, backbone: Backbone, exemplars: BufferSamples
) -> Classifier:
    """Return a model that predicts the class with the nearest mean of exemplars."""
    head = NCMHead(backbone.features)
    model = Classifier(backbone, head, images=ImageHashes())
    # Means are of vectors of length 1; the common factor keeps the scale of the embeddings.
    length = exemplars.z.norm(dim=1).mean()
    z = length * functional.normalize(exemplars.z, dim=1)
    end = 0
    for names in module.learned_tasks:
        start = end
        end += len(names)
        own = (exemplars.y >= start) & (exemplars.y < end)
        samples = BufferSamples(z, exemplars.y - start, exemplars.key)
        model.learn_embeddings(names, samples.at(own))
    model.head.temperature.fill_(0.5)  # −‖φ − μ‖² = 2φ·μ − 2 is twice the cosine
    return model
