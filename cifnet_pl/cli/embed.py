"""``embed``: turn images into vectors, and write them with names and classes into one file."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

from cifnet_pl.cli.commands import Engine, warn, writing
from cifnet_pl.utilities.errors import DataError, unknown_name
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.text import number_of, printable, utf8

if TYPE_CHECKING:
    import numpy as np

FORMATS = (".npz", ".parquet")


def embed(
    images: str,
    output: str,
    backbone: str = "embedded:efficientnet_lite0",
    architecture: str | None = None,
    image_size: int | None = None,
    engine: Engine = "auto",
    download: bool = False,
    overwrite: bool = False,
) -> None:
    """Turn images into vectors by a frozen network, into one file that other programs and fit read.

    The file has embeddings (n, d), ids (the images' paths) and, where the images lie in class
    folders, labels; with train and val also split. So cifnet fit --data.source embeddings
    --data.root FILE learns from it.

    Args:
        images: folder of images (with all its sub-folders), Zip archive, or pattern in quotes.
        output: the file, .npz or .parquet.
        backbone: the network, as --model.backbone of fit.
        architecture: of weights in a file, as --model.architecture of fit.
        image_size: side of the squares in pixels; null for that of the weights.
        engine: what runs the backbone: auto, torch or onnxruntime; auto is ONNX Runtime on a CPU,
            torch on a GPU.
        download: whether weights that are not on this machine may be fetched.
        overwrite: whether the file may be replaced.

    Raises:
        UsageError: an unknown network or kind of file, or the file exists.
        DataError: no image there that can be read.
    """
    target = Path(output).expanduser()
    if target.suffix not in FORMATS:
        raise unknown_name(
            "kind of file for --output", target.suffix or "no ending", FORMATS
        )
    from cifnet_pl.backbones import build_backbone
    from cifnet_pl.data.sources.tables import import_pyarrow
    from cifnet_pl.model.embedding import embed as embedded

    if target.suffix == ".parquet":
        import_pyarrow()  # a missing package is named before the work
    with writing(target, overwrite):
        network = build_backbone(backbone, architecture, download, engine)
        z, files, unreadable = embedded(
            images, network, image_size=image_size, progress=True
        )
        warn([], ((Path(image), reason) for image, reason in unreadable.items()))
        if not files:
            raise DataError(
                f"no image of {printable(images)} can be read"
                f" ({number_of(len(unreadable), 'file')})"
            )
        columns = {
            "embeddings": z.numpy(),
            **about_files(images, [file for file in files if file is not None]),
        }
        write_atomic(target, lambda file: write(columns, target.suffix, file))
    width = z.shape[1]
    print(
        f"{number_of(len(files), 'image')} as vectors of {width} numbers in {target}:"
        f" {', '.join(columns)}"
    )


def about_files(images: str, files: list[Path]) -> dict[str, np.ndarray]:
    """Return what is known of images besides their vectors: ids, and in class folders labels and
    the split.

    Args:
        images: where they were found.
        files: the images.
    """
    import numpy as np

    from cifnet_pl.data.sources.folders import split_folders
    from cifnet_pl.images.files import expanded, is_folder

    root = expanded(images)
    if not is_folder(root):
        return {"ids": np.array([utf8(file.as_posix()) for file in files])}
    columns = {
        "ids": np.array([utf8(file.relative_to(root).as_posix()) for file in files])
    }
    parts = split_folders(root)
    homes = [
        next((part for part in parts or (root,) if part in file.parents), file.parent)
        for file in files
    ]
    below = [
        file.relative_to(home).parts for file, home in zip(files, homes, strict=True)
    ]
    if all(len(names) > 1 for names in below):
        columns["labels"] = np.array([utf8(names[0]) for names in below])
        if parts is not None:
            columns["split"] = np.array(
                ["test" if home == parts[1] else "train" for home in homes]
            )
    return columns


def write(columns: dict[str, np.ndarray], ending: str, file: IO[bytes]) -> None:
    """Write the arrays into an .npz file, or into a Parquet file, in which a matrix is a column of
    lists.
    """
    if ending == ".npz":
        import numpy as np

        np.savez(file, **columns)  # type: ignore[arg-type]  # its only other argument is a bool
    else:
        import pandas as pd

        pd.DataFrame({name: list(array) for name, array in columns.items()}).to_parquet(
            file, index=False
        )
