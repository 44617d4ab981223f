"""Read the classification sets of torchvision as data sources, whatever they call their parts and labels."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from PIL import Image

from cifnet_pl.data.image_sets import ArraySet, Source, SourceOptions, expanded, place, split_by_seed
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import first_line

PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "CLEVRClassification": ({"split": "train"}, {"split": "val"}),  # the test labels are not public
    "EMNIST": ({"split": "balanced", "train": True}, {"split": "balanced", "train": False}),
    "FGVCAircraft": ({"split": "trainval"}, {"split": "test"}),
    "ImageNet": ({"split": "train"}, {"split": "val"}),
    "Imagenette": ({"split": "train"}, {"split": "val"}),
    "OxfordIIITPet": ({"split": "trainval"}, {"split": "test"}),
    "Places365": ({"split": "train-standard"}, {"split": "val"}),
}
"""Arguments for the training and the validation part, where they are not train=True|False or split="train"|"test"."""

DEFAULT_ROOT = Path("data")
"""Where torchvision sets are looked for unless a root is given."""

NOT_FOR_CLASSIFICATION = {"FakeData", "ImageFolder", "DatasetFolder", "VisionDataset"}


def set_names() -> list[str]:
    """Return the names of torchvision's data sets."""
    from torchvision import datasets

    names = [name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))]
    return sorted(set(names) - NOT_FOR_CLASSIFICATION)


class _Item:
    """Read the image of one item of a torchvision data set."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __call__(self, index: int) -> Image.Image:
        image = self.dataset[index][0]
        if not isinstance(image, Image.Image):
            raise TypeError(f"{type(self.dataset).__name__} gives a {type(image).__name__}, not an image")
        return image


def torchvision_set(name: str, options: SourceOptions) -> Source:
    """Load a classification set of torchvision: its own two parts, or a split by seed if it has one part.

    Args:
        name: of the class in ``torchvision.datasets``.
        options: of the source.

    Raises:
        UsageError: the set is not one of images with one class each.
        DataError: it is not on this machine, or damaged.
    """
    from torchvision import datasets

    parameters = inspect.signature(getattr(datasets, name)).parameters
    if name in PARTS:
        parts = PARTS[name]
    elif "train" in parameters:
        parts = ({"train": True}, {"train": False})
    elif "split" in parameters:
        parts = ({"split": "train"}, {"split": "test"})
    else:
        whole = _open(name, options, {})
        labels, class_names = _labels(whole), _class_names(whole)
        return split_by_seed(class_names, ArraySet(_Item(whole), labels), options)
    train, val = (_open(name, options, dataset) for dataset in parts)
    class_names = _class_names(train)
    sets = [ArraySet(_Item(dataset), _labels(dataset)) for dataset in (train, val)]
    same = getattr(train, "classes", None) == getattr(val, "classes", None)
    if not same or max(int(images.labels.max()) for images in sets) >= len(class_names):
        raise DataError(
            f"torchvision's {name} in {place(expanded(options.root or DEFAULT_ROOT))} has other classes for testing "
            "than for training: the copy is not complete, fetch it again"
        )
    return Source(class_names, sets[0], sets[1])


def _open(name: str, options: SourceOptions, arguments: dict[str, Any]) -> Any:
    from torchvision import datasets

    builder = getattr(datasets, name)
    parameters = inspect.signature(builder).parameters
    root = expanded(options.root or DEFAULT_ROOT).absolute()
    keywords: dict[str, Any] = {"root": str(root), **arguments}
    # EMNIST and QMNIST take the option of their parent without naming it.
    if "download" in parameters or issubclass(builder, datasets.MNIST):
        keywords["download"] = options.download
    wanted = [p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if set(wanted) - keywords.keys():
        raise _unsuitable(name, f"needs {', '.join(sorted(set(wanted) - keywords.keys()))}")
    try:
        return builder(**keywords)
    except ImportError as error:
        raise UsageError(f"torchvision's {name} needs a package that is not installed: {error}") from error
    except ValueError as error:
        raise _unsuitable(name, first_line(error)) from error
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"torchvision's {name} is not in {place(root)} ({first_line(error)}): "
            "set --data.root to the folder that holds it, or fetch it with --data.download true"
        ) from error


def _unsuitable(name: str, reason: str) -> UsageError:
    return UsageError(
        f"torchvision's {name} is not a set of images with one class each ({reason}): "
        "arrange its images in class folders and use --data.source folder"
    )


def _labels(dataset: Any) -> list[int]:
    """Return the label of each image, read without decoding any."""
    candidates = [getattr(dataset, attribute, None) for attribute in ("targets", "labels", "_labels", "y")]
    values = next((v for v in candidates if v is not None), None)
    if values is None and hasattr(dataset, "_samples"):
        values = [sample[1] for sample in dataset._samples]
    if values is None or not len(values):
        raise _unsuitable(type(dataset).__name__, "it does not list its labels")
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise _unsuitable(type(dataset).__name__, first_line(error)) from error


def _class_names(dataset: Any) -> list[str]:
    """Return the name of each label; a name that occurs twice (ImageNet has two cranes) gets its label behind it."""
    declared = getattr(dataset, "classes", None) or getattr(dataset, "categories", None)
    if declared is None:
        return [str(label) for label in range(max(_labels(dataset)) + 1)]
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in declared]
    return [name if names.count(name) == 1 else f"{name} ({label})" for label, name in enumerate(names)]
