"""``embed``: write the embeddings of images, with names and classes, into one file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cifnet_pl.cli.commands import Engine
from cifnet_pl.cli.outputs import warn, writing
from cifnet_pl.utilities.errors import DataError, unknown_name
from cifnet_pl.utilities.files import expanded, write_atomic
from cifnet_pl.utilities.names import DEFAULT_BACKBONE, class_name, split_in
from cifnet_pl.utilities.text import number_of, print_text, printable, utf8

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".npz", ".parquet")


def embed(
    images: str,
    output: str,
    backbone: str = DEFAULT_BACKBONE,
    architecture: str | None = None,
    image_size: int | None = None,
    engine: Engine = "auto",
    download: bool = False,
    overwrite: bool = False,
) -> None:
    """Embed images by a frozen backbone, into one file that fit and other programs read.

    The file has embeddings (n, d), ids (the images' paths) and, for class folders, labels; for
    train and val also the split. cifnet fit --data.source embeddings --data.root FILE learns from
    it.

    Args:
        images: folder of images (with all its sub-folders), Zip archive, or pattern in quotes.
        output: the file, .npz or .parquet.
        backbone: as --model.backbone of fit.
        architecture: of weights in a file, as --model.architecture of fit.
        image_size: side of the squares in pixels; null for that of the weights.
        engine: what runs the backbone: auto, torch or onnxruntime;
            auto is ONNX Runtime on a CPU, torch on a GPU.
        download: whether weights that are not on this machine may be fetched.
        overwrite: whether the file may be replaced.

    Raises:
        UsageError: an unknown backbone or kind of file, or the file exists.
        DataError: no image there that can be read.
    """
    target = expanded(output)
    if target.suffix not in FORMATS:
        raise unknown_name(
            "kind of file for --output", target.suffix or "no ending", FORMATS
        )
    import numpy as np

    from cifnet_pl.backbones import build_backbone
    from cifnet_pl.data.sources.tables import require_pyarrow
    from cifnet_pl.model.embedding import embed as embed_images

    if target.suffix == ".parquet":
        require_pyarrow()  # a missing package is named before the work
    with writing(target, overwrite):
        built = build_backbone(backbone, architecture, download, engine)
        z, files, unreadable = embed_images(
            images, built, image_size=image_size, progress=True
        )
        warn([], unreadable.items())
        if not files:
            count = number_of(len(unreadable), "file")
            raise DataError(f"no image of {printable(images)} can be read ({count})")
        columns = {"embeddings": z.numpy()}
        columns |= image_columns(images, [file for file in files if file is not None])
        write: Callable[[IO[bytes]], object]
        write = partial(np.savez, **columns)  # type: ignore[arg-type]  # no column is a bool
        if target.suffix == ".parquet":
            import pandas as pd

            # A matrix is a column of lists.
            lists = {name: list(array) for name, array in columns.items()}
            write = partial(pd.DataFrame(lists).to_parquet, index=False)
        write_atomic(target, write)
    count = number_of(len(files), "embedding")
    print_text(f"{count} with {z.shape[1]} features in {target}: {', '.join(columns)}")


def image_columns(images: str, files: list[Path]) -> dict[str, np.ndarray]:
    """Return the columns besides embeddings: ids, and in class folders labels and the split.

    Args:
        images: where they were found.
        files: the images.
    """
    import numpy as np

    from cifnet_pl.data.sources.folders import find_splits
    from cifnet_pl.images.files import is_folder

    root = expanded(images)
    if is_folder(root):
        files = [file.relative_to(root) for file in files]
    columns = {"ids": np.array([utf8(file.as_posix()) for file in files])}
    if not is_folder(root):
        return columns
    below = [file.parts[:-1] for file in files]
    splits = []
    if find_splits(root) is not None:
        splits = [split_in(folders[0]) or "" if folders else "" for folders in below]
        below = [folders[1:] for folders in below]
    if all(below):
        names = [class_name(utf8(folders[0])) for folders in below]
        columns["labels"] = np.array(names)
        if splits:
            columns["split"] = np.array(splits)
    return columns
