"""Make a model of what a trained method has learned, to be exported and extended like any other."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.engines import natural_images
from cifnet_pl.backbones.registry import split_views
from cifnet_pl.buffer import BufferSamples, CalibrationBuffer, buffer_samples
from cifnet_pl.heads import NCMHead, SGDHead
from cifnet_pl.model.bundle import Event
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.utilities.errors import CifnetError, explained
from cifnet_pl.utilities.text import now


def learned_name(structure: str, name: str, architecture: str | None) -> str:
    """Return the backbone's name of a network after learning, which needs no file of weights.

    Args:
        structure: one of :func:`cifnet_pl.backbones.structures.structured`.
        name, architecture: of the backbone that learning began with.

    Example:
        >>> learned_name("plain", "file:weights.pt+mirror", "resnet18")
        'learned:plain:random:resnet18+mirror'
    """
    base_name, views = split_views(name)
    family, _, rest = base_name.partition(":")
    builder = rest.partition(".")[0].removesuffix("_Weights").lower()
    starts = {
        "file": f"random:{architecture}",
        "timm": f"random:timm:{rest}",
        "torchvision": f"random:{builder}",
    }
    start = starts.get(family, base_name)
    return "+".join([f"learned:{structure}:{start}", *sorted(views)])


def learned_model(module: Any) -> Classifier:
    """Return a model of a learned network, with the classifier that counts.

    A classifier that is not linear (PODNet, CREATE) is replaced by the nearest mean of exemplars
    (iCaRL, algorithm 1).

    Args:
        module: the :class:`~cifnet_pl.iterative.trainer.IterativeModule` that has learned, attached
            to its Trainer.

    Raises:
        CifnetError: a custom method's ``learned_network()`` embeds otherwise than the method.
    """
    backbone = frozen_backbone(module)
    kept = module.exemplars
    z = module.embed_exemplars().cpu()
    exemplars = buffer_samples(z, kept.label.cpu(), kept.key.cpu())
    linear = module.output_layer
    if module.prediction == "classifier" and isinstance(linear, nn.Linear):
        model = _linear_model(module, backbone, linear, exemplars)
    else:
        model = _nearest_mean_model(module, backbone, exemplars)
    images = module.data.describe_images()
    model.prepare(images, str(module.trainer.precision))
    model.engines = ["torch"]
    known = 0
    for names in module.learned_tasks:
        known += len(names)
        count = sum(model.counts[name] for name in names)
        event = Event("task", known, count, date=now(), class_names=list(names))
        model.history.append(event)
    return model


def frozen_backbone(module: Any) -> Backbone:
    """Return the learned network of a module as a frozen backbone; see :func:`learned_model`."""
    structure, network = module.learned_network()
    start = module.backbone
    backbone = build_backbone(learned_name(structure, start.name, start.architecture))
    unfit = f"the weights do not fit {backbone.name}"
    with explained(CifnetError, unfit, RuntimeError):
        backbone.network.load_state_dict(network.state_dict())
    images = natural_images(start.preprocessing.image_size)
    ours = backbone.embed(images)
    theirs = module.embed(images.to(module.device)).cpu()
    tolerance = 1e-2 * float(theirs.abs().max())
    if ours.shape != theirs.shape or not torch.allclose(
        ours, theirs, rtol=1e-2, atol=tolerance
    ):
        raise CifnetError("learned_network() does not embed as features() does")
    return backbone


def _linear_model(
    module: Any,
    backbone: Backbone,
    linear: nn.Linear,
    exemplars: BufferSamples,
) -> Classifier:
    """Return a model that predicts by a linear classifier."""
    names = module.class_names
    rows = np.flatnonzero(module.learned_rows)
    labels = module.labels_of(rows)
    hashes = ImageHashes()
    content = module.data.source.train.hashes(rows)
    hashes.add(labels, torch.from_numpy(content))
    head = SGDHead(linear.in_features)
    weights = torch.cat([linear.bias[None], linear.weight.T])
    state = {
        **head.state_dict(),
        "labels": torch.arange(len(names)),
        "task_of": module.task_of_label,
        "counts": labels.bincount(),
        "weights": weights.detach(),
    }
    head.load_state_dict(state)
    buffer = None
    if len(exemplars.y):
        buffer = CalibrationBuffer(len(exemplars.y))
        buffer.add(*exemplars)
        buffer.commit()
    return Classifier(backbone, head, buffer, list(names), images=hashes)


def _nearest_mean_model(
    module: Any,
    backbone: Backbone,
    exemplars: BufferSamples,
) -> Classifier:
    """Return a model that predicts the class with the nearest mean of exemplars."""
    model = Classifier(backbone, NCMHead(backbone.features))
    # Means are of vectors of length 1; the common factor keeps the scale of the embeddings.
    length = exemplars.z.norm(dim=1).mean()
    unit = functional.normalize(exemplars.z, dim=1)
    z = length * unit
    start = 0
    for task, names in enumerate(module.learned_tasks):
        own = module.task_of_label[exemplars.y] == task
        samples = exemplars._replace(z=z, y=exemplars.y - start)
        model.learn_embeddings(names, samples.at(own))
        start += len(names)
    model.head.temperature.fill_(0.5)  # −‖φ − μ‖² = 2φ·μ − 2 is twice the cosine
    return model
