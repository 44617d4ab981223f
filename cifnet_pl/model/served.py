"""Follow the version that a service serves, from another process.

A workspace of ``cifnet serve`` holds ``journal.sqlite``, which says what is served, and a bundle
``versions/N`` for each version.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import load_bundle
from cifnet_pl.utilities.errors import CheckpointError, CifnetError
from cifnet_pl.utilities.text import printable

JOURNAL = "journal.sqlite"
SERVED_VERSION = "SELECT version FROM line JOIN model USING (place)"

READING_SECONDS = 5.0
"""Time for which reading waits while the service writes."""


def bundle_of_version(workspace: Path, number: int) -> Path:
    """Return the bundle of a version of a workspace."""
    return workspace / "versions" / f"{number:06d}"


class ServedVersion:
    """The model of the version that a workspace serves.

    Args:
        workspace: its folder.
        trust: whether versions may import heads and backbones from outside the package.

    Attributes:
        loaded_number: number of the version that was loaded last; 0 before the first.

    Raises:
        CheckpointError: the folder is no workspace.
    """

    def __init__(self, workspace: Path, trust: bool = False):
        self.workspace = workspace
        self.trust = trust
        self.loaded_number = 0
        self._model: Classifier | None = None
        if not (workspace / JOURNAL).is_file():
            shown = printable(str(workspace))
            raise CheckpointError(
                f"{shown} is no workspace of cifnet serve: {JOURNAL} is missing"
            )

    def current_number(self) -> int:
        """Return the number of the version that is served now.

        Raises:
            CifnetError: the journal cannot be read.
        """
        address = f"{(self.workspace / JOURNAL).resolve().as_uri()}?mode=ro"
        try:
            with closing(
                sqlite3.connect(address, READING_SECONDS, uri=True)
            ) as journal:
                ((number,),) = journal.execute(SERVED_VERSION).fetchall()
                return int(number)
        except (sqlite3.Error, ValueError) as error:
            raise CifnetError(
                f"cannot read {self.workspace / JOURNAL}: {error}"
            ) from error

    def model(self) -> Classifier:
        """Return the model that is served now.

        It is loaded again if the version changed, with the same backbone.

        Raises:
            CifnetError: it cannot be read.
            CheckpointError: the version knows no class yet, or is damaged.
        """
        number = self.current_number()
        if self._model is None or number != self.loaded_number:
            backbone = None if self._model is None else self._model.backbone
            bundle = bundle_of_version(self.workspace, number)
            self._model = load_bundle(bundle, trust=self.trust, backbone=backbone)
            self.loaded_number = number
        return self._model
