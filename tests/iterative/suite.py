"""What the tests of trained methods share: a small network, the methods on it, runs on digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cifnet_pl.backbones
from cifnet_pl import CIFNetDataModule
from cifnet_pl.backbones import Preprocessing
from cifnet_pl.iterative import METHODS, FinetuneModule, IterativeModule, TagFexModule
from cifnet_pl.learning.callbacks import TaskMetrics
from tests.killing import Act
from tests.lightning_runs import digits, trainer

SIDE = 8
WIDTH = 32
NAMES = [method.__name__ for method in METHODS]
MORE_EPOCHS = {"WAModule": 8, "CREATEModule": 16}
"""Methods that need more than 4 for digits."""


class Small(nn.Module):
    """Two stages of a convolution and batch normalisation, and global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = nn.Identity()
        self.layer2 = nn.Sequential(
            nn.Conv2d(16, WIDTH, 3, 2, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, WIDTH) embeddings."""
        first = self.layer1(self.relu(self.bn1(self.conv1(x))))
        return self.avgpool(self.layer2(first)).flatten(1)


def small(*_: Any) -> tuple[nn.Module, int, Preprocessing]:
    """A builder of backbones."""
    return Small(), WIDTH, Preprocessing(SIDE, mean=(0.2,) * 3, std=(0.3,) * 3)


def install(patch: Callable[[dict, str, Any], None] = dict.__setitem__) -> None:
    """Make the network known as backbone "small"."""
    patch(cifnet_pl.backbones.BACKBONES, "small", small)


def learner(method: type[IterativeModule], **options: Any) -> IterativeModule:
    """A module that learns digits in seconds."""
    given: dict[str, Any] = {"backbone": "small", "flip": False, "weight_decay": 0.0}
    given |= {"learning_rate": 0.1, "batch_statistics": "learned"}
    given |= {"epochs": MORE_EPOCHS.get(method.__name__, 4)}
    if method is not FinetuneModule:
        given |= {"exemplars": 60}
    if method is TagFexModule:
        given |= {"projection": [32, 16], "attention_heads": 4}
    return method(**{**given, **options})


def data(**options: Any) -> CIFNetDataModule:
    """Two tasks of two digits, unless options say otherwise."""
    return digits(**{"max_tasks": 2, "batch_size": 32, "image_size": SIDE, **options})


def run(method, folder, *callbacks, given=None, **options):
    """(module, record) of a run through all tasks."""
    made = learner(method, **options)
    trainer(folder, *callbacks).fit(made, datamodule=data(**(given or {})))
    return made, made.record


def assert_same_weights(a: nn.Module, b: nn.Module) -> None:
    """Bit-identical states."""
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)


def save_at(path: Path, task: int, batches: int) -> Act:
    """A callback that writes a checkpoint after so many batches of a task (from 0)."""

    def save(runner: Any) -> None:
        runner.save_checkpoint(path)

    return Act("on_train_batch_end", task, save, batches)


def assert_goes_on(method, folder, batches, given=None, task=1, **options):
    """The run that never stopped, after one that goes on within a task has ended as it did."""
    path = folder / "mid.ckpt"
    given = given or {}
    save = save_at(path, task, batches)
    whole, _ = run(method, folder, save, given=given, **options)
    again = learner(method, **options)
    trainer(folder, TaskMetrics()).fit(again, datamodule=data(**given), ckpt_path=path)
    assert_same_weights(again, whole)
    return whole
