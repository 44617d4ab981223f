"""``forget``: remove a class from a model, with or without its share of the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cifnet_pl.cli.commands import Engine
from cifnet_pl.cli.outputs import print_stored, warn, writing
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import number_of, print_text, printable

if TYPE_CHECKING:
    from cifnet_pl.model.forget import Forgetting


def forget(
    model: str,
    class_: Sequence[str],
    output: str,
    images: Sequence[str] = [],
    engine: Engine = "auto",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Remove a class from a model; with its images, also from the statistics.

    Without the images the class can no longer be predicted and leaves the buffer. Its images still
    count as counterexamples of the other classes. With the images, or where the class was learned
    with --model.head.remember, the model becomes exactly what it would be without them.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        class_: name of the class, or several names.
        output: folder for the bundle without it.
        images: folders or Zip archives that hold all images that the class was learned from; where
            the model knows their content hashes, other images in them are ignored.
        engine: what runs the backbone: auto, torch or onnxruntime;
            auto is the one that the model learned with.
        overwrite: whether a bundle at output may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.

    Raises:
        UsageError: a class that is not known, the only one, or something at output already.
        UnsupportedError: ``images`` for a head whose statistics cannot be subtracted.
        DataError: the images are not those that the class was learned from.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.forget import forget as forget_classes
    from cifnet_pl.model.store import load

    target = expanded(output)
    with writing(target, overwrite, "forget"):
        result = forget_classes(
            load(model, engine=engine, trust=trust), class_, images or None
        )
        result.model.save(target, overwrite)
    warn([], result.unreadable)
    for name in result.images:
        if result.exact:
            lines = exact_lines(result, name)
        else:
            lines = removal_lines(result, name)
        print_text("\n".join(lines))
    if result.ignored:
        count = number_of(result.ignored, "other image")
        print_text(
            f"{count} in {', '.join(images)} ignored: not learned as these classes"
        )
    print_stored(result.model, target, trust)


def exact_lines(result: Forgetting, name: str) -> list[str]:
    """Return lines on a class that was removed from the statistics, too.

    Args:
        result: of forgetting.
        name: of the class.
    """
    images = number_of(result.images[name], "image")
    how = "exactly"
    if result.rounding is not None:
        bound = "1e-5" if result.model.precision == "32-true" else "1e-2"
        how = f"to about {bound} of its share, not to 1e-8 ({result.rounding})"
    lines = [f"Class '{printable(name)}' forgotten {how}: {images} subtracted"]
    if result.earlier_removals:
        lines.append(
            "A class was removed earlier without its images, which still count; if it is this one,"
            " forget it from the model before that, with --images"
        )
    return lines


def removal_lines(result: Forgetting, name: str) -> list[str]:
    """Return lines on a class that was removed without its images: what remains of it.

    Args:
        result: of forgetting.
        name: of the class.
    """
    head = result.model.head
    images = number_of(result.images[name], "image")
    lines = [f"Class '{printable(name)}' removed from the predictions"]
    if not head.counterexamples:
        return [*lines, f"Nothing remains of its {images}"]
    lines.append(f"Its {images} still count as counterexamples of the other classes")
    if head.subtracts:
        lines.append(
            "To subtract them forget the class from the model before this, with --images"
        )
    return lines
