"""``unpack``: write the images of a data source as class folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cifnet_pl.utilities.errors import UsageError, check_that, unknown_name
from cifnet_pl.utilities.files import expanded, new_folder
from cifnet_pl.utilities.names import class_names, folder_names
from cifnet_pl.utilities.text import counted, number_of, print_text

if TYPE_CHECKING:
    from cifnet_pl.data.samples import SampleTable


def unpack(
    source: str,
    output: str,
    classes: Sequence[str] = [],
    size: int = 64,
    root: str | None = None,
    download: bool = False,
) -> None:
    """Write the images of a data source as PNG files, OUTPUT/train/CLASS/… and OUTPUT/val/….

    Args:
        source: digits, cifar100 or torchvision:<data set>.
        output: folder for them.
        classes: names of the classes; all if none is given.
        size: side of the images in pixels.
        root: folder of the source's data.
        download: whether a torchvision set may be fetched.

    Raises:
        UsageError: an unknown source or class, or a folder that is not empty.
        DataError: the source's data is missing.
    """
    from cifnet_pl.data.samples import SourceOptions
    from cifnet_pl.data.sources import build_source
    from cifnet_pl.images.image import IMAGE_SIZE_LIMIT

    target = expanded(output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(
            f"{target} exists already and is not an empty folder: choose another --output"
        )
    valid_size = 1 <= size <= IMAGE_SIZE_LIMIT
    check_that(valid_size, "--size", size, f"1 to {IMAGE_SIZE_LIMIT} pixels")
    place = None
    if root:
        place = expanded(root)
    data_source = build_source(source, SourceOptions(place, download=download))
    names = class_names(data_source.class_names, source)
    for name in classes:
        if name not in names:
            raise unknown_name("class", name, names)
    folders = folder_names(dict.fromkeys(classes or names))
    if not data_source.train.are_images:
        raise UsageError(
            f"source {source} has no images: expected digits, cifar100 or torchvision:<data set>"
        )
    homes = {
        label: folders[name] for label, name in enumerate(names) if name in folders
    }
    with new_folder(target) as folder:
        count = _write(data_source.train, homes, folder / "train", size)
        count += _write(data_source.test, homes, folder / "val", size)
    classes_written = number_of(len(folders), "class")
    print_text(
        f"{number_of(count, 'image')} of {classes_written} in {target}/train and {target}/val"
    )


def _write(
    images: SampleTable,
    homes: Mapping[int, str],
    folder: Path,
    size: int,
) -> int:
    """Write the images of each label that has a home in a folder; return their number."""
    from PIL import Image

    labels = images.labels.tolist()
    rows = [row for row, label in enumerate(labels) if label in homes]
    for row in counted(rows, f"writing {folder.name}", len(rows)):
        home = folder / homes[labels[row]]
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.image(row).square(size)).save(
            home / f"{images.names[row]:0>6}.png"
        )
    return len(rows)
