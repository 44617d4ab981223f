"""``evaluate --recalibrate``: fit a model's promises to labelled photos of a new place, and show what that changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from cifnet_pl.cli.terminal import warn
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import is_or_are, next_command, number_of

if TYPE_CHECKING:
    import numpy as np
    import torch

    from cifnet_pl.model.class_photos import ClassPhotos
    from cifnet_pl.model.classifier import Classifier

UNKNOWN, COVERAGE, SURE = 0.05, 0.95, 0.95
"""The shares that figures are of: photos called unknown, sets of answers, and answers that are called sure."""


@dataclass(frozen=True)
class NewPhotos:
    """Labelled photos that a model has not learned, each once.

    Attributes:
        z, y, key: (n, d) embeddings, (n,) labels and (n,) content hashes.
        half: (n,) bool; photos that look alike are in the same half.
        learned: number of photos that are left out, as the model has learned them.
    """

    z: torch.Tensor
    y: torch.Tensor
    key: torch.Tensor
    half: torch.Tensor
    learned: int

    @classmethod
    def of(cls, model: Classifier, photos: ClassPhotos, unreadable: list[Any]) -> NewPhotos:
        """Embed photos.

        Args:
            model: whose backbone embeds.
            photos: of classes that it knows.
            unreadable: photos that cannot be decoded are appended.
        """
        import numpy as np
        import torch

        from cifnet_pl.photos.photo import Photo

        parts = list(photos.embedded(model, "evaluating", unreadable, progress=True, look=Photo.look))
        rows = np.concatenate([part for part, _ in parts])
        hashes, first = np.unique(photos.files.hashes(rows), return_index=True)
        learned = np.isin(hashes, model.photos.content.cpu().numpy())
        chosen = rows[first[~learned]]
        half = np.zeros(len(photos.files), dtype=bool)
        for own in photos.files.rows_of.values():
            half[own] = photos.held_back(own, 0.5)
        labels = np.array(model.labels(photos.class_names), dtype=np.int64)[photos.files.labels[chosen]]
        z = torch.cat([z for _, z in parts])[torch.from_numpy(first[~learned]).to(model.device)]
        y, key, side = (torch.from_numpy(column).to(z.device) for column in (labels, hashes[~learned], half[chosen]))
        return cls(z, y, key, side, int(learned.sum()))


def recalibrate(model: Classifier, name: str, photos: ClassPhotos, target: Path, overwrite: bool, trust: bool) -> None:
    """Store a model whose promises are fitted to photos of a new place, and print figures before and after.

    The figures after are of each half of the photos, by the model calibrated with the other half.

    Args:
        model: it is not changed.
        name: of it, for the screen.
        photos: of classes that it knows.
        target: folder for the bundle.
        overwrite: whether a bundle there may be replaced.
        trust: whether the next command needs ``--trust``.

    Raises:
        UsageError: too few photos that the model has not learned, or something at ``target`` already.
    """
    import torch

    from cifnet_pl.model.bundle import refuse_existing
    from cifnet_pl.model.calibration import FEWEST_NEW

    with exclusive(target):
        refuse_existing(target, overwrite)
        unreadable: list[Any] = []
        new = NewPhotos.of(model, photos, unreadable)
        warn([], unreadable)
        result = model.recalibrated(new.z, new.y, new.key)
        result.save(target, overwrite)
    if new.learned:
        them = number_of(new.learned, "photo")
        print(f"{them} that the model has learned {is_or_are(new.learned)} left out")
    print(f"{name} on {number_of(len(new.y), 'photo')} of the new place, before and after:")
    before, after = answers(model, new.z, new.y), None
    if min(int(new.half.sum()), int((~new.half).sum())) >= FEWEST_NEW:
        halves = []
        for part in (new.half, ~new.half):
            other = model.recalibrated(new.z[~part], new.y[~part], new.key[~part])
            halves.append(answers(other, new.z[part], new.y[part]))
        after = torch.cat(halves)
    Console().print(figures_table(before, after))
    if after is None:
        print(f"too few photos to tell what it is afterwards: at least {2 * FEWEST_NEW} that do not look alike")
    print(f"{number_of(len(result.class_names), 'class')} in bundle {target}; {name} is as it was")
    print(next_command("classify", "--model", str(target), "--images", "PHOTOS", "--output", "out.csv", trust=trust))


def answers(model: Classifier, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Ask a model about photos.

    Args:
        model: that answers.
        z: (n, d) embeddings.
        y: (n,) labels.

    Returns:
        (n, 5) float64: the answer's probability, whether it is right, whether the set of answers holds the right class,
        the set's size, and whether the photo is called unknown; NaN for what the model cannot tell.
    """
    import torch

    from cifnet_pl.model.classifier import able

    probabilities = model.head.probabilities(z)
    confidence, column = probabilities.max(dim=1)
    result = torch.full((len(y), 5), torch.nan, dtype=torch.float64)
    result[:, 0], result[:, 1] = confidence.cpu(), (model.head.labels[column] == y).cpu()
    unknown, coverage = able(model, UNKNOWN, COVERAGE)
    if unknown is None and coverage is None:
        return result
    names = model.name_of
    for row, verdict in enumerate(model.judge(unknown, coverage).verdicts(z, probabilities)):
        if verdict.answers is not None:
            result[row, 2], result[row, 3] = names[int(y[row])] in verdict.answers, len(verdict.answers)
        if verdict.known is not None:
            result[row, 4] = not verdict.known
    return result


def figures(asked: torch.Tensor) -> list[str]:
    """Return, in the order of the table, what :func:`answers` says of photos."""
    from cifnet_pl.model.audit import top_label_error

    confidence, right, covered, size, unknown = asked.T.contiguous().numpy()

    def mean(column: np.ndarray, factor: float = 100.0) -> str:
        return "–" if len(column) == 0 or bool((column != column).any()) else f"{factor * column.mean():.1f}"

    surely_wrong = int(((confidence > SURE) & (right == 0)).sum())
    error = top_label_error(confidence, right == 1)
    return [mean(right), f"{error:.1f}", str(surely_wrong), mean(covered), mean(size, 1.0), mean(unknown)]


def figures_table(before: torch.Tensor, after: torch.Tensor | None) -> Table:
    """Tabulate figures before and, as far as they are known, after."""
    names = [
        "photos named right, %",
        "how sure it is, off from how often it is right, points",
        f"wrong answers that it is more than {100 * SURE:g} % sure of",
        f"sets of answers of {100 * COVERAGE:g} % that hold the right class, %",
        "classes in such a set",
        f"photos called unknown where {100 * UNKNOWN:g} % were promised, %",
    ]
    table = Table("", "before", "after")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    rest = figures(after) if after is not None else ["–"] * len(names)
    for row in zip(names, figures(before), rest, strict=True):
        table.add_row(*row)
    return table
