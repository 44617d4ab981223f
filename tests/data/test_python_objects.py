"""Arrays and torch data sets as a source, and a stream of them without a Trainer."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from cifnet_pl import CalibrationBuffer, CIFNetDataModule, Classifier, build_backbone
from cifnet_pl.data.streams import Blurry, Returning, TaskFree
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.images.image import square
from cifnet_pl.utilities.errors import CifnetError, UsageError
from tests.command_line import make_images
from tests.data.entrances import built
from tests.data.layouts import THREE, vectors
from tests.lightning_runs import module, trainer

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 4, 3), dtype=np.uint8)
CHANNELS_FIRST = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
LABELS = np.arange(12) % 3
TENSORS = TensorDataset(*map(torch.from_numpy, vectors(120, 6, 4)))


class Pictures(Dataset[Any]):
    """Images as torchvision's sets have them."""

    classes = ("ant", "bee", "cat")

    def __init__(self, count: int, listed: bool = True):
        self.count = count
        if listed:
            self.targets = torch.from_numpy(LABELS[:count])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(PIXELS[index]), int(LABELS[index])


CASES: list[tuple[Any, tuple[str, ...], tuple[int, int]]] = [
    ((PIXELS, LABELS), ("0", "1", "2"), (9, 3)),
    ((CHANNELS_FIRST, ["cab"[i] for i in LABELS]), ("a", "b", "c"), (9, 3)),
    (Pictures(12), ("ant", "bee", "cat"), (9, 3)),
    ((Pictures(12), Pictures(6, listed=False)), ("ant", "bee", "cat"), (12, 6)),
    (((PIXELS, LABELS), (PIXELS[:6], LABELS[:6])), ("0", "1", "2"), (12, 6)),
]


@pytest.mark.parametrize(("given", "classes", "sizes"), CASES)
def test_images(given: Any, classes: tuple[str, ...], sizes: tuple[int, int]) -> None:
    source = built(given)
    assert tuple(source.class_names) == classes
    assert (len(source.train), len(source.test)) == sizes
    for images in (source.train, source.test):
        assert images.are_images
        for i, name in enumerate(images.names):
            original = Image.fromarray(PIXELS[int(name)])
            assert (images.image(i).square(4) == square(original, 4)).all()
            names = "cab" if classes[0] == "a" else classes
            assert classes[images.labels[i]] == names[LABELS[int(name)]]


@pytest.mark.parametrize(
    ("given", "name", "head", "kind"),
    [
        ((PIXELS, LABELS), "pixels:4", CIFNetHead, None),
        (TENSORS, "none:6", RidgeHead, Blurry()),
        (TENSORS, "none:6", RidgeHead, TaskFree(40)),
    ],
)
def test_a_model_learns_without_trainer_as_with_one(given, name, head, kind, tmp_path):
    def data() -> CIFNetDataModule:
        options = {"classes_per_task": 2, "class_order": 1, "image_size": 4}
        return CIFNetDataModule(given, stream=kind, num_workers=0, **options)

    backbone = build_backbone(name)
    model = Classifier(backbone, head(backbone.features), CalibrationBuffer(60))
    for task in data():
        model.learn(task)
    learner = module(backbone=name, head=head, buffer=CalibrationBuffer(60))
    trainer(tmp_path, max_epochs=data().n_tasks).fit(learner, datamodule=data())
    assert model.class_names == learner.class_names
    assert model.counts == learner.model.counts
    z = torch.rand(20, backbone.features, dtype=torch.float64)
    torch.testing.assert_close(model.head(z), learner.head(z))
    assert torch.equal(model.images.content, learner.images.content)


def test_tasks_in_another_order_or_that_return_are_refused() -> None:
    model = Classifier(build_backbone("none:6"), CIFNetHead(6), CalibrationBuffer())
    first, *_, last = CIFNetDataModule(TENSORS, classes_per_task=2, stream=Returning())
    model.learn(first)
    with pytest.raises(UsageError, match="in their order"):
        model.learn(first)
    with pytest.raises(CifnetError, match="CIFNetHead"):
        model.learn(last)


def test_images_in_a_loop_of_ones_own(tmp_path) -> None:
    root = make_images(tmp_path / "images", THREE, 5)
    copied = root / "red" / "copy.png"
    copied.write_bytes((root / "red" / "0.png").read_bytes())
    options = {"root": str(root), "image_size": 8, "num_workers": 2, "batch_size": 3}
    stream = CIFNetDataModule(classes_per_task=2, **options)
    tasks = list(stream)
    assert [(task.class_names, task.labels) for task in tasks] == [
        (["blue", "green"], [0, 1]),
        (["red"], [2]),
    ]
    (images, labels), *_ = tasks[1].train
    assert images.shape == (3, 3, 8, 8)
    assert labels.tolist() == [2, 2, 2]
    learned = sum(len(labels) for task in tasks for _, labels in task.train)
    assert learned == len(stream.source.train) - 1
    assert sum(len(labels) for _, labels in tasks[1].test) == len(stream.source.test)
    copied.write_bytes(b"")
    (root / "red" / "1.png").write_bytes(b"")
    (task,) = CIFNetDataModule(**options)
    with pytest.raises(CifnetError, match=r"cannot read image .*red"):
        list(task.train)


def test_what_is_no_source() -> None:
    for given, sentence in (
        (5, "the data source is a int, expected a name, arrays"),
        ((PIXELS, LABELS[:3]), r"X has shape \(12, 6, 4, 3\) and y \(3,\)"),
        ((PIXELS / 255, LABELS), r"dtype float64, expected \(n, d\)"),
        ((PIXELS, LABELS, PIXELS, LABELS), "the data source is a tuple, expected a"),
        (["ant.png", "bee.png"], "no pairs of sample and label"),
        ([3, 4, 5], "no pairs of sample and label"),
        (TensorDataset(torch.zeros(3, 4)), "no pairs of sample and label"),
        ([(PIXELS[0] / 255, 0)] * 4, r"dtype float64, expected uint8 pixels"),
    ):
        with pytest.raises(CifnetError, match=sentence):
            built(given)
