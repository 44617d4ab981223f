"""``forget``: remove a class from a model, with or without what its images left in the
statistics.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cifnet_pl.cli.commands import Engine, warn, writing
from cifnet_pl.utilities.text import is_or_are, number_of, printable

if TYPE_CHECKING:
    from cifnet_pl.model.forget import Forgetting


def forget(
    model: str,
    class_: list[str],
    output: str,
    images: list[str] | None = None,
    engine: Engine = "auto",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Remove a class from a model; with its images, also what they left in the statistics.

    Without the images the class can no longer be predicted and leaves the buffer, but the other
    classes keep what they learned from its images as counterexamples. With them, or where the class
    was learned with --model.head.remember, the model becomes what it would be had it never seen
    them.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        class_: name of the class; several where more than one is to go.
        output: folder for the bundle without it.
        images: folders or Zip archives that hold all images that the class was learned from; where
            the model knows their content hashes, anything else in them is passed over.
        engine: what runs the network: auto, torch or onnxruntime; auto is the one that the model
            learned with.
        overwrite: whether a bundle at output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.

    Raises:
        UsageError: a class that is not known, the only one, or something at output already.
        UnsupportedError: ``images`` for a head whose statistics cannot be taken back.
        DataError: the images are not those that the class was learned from.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.forget import forget as forget_classes
    from cifnet_pl.model.store import load

    target = Path(output).expanduser()
    with writing(target, overwrite, "bundle"):
        result = forget_classes(load(model, engine=engine, trust=trust), class_, images)
        result.model.save(target, overwrite)
    warn([], result.unreadable)
    for name in result.images:
        taken_out = result.exact or name in result.recalled
        print(*(exactly(result, name) if taken_out else removed(result, name)), sep="\n")
    if result.ignored:
        others = number_of(result.ignored, "other image")
        are = is_or_are(result.ignored)
        were = "was" if result.ignored == 1 else "were"
        names = " or ".join(f"'{printable(n)}'" for n in result.images)
        print(
            f"{others} in {', '.join(images or [])} {were} not learned as {names}, and {are} passed"
            " over"
        )
    print(f"{number_of(len(result.model.class_names), 'class')} in bundle {target}")


def exactly(result: Forgetting, name: str) -> list[str]:
    """Return sentences about a class that was forgotten with its images.

    Args:
        result: of forgetting.
        name: of the class.
    """
    if result.model.precision == "32-true":
        bound = "1e-5"
    else:
        bound = "1e-2"
    if result.rounding is None:
        how = "exactly"
    else:
        how = f"to about {bound} of its share, not to 1e-8 ({result.rounding})"
    what = f"its {result.images[name]} images were"
    if name in result.recalled:
        what = f"what its {result.images[name]} images had left, which the model remembered, was"
    first = f"class '{printable(name)}' is forgotten {how}: {what} taken out of the statistics,"
    if not result.earlier_removals:
        return [first, "and the model is what it would be had it never seen them"]
    return [
        first,
        (
            "but a class was removed earlier without its images, which still count: if it was the"
            " same one,"
        ),
        "forget it from the model before that, with --images",
    ]


def removed(result: Forgetting, name: str) -> list[str]:
    """Return sentences about a class that was removed without its images: what remains of it, and
    how to undo that.

    Args:
        result: of forgetting.
        name: of the class.
    """
    head = result.model.head
    images = number_of(result.images[name], "image")
    if result.model.buffer is not None:
        left = ", and has left the buffer"
    else:
        left = ""
    first = f"class '{printable(name)}' is removed: it cannot be predicted any more{left};"
    if not head.counterexamples:
        return [
            first,
            (
                f"nothing remains of its {images}, as {type(head).__name__} learns each class on"
                " its own"
            ),
        ]
    lines = [
        first,
        f"what the other classes learned from its {images} remains, and counts against them;",
    ]
    if not head.subtracts:
        return [*lines, f"{type(head).__name__} cannot undo that"]
    return [*lines, "to undo that too, forget it from the model before this, with --images"]
