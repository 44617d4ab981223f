"""``audit``: write a page about the photos: doubtful labels, outliers, confusions, and whether more would help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from cifnet_pl.cli.audit_files import about_copies, about_unjudged, more_photos, write_audit
from cifnet_pl.cli.evaluate import refuse_files
from cifnet_pl.cli.extend import warn
from cifnet_pl.data.folders import folder as class_folders
from cifnet_pl.data.image_sets import SourceOptions, expanded
from cifnet_pl.model.audit import audit as audited
from cifnet_pl.model.audit import learning_curve
from cifnet_pl.model.audited_photos import embeddings_of
from cifnet_pl.model.class_photos import Unreadable
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import number_of, printable


def audit(
    model: str,
    output: str,
    images: str | None = None,
    cache_folder: str = "~/.cache/cifnet_pl",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Make a page about labelled photos: doubtful labels, odd photos, confusions, and whether more would help.

    Every photo is judged by an exact classifier that learned all the others, on the model's embeddings.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        output: folder for audit.html, its pictures (PNG) and tables (CSV).
        images: folder or Zip archive with one sub-folder of photos per class; those of the run if it is not given.
        cache_folder: embeddings that are there already are not computed again, and others are added.
        overwrite: whether files in output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

    Raises:
        UsageError: no photos are given and the model names none, or output holds files already.
        DataError: fewer than two classes, none with two different photos, or photos that cannot be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    target = expanded(Path(output))
    with exclusive(target):
        refuse_files(target, overwrite)
        audited_model = load(model, trust=trust)
        if not audited_model.backbone.takes_images:
            raise UsageError("this model learned embeddings that were computed elsewhere: an audit needs photos")
        root = expanded(Path(images if images is not None else photos_of_run(Path(model).expanduser())))
        fraction, seed = audited_model.held_back or (0.2, 0)
        if not root.exists():
            raise UsageError(f"no folder {printable(str(root))}: give the photos with --images")
        source = class_folders(SourceOptions(root, fraction, seed))
        unreadable: list[Unreadable] = []
        cache = Path(cache_folder).expanduser()
        with embeddings_of(audited_model, source, cache, unreadable, progress=True) as (z, labels, files):
            present = np.unique(labels)
            names = [source.class_names[label] for label in present]
            if len(names) < 2:
                raise DataError(f"{printable(str(root))} has photos of one class: an audit compares at least two")
            labels = np.searchsorted(present, labels)
            result = audited(z, labels, names)
            if not result.judged.any():
                raise DataError(
                    f"{printable(str(root))} has one photo of each class, or near-copies of one: an audit judges each "
                    "photo by others of its class"
                )
            curve = learning_curve(z, labels, len(names))
        warn([], unreadable)
        note = write_audit(target, result, curve, files, audited_model)
    if note:
        print(note)
    low, high = result.scored.interval
    right = f"{result.scored.accuracy:.1f} % right"
    print(f"{number_of(len(files), 'photo')} of {len(names)} classes, each judged by all others: {right}")
    print(f"(with 95 % certainty {low:.1f} to {high:.1f} %); {number_of(len(result.doubtful()), 'doubtful label')}")
    for sentence in (about_unjudged(result), about_copies(result)):
        if sentence:
            print(sentence)
    print(more_photos(curve, names))
    print(f"the page: {target / 'audit.html'}")


def photos_of_run(model: Path) -> str:
    """Return the folder of photos that a run learned from, by its configuration.

    Raises:
        UsageError: it has none, or the photos were no class folders.
    """
    versions = sorted(model.glob("version_*"), key=lambda path: path.stat().st_mtime, reverse=True)
    places = [model, *versions, *model.parents[:2]]
    config = next((folder / "config.yaml" for folder in places if (folder / "config.yaml").is_file()), None)
    data = (yaml.safe_load(config.read_text(encoding="utf-8")) or {}).get("data", {}) if config is not None else {}
    if data.get("source") != "folder" or not data.get("root"):
        raise UsageError(f"{model} does not say where its photos are: give them with --images")
    return str(data["root"])
