"""Arrays and torch data sets as a source, and a stream of them without a Trainer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from cifnet_pl import CalibrationBuffer, CIFNetDataModule, Classifier, build_backbone
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.streams import Blurry, Returning, Stream, TaskFree
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.utilities.errors import CifnetError, UsageError
from tests.data.layouts import vectors
from tests.data.tree import class_tree
from tests.lightning_runs import module, trainer

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 4, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


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
    (
        (
            torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
            [("c", "a", "b")[i] for i in LABELS],
        ),
        ("a", "b", "c"),
        (9, 3),
    ),
    (Pictures(12), ("ant", "bee", "cat"), (9, 3)),
    ((Pictures(12), Pictures(6, listed=False)), ("ant", "bee", "cat"), (12, 6)),
    (((PIXELS, LABELS), (PIXELS[:6], LABELS[:6])), ("0", "1", "2"), (12, 6)),
]


@pytest.mark.parametrize(("given", "classes", "sizes"), CASES)
def test_images(given: Any, classes: tuple[str, ...], sizes: tuple[int, int]) -> None:
    source = build_source(given, SourceOptions())
    assert tuple(source.class_names) == classes
    assert (len(source.train), len(source.test)) == sizes
    for images in (source.train, source.test):
        assert images.are_images
        for i, name in enumerate(images.names):
            original = Image.fromarray(PIXELS[int(name)]).resize(
                (4, 4), Image.Resampling.BICUBIC, (0, 1, 4, 5)
            )
            assert (images.image(i).square(4) == np.asarray(original)).all()
            assert images.labels[i] == (
                LABELS[int(name)] if classes[0] != "a" else (2, 0, 1)[LABELS[int(name)]]
            )


def test_embeddings_learn_in_a_run_and_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    z, y = vectors(120, 6, 4)
    data = CIFNetDataModule((z, y), classes_per_task=2, class_order=1, batch_size=32)
    learner = module(backbone="none:6", head=RidgeHead, buffer=None)
    trainer(tmp_path, max_epochs=2).fit(learner, datamodule=data)
    head = RidgeHead(6)
    samples = TensorDataset(torch.from_numpy(z), torch.from_numpy(y))
    for task in CIFNetDataModule(samples, classes_per_task=2, class_order=1):
        head.begin_task(task.labels)
        for embeddings, labels in task.train:
            head.observe(embeddings, labels)
        head.solve()
        seen = learner.class_names[: len(head.classes)]
        assert task.class_names == seen[-2:]
        tested = torch.cat([labels for _, labels in task.test])
        assert sorted(set(tested.tolist())) == list(range(len(seen)))
    torch.testing.assert_close(head.weights, learner.head.weights)


@pytest.mark.parametrize(
    "given", [{"source": "digits", "image_size": 8}, {"source": vectors(120, 6, 4)}]
)
def test_a_model_learns_a_stream_without_a_trainer_as_with_one(
    given: dict[str, Any], tmp_path: Path
) -> None:
    name = "pixels:8" if "image_size" in given else "none:6"
    stream = CIFNetDataModule(classes_per_task=2, class_order=1, num_workers=0, **given)
    backbone = build_backbone(name)
    model = Classifier(backbone, CIFNetHead(backbone.features), CalibrationBuffer(60))
    for task in stream:
        model.learn(task)
    learner = module(backbone=name, head=CIFNetHead, buffer=CalibrationBuffer(60))
    trainer(tmp_path).fit(
        learner, datamodule=CIFNetDataModule(classes_per_task=2, class_order=1, **given)
    )
    assert model.class_names == learner.class_names
    assert model.counts == learner.model.counts
    z = torch.rand(20, backbone.features, dtype=torch.float64)
    torch.testing.assert_close(model.head(z), learner.head(z))
    assert torch.equal(model.images.content, learner.images.content)
    with pytest.raises(UsageError, match="in their order"):
        model.learn(task)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_in_a_loop_of_ones_own(tmp_path: Path, workers: int) -> None:
    root = class_tree(tmp_path / "images", 5)
    copied = root / "red" / "copy.png"
    copied.write_bytes((root / "red" / "0.png").read_bytes())
    stream = CIFNetDataModule(
        root=str(root),
        classes_per_task=2,
        image_size=8,
        num_workers=workers,
        batch_size=3,
    )
    tasks = list(stream)
    assert [(task.class_names, task.labels) for task in tasks] == [
        (["blue", "green"], [0, 1]),
        (["red"], [2]),
    ]
    (images, labels), *_ = tasks[1].train
    assert images.shape == (3, 3, 8, 8)
    assert labels.tolist() == [2, 2, 2]
    assert (
        sum(len(labels) for task in tasks for _, labels in task.train)
        == len(stream.source.train) - 1
    )
    assert sum(len(labels) for _, labels in tasks[1].test) == len(stream.source.test)
    copied.write_bytes(b"")
    (root / "red" / "1.png").write_bytes(b"")
    broken = CIFNetDataModule(
        root=str(root), classes_per_task=3, image_size=8, num_workers=workers
    )
    with pytest.raises(CifnetError, match=r"cannot read image .*red"):
        [list(task.train) for task in broken]


@pytest.mark.parametrize(
    "kind",
    [Returning(), Blurry(), TaskFree(40)],
    ids=lambda kind: type(kind).__name__,
)
def test_a_model_learns_classes_that_return_as_with_a_trainer(
    kind: Stream, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"classes_per_task": 2, "class_order": 1, "stream": kind}
    given = vectors(120, 6, 4)
    model = Classifier(build_backbone("none:6"), RidgeHead(6))
    for task in CIFNetDataModule(given, **options):
        model.learn(task)
    learner = module(backbone="none:6", head=RidgeHead, buffer=None)
    trainer(tmp_path).fit(learner, datamodule=CIFNetDataModule(given, **options))
    assert model.class_names == learner.class_names
    assert model.head.class_counts() == learner.head.class_counts()
    torch.testing.assert_close(model.head.weights, learner.head.weights)
    refusing = Classifier(build_backbone("none:6"), CIFNetHead(6), CalibrationBuffer())
    first, second, *_ = CIFNetDataModule(given, **options)
    refusing.learn(first)
    with pytest.raises(CifnetError, match="CIFNetHead"):
        refusing.learn(second)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (5, "the data source is a int, expected a name, arrays"),
        (
            (PIXELS, LABELS[:3]),
            r"X has shape \(12, 6, 4, 3\) and y \(3,\)",
        ),
        (
            (PIXELS / 255, LABELS),
            r"dtype float64, expected \(n, d\)",
        ),
        ((PIXELS, LABELS / 2), r"the label in row 0 .* is 0\.0 \(float\)"),
        (
            (PIXELS, LABELS, PIXELS, LABELS),
            "the data source is a tuple, expected a name, arrays",
        ),
        (["ant.png", "bee.png"], "no pairs of sample and label"),
        ([3, 4, 5], "no pairs of sample and label"),
        (TensorDataset(torch.zeros(3, 4)), "no pairs of sample and label"),
        (
            [(PIXELS[0] / 255, 0)] * 4,
            r"dtype float64, expected uint8 pixels; leave ToTensor and Normalize out",
        ),
    ],
)
def test_what_is_no_source(given: Any, sentence: str) -> None:
    with pytest.raises(CifnetError, match=sentence):
        build_source(given, SourceOptions())
