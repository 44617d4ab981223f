"""``python -m benchmarks.studies.fine_tuning IMAGES``: what one would do instead, on the same
images and machine.

The default of ``cifnet fit`` against logistic regression on embeddings, and against fine-tuning the
same network as is usual: AdamW, one cycle, random crops and flips, label smoothing, its last block
and a classifier or all of it. First all classes at once; then without the last ten, which come
later. What learns from sums or stored embeddings sees the new images only and ends where it would
have with all; fine-tuning goes on with the new images alone. Seconds and kWh of learning, images
decoded and embedded included; evaluation is not. Energy is processor time at ``WATTS``, which other
programs on the machine do not change much.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torchvision.transforms import v2

from benchmarks.studies.few_images import PENALTIES, learn_task, new_model
from benchmarks.studies.images import BACKBONE, RICH, show, show_columns, study_parser
from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.backbone import Backbone
from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.samples import SampleTable, SourceOptions
from cifnet_pl.data.sources import build_source

Method = Any
"""An object that can ``learn`` images of new classes and ``classify`` images."""

LATER = 10
BATCH = 32
RATE = 3e-3
"""Classes that come later, images of a step, and the largest learning rate: of the classifier, a
tenth for the rest.
"""

WATTS = 27.7
"""Of one core of an AMD EPYC and its share of the memory, as CodeCarbon estimates."""


@dataclass(frozen=True)
class Images:
    """(n, 3, side, side) uint8 images and (n,) int64 classes."""

    x: Tensor
    y: Tensor

    def of(self, classes: list[int]) -> Images:
        """The images of some classes."""
        rows = torch.isin(self.y, torch.tensor(classes))
        return Images(self.x[rows], self.y[rows])


def decoded(images: SampleTable, side: int, classes: list[int]) -> Images:
    """All images of some classes."""
    loader = ImageLoader(images, side, 1.0, 1)
    rows = np.flatnonzero(np.isin(images.labels, classes))
    x = torch.cat(
        [
            batch.image
            for batch in loader.decode(np.array_split(rows, range(64, len(rows), 64)))
        ]
    )
    return Images(x, torch.from_numpy(images.labels[rows]))


class Default:
    """What ``cifnet fit`` learns with."""

    def __init__(self) -> None:
        self.backbone = build_backbone(RICH)
        self.model = new_model(self.backbone.features)

    def learn(self, images: Images) -> None:
        """Learn new classes."""
        learn_task(self.model, embedded(self.backbone, images.x), images.y)

    def classify(self, x: Tensor) -> Tensor:
        """(n,) classes."""
        return self.model.head.predict(embedded(self.backbone, x))


class Logistic:
    """Logistic regression on the embeddings of all images so far."""

    def __init__(self) -> None:
        self.backbone = build_backbone(BACKBONE)
        self.z = torch.zeros(0, self.backbone.features)
        self.y = torch.zeros(0, dtype=torch.int64)

    def learn(self, images: Images) -> None:
        """Embed new images, and fit all again."""
        self.z = torch.cat([self.z, embedded(self.backbone, images.x)])
        self.y = torch.cat([self.y, images.y])
        regression = LogisticRegressionCV(Cs=PENALTIES[1:6], cv=3, max_iter=100)
        self.model = make_pipeline(StandardScaler(), regression).fit(
            self.z.numpy(), self.y.numpy()
        )

    def classify(self, x: Tensor) -> Tensor:
        """(n,) classes."""
        return torch.from_numpy(self.model.predict(embedded(self.backbone, x).numpy()))


def embedded(backbone: Backbone, x: Tensor) -> Tensor:
    """(n, d) embeddings of uint8 images."""
    return torch.cat([backbone(part) for part in torch.split(x, 64)])


class FineTuned:
    """The network with a classifier, trained: all of it, or its last block alone."""

    def __init__(self, classes: int, epochs: int, whole: bool):
        self.backbone = build_backbone(BACKBONE, engine="torch")
        self.network = copy.deepcopy(self.backbone.network)
        self.epochs = epochs
        self.whole = whole
        self.classifier = nn.Linear(self.backbone.features, classes)
        inner = self.network.network
        last = nn.ModuleList([inner._blocks[-1], inner._conv_head, inner._bn1])
        self.trained = self.network if whole else last
        self.trained.requires_grad_(True)

    def scores(self, x: Tensor) -> Tensor:
        """(n, C) of uint8 images."""
        return self.classifier(
            self.network(torch.addcmul(self.backbone.shift, x, self.backbone.scale))
        )

    def learn(self, images: Images) -> None:
        """Train on these images alone."""
        torch.manual_seed(0)
        side = images.x.shape[-1]
        augment = v2.Compose(
            [
                v2.RandomResizedCrop(side, scale=(0.35, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
            ]
        )
        groups = [
            {"params": self.classifier.parameters()},
            {"params": self.trained.parameters()},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.05)
        steps = -(-len(images.y) // BATCH) * self.epochs
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, [RATE, RATE / 10], total_steps=steps
        )
        for _ in range(self.epochs):
            self.network.eval()
            self.trained.train()
            for rows in torch.split(torch.randperm(len(images.y)), BATCH):
                scores = self.scores(
                    torch.stack([augment(one) for one in images.x[rows]])
                )
                loss = nn.functional.cross_entropy(
                    scores, images.y[rows], label_smoothing=0.1
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()

    @torch.inference_mode()
    def classify(self, x: Tensor) -> Tensor:
        """(n,) classes."""
        self.network.eval()
        return torch.cat(
            [self.scores(part).argmax(dim=1) for part in torch.split(x, 64)]
        )


def measured(act: Callable[[], None]) -> list[str]:
    """Seconds and kWh of a function."""
    start = time.perf_counter()
    before = os.times()
    act()
    processor = sum(
        after - b for after, b in zip(os.times()[:4], before[:4], strict=True)
    )
    return [f"{time.perf_counter() - start:.0f}", f"{processor * WATTS / 3.6e6:.1e}"]


def main() -> None:
    """Print a row for each method."""
    parser = study_parser(__doc__)
    parser.add_argument(
        "--epochs",
        type=int,
        default=10,
        help="of fine-tuning, over the images of each step",
    )
    parser.add_argument("--only", nargs="*", help="names of rows")
    options = parser.parse_args()
    source = build_source("folder", SourceOptions(options.root))
    classes = list(range(len(source.class_names)))
    val = decoded(source.test, options.image_size, classes)
    methods = {
        "default": Default,
        "logistic regression, last layer": Logistic,
        "fine-tuning, last block": lambda: FineTuned(
            len(classes), options.epochs, whole=False
        ),
        "fine-tuning, all": lambda: FineTuned(len(classes), options.epochs, whole=True),
    }
    show_columns(
        [
            "method",
            "at once",
            "seconds",
            "kWh",
            "ten later",
            "old",
            "new",
            "seconds",
            "kWh",
        ]
    )
    for name, make in methods.items():
        if options.only and name not in options.only:
            continue
        method = make()
        old = classes[:-LATER]
        new = classes[-LATER:]
        cost = step(method, source, options, classes)
        cells = [percent(method, val), *cost]
        method = make()  # anew
        step(method, source, options, old)
        cost = step(method, source, options, new)
        show(
            [
                name,
                *cells,
                percent(method, val),
                percent(method, val.of(old)),
                percent(method, val.of(new)),
                *cost,
            ]
        )


def step(
    method: Method, source: object, options: argparse.Namespace, classes: list[int]
) -> list[str]:
    """Learn some classes: seconds and kWh."""
    return measured(
        lambda: method.learn(decoded(source.train, options.image_size, classes))
    )


def percent(method: Method, images: Images) -> str:
    """Return the accuracy in percent among all classes."""
    return f"{100 * (method.classify(images.x) == images.y).double().mean():.1f}"


if __name__ == "__main__":
    main()
