"""Add up files of sums, as ``cifnet sums`` writes them, to a model or to one larger file of sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.partial_sums import ENDING, PartialSums, is_sums, parts_of, read_sums, write_sums
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import is_or_are, number_of


def sums_files(places: Sequence[str]) -> list[Path]:
    """Return the files of sums that some paths name.

    Args:
        places: files, or folders of them.

    Returns:
        The files; none if the paths are models.

    Raises:
        UsageError: both files of sums and models.
    """
    groups: list[list[Path]] = []
    for path in (Path(text).expanduser() for text in places):
        groups.append(sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path] if is_sums(path) else [])
    if any(groups) and not all(groups):
        other = places[groups.index([])]
        raise UsageError(f"{other} is no file of sums, and the others are: merge models with models, sums with sums")
    return [path for files in groups for path in files]


def reduce_sums(files: Sequence[Path], trust: bool = False, engine: str = "auto", ordered: bool = True) -> PartialSums:
    """Add up files of sums.

    Args:
        files: of parts that do not overlap.
        trust: whether heads and networks from outside the package may be imported.
        engine: what runs the network of the model.
        ordered: whether to add in the order of the samples, so that the same shards give the same bits in whatever
            order they come; else as given, which rounds differently.

    Raises:
        UsageError: the same samples twice, or sums of other settings.
        CheckpointError: a file that is damaged.
    """
    order = sorted(files, key=_first) if ordered else list(files)
    total = read_sums(order[0], trust, engine)
    for path in order[1:]:
        total.add(read_sums(path, trust, engine))
    return total


def merge_sums(files: Sequence[Path], target: Path, overwrite: bool, trust: bool, engine: str) -> None:
    """Add up files of sums, and write a bundle, or a file of sums if ``target`` ends in .sums.

    Args:
        files: of parts that do not overlap.
        target: bundle or file.
        overwrite: whether it may be replaced.
        trust, engine: as for :func:`reduce_sums`.

    Raises:
        UsageError: as :func:`reduce_sums`, or something is at ``target`` already.
    """
    with exclusive(target):
        if is_sums(target):
            if target.exists() and not overwrite:
                raise UsageError(f"{target} exists already: choose another --output, or add --overwrite true")
            total = reduce_sums(files, trust, engine)
            write_sums(total, target)
            state = (
                f"{number_of(len(total.missing), 'part')} {is_or_are(len(total.missing))} missing"
                if total.missing
                else "nothing is missing"
            )
            count = number_of(_samples(total), "sample")
            print(f"{number_of(len(files), 'file')} of sums added up in {target}: {count}, {state}")
            return
        refuse_existing(target, overwrite)
        total = reduce_sums(files, trust, engine)
        samples = _samples(total)
        model = total.solved()
        model.save(target, overwrite)
    classes = number_of(len(model.class_names), "class")
    print(f"{number_of(len(files), 'file')} of sums merged: {classes} from {number_of(samples, 'sample')} in {target}")


def _first(path: Path) -> tuple[str, int, str]:
    """Return the sort key of a file: where its first part begins; nothing is checked here."""
    first = parts_of(path)[0]
    return first.listing, first.start, path.name


def _samples(total: PartialSums) -> int:
    return sum(total.model.counts.values())
