"""Outputs of commands: what may be written where, and what the screen says about it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cifnet_pl.utilities.errors import AlreadyThere, UsageError
from cifnet_pl.utilities.files import exclusive, expanded
from cifnet_pl.utilities.text import next_command, number_of, print_text, printable

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier

IMAGES_SHOWN = 24
"""Images in a gallery, or in one section of a page; tables have all."""

OutputKind = Literal["file", "folder", "bundle", "extend", "forget", "merge", "task"]
"""Kind of an output; bundles also by the step that makes them."""


@contextmanager
def writing(
    output: str | Path | None,
    overwrite: bool,
    kind: OutputKind = "file",
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
    is_bundle = kind not in ("file", "folder")
    is_of_kind = target.is_file() if kind == "file" else target.is_dir()
    if target.exists() and not is_of_kind and not is_bundle:
        # A pipe or a device, such as /dev/null, would be replaced.
        raise UsageError(f"{target} is no {kind}: choose another --output")
    with exclusive(target):
        if is_bundle:
            from cifnet_pl.model import bundle  # here: it imports torch

            bundle.refuse_existing(target, overwrite, kind)
        elif (
            target.exists()
            and not overwrite
            and (kind == "file" or any(target.iterdir()))
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


def warn(
    warnings: Iterable[str],
    unreadable: Iterable[tuple[Path | str | None, str]] = (),
) -> None:
    """Print warnings, and the images that could not be read, to the standard error stream."""
    for warning in warnings:
        print_text(f"cifnet: {warning}", sys.stderr)
    for file, reason in unreadable:
        print_text(f"skipped {printable(str(file))}: {reason}", sys.stderr)


def print_stored(model: Classifier, target: Path, trust: bool) -> None:
    """Print where a new model is, and how to classify images with it."""
    print_text(f"{number_of(len(model.class_names), 'class')} in bundle {target}")
    options = ("--model", str(target), "--images", "IMAGES", "--output", "out.csv")
    print_text(next_command("classify", *options, trust=trust))
