"""PODNet: pooled outputs distilled at every stage, proxies (Douillard et al., ECCV 2020)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones.structures import stages_of, with_maps, without_last_relu
from cifnet_pl.iterative.descent import StepBatch, check_tuning
from cifnet_pl.iterative.losses import (
    cosine_distance,
    nca,
    pod_factor,
    pooled_maps_distance,
)
from cifnet_pl.iterative.trainer import IterativeModule
from cifnet_pl.utilities.errors import check_count


class CosineClassifier(nn.Module):
    """Cosines to several proxies of each class, weighted by their softmax (PODNet, eq. 7).

    Args:
        count: number of proxies of each class.

    Attributes:
        proxies: those of each task, (classes · count, d), those of one class next to each other; a
            parameter of their own, so that those of old classes can be frozen.
        sigma: learned scale.
    """

    def __init__(self, count: int):
        super().__init__()
        self.count = count
        self.proxies = nn.ParameterList()
        self.sigma = nn.Parameter(torch.ones(1))

    def forward(self, z: Tensor) -> Tensor:
        """Return (n, C) scores of embeddings (n, d)."""
        proxies = functional.normalize(torch.cat(list(self.proxies)), dim=1)
        unit = functional.normalize(z, dim=1)
        cosines = functional.linear(unit, proxies).view(len(z), -1, self.count)
        shares = cosines.softmax(dim=2)
        similarity = (shares * cosines).sum(dim=2)
        return self.sigma * similarity


class PODNetModule(IterativeModule):
    """PODNet; equations are the paper's.

    * Classifier (eq. 7): ``proxies`` vectors for each class, cosines weighted by their own softmax,
      and a learned scale. Proxies of old classes do not change.
    * Loss: :func:`nca` (eq. 8; in the reference code the margin cancels); from the second task on
      also ``f·(spatial · POD-spatial + POD-flat)`` (eqs. 5, 6) with
      ``f = √(all classes / new classes)``.
    * The network has no ReLU at its end, as in the reference code, so that embeddings may be
      negative (``last_relu`` keeps it).
    * After each task but the first everything is tuned on balanced classes, by the same loss, for
      ``tuning`` of the epochs. The paper tunes the classifier alone, the reference code everything.

    Args:
        proxies: number of proxies of each class.
        spatial: weight of the distance between pooled maps.
        last_relu: whether the network keeps the ReLU at its end.
        tuning: share of the epochs that balanced fine-tuning takes, or 0.
        tuning_rate: its learning rate.
        options: of :class:`IterativeModule`.
    """

    def __init__(
        self,
        proxies: int = 10,
        spatial: float = 5.0,
        last_relu: bool = False,
        tuning: float = 0.125,
        tuning_rate: float = 0.005,
        **options: Any,
    ):
        super().__init__(**options)
        check_count("proxies", proxies)
        check_tuning(tuning, tuning_rate)
        stages_of(self.network, "PODNet")
        if not last_relu:
            without_last_relu(self.network)
        self.options |= {
            "proxies": proxies,
            "spatial": spatial,
            "last_relu": last_relu,
            "tuning": tuning,
            "tuning_rate": tuning_rate,
        }
        self.cosine = CosineClassifier(proxies)

    def expand(self, classes: int) -> None:
        """Add proxies of new classes; those of old classes do not change."""
        self.cosine.proxies.requires_grad_(False)
        bound = self.width**-0.5
        new = torch.empty(classes * self.cosine.count, self.width)
        self.cosine.proxies.append(nn.Parameter(new.uniform_(-bound, bound)))

    @property
    def output_layer(self) -> nn.Module:
        """Classifier of proxies."""
        return self.cosine

    def learned_network(self) -> tuple[str, nn.Module]:
        """Return the structure, and the network."""
        if self.options["last_relu"]:
            return "plain", self.network
        return "no_last_relu", self.network

    def teachers(self) -> list[nn.Module]:
        """Return the network."""
        return [self.network]

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the loss: classification, and POD from the second task on."""
        x = batch.inputs()
        maps, z = with_maps(self.network, x)
        scores = self.logits(z)
        loss = nca(scores, batch.labels)
        if not self.old_classes:
            return loss
        with torch.no_grad():
            old_maps, old = with_maps(self.teacher[0], x)
        maps = [stage.float() for stage in maps]
        old_maps = [stage.float() for stage in old_maps]
        spatial: Tensor = self.options["spatial"] * pooled_maps_distance(maps, old_maps)
        flat = cosine_distance(z.float(), old.float())
        factor = pod_factor(self.n_classes, self.n_classes - self.old_classes)
        return loss + factor * (spatial + flat)

    def after_exemplar_selection(self) -> None:
        """Fine-tune on balanced classes."""
        self.tune(self.options["tuning"], self.options["tuning_rate"])
