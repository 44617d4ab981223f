"""Outputs of commands: what may be written where, and what the screen says about it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from cifnet_pl.images.files import is_image
from cifnet_pl.utilities.errors import AlreadyThere, UsageError
from cifnet_pl.utilities.files import exclusive, expanded
from cifnet_pl.utilities.text import next_command, print_text, printable

IMAGES_SHOWN = 24
"""Images in a gallery, or in one section of a page; tables have all."""

STANDARD_OUTPUT = "-"
"""Name of the standard output, where a command writes one table."""

OutputKind = Literal["file", "folder", "bundle", "extend", "forget", "merge", "task"]
"""Kind of an output; bundles also by the step that makes them."""


@contextmanager
def writing(
    output: str | Path | None, overwrite: bool, kind: OutputKind = "file"
) -> Iterator[None]:
    """Lock a command's output within the block, after checking that it may be written.

    Args:
        output: where it is to be; None where a command has no output.
        overwrite: whether what is there may be replaced.
        kind: of the output.

    Raises:
        UsageError: it may not, what is there is of another kind, or another process is writing it.
    """
    if output is None:
        yield
        return
    target = expanded(output)
    if str(target) == STANDARD_OUTPUT:
        raise UsageError("--output - is for a table: choose an output with a name")
    if kind in ("file", "folder"):
        require_kind(target, kind)
    with exclusive(target):
        if kind not in ("file", "folder"):
            from cifnet_pl.model import bundle  # here: it imports torch

            # One that this step made may be the same: it is compared when it is written.
            may_be_same = overwrite or bundle.last_step(target) == kind
            bundle.refuse_existing(target, may_be_same)
        elif not overwrite and (
            target.is_file() or (target.is_dir() and any(target.iterdir()))
        ):
            refuse_other(target, is_same=False)
        yield


def refuse_other(target: Path | str, is_same: bool) -> None:
    """Raise the error of an output that is there already.

    Args:
        target: the output.
        is_same: whether the command would write the same again.
    """
    if is_same:
        raise AlreadyThere(f"{target} is already there: it is the same")
    raise UsageError(
        f"{target} exists already: choose another --output, or add --overwrite true"
    )


def require_kind(target: Path, kind: OutputKind) -> None:
    """Check that an output is of a kind, or not there yet.

    A pipe or a device, such as ``/dev/null``, is neither: it would be replaced.

    Raises:
        UsageError: what is there is of another kind.
    """
    if target.is_file():
        there = "file"
    elif target.is_dir():
        there = "folder"
    else:
        there = "pipe or device"
    if target.exists() and there != kind:
        raise UsageError(
            f"{target} is a {there}, expected a {kind}: choose another --output"
        )


OTHER_ENDINGS = (".ckpt", ".json", ".npz", ".onnx", ".parquet", ".safetensors", ".zip")
"""Endings of models, and of images and embeddings in one file."""


def require_table(target: Path | None) -> None:
    """Check that the output of a table may be written; UsageError for another file's name, too.

    With the options in the wrong order, an image or a part of a model would be replaced.
    """
    if target is None:
        return
    named = None
    if is_image(target):
        named = "an image"
    elif target.suffix.lower() in OTHER_ENDINGS:
        named = f"a {target.suffix} file"
    if named is not None:
        raise UsageError(f"--output {target} is named as {named}, expected a .csv file")
    require_kind(target, "file")


def warn(
    warnings: Iterable[str], unreadable: Iterable[tuple[Path | None, str]] = ()
) -> None:
    """Print warnings, and the images that could not be read, to the standard error stream."""
    for warning in warnings:
        print_text(f"cifnet: {warning}", sys.stderr)
    for file, reason in unreadable:
        print_text(f"skipped {printable(str(file))}: {reason}", sys.stderr)


def next_classify(model: Path, trust: bool) -> str:
    """Return the line that suggests to classify images with a new model."""
    options = ("--model", str(model), "--images", "IMAGES", "--output", "out.csv")
    return next_command("classify", *options, trust=trust)
