"""Follow the version that a service serves, from another process.

A workspace of ``cifnet serve`` holds ``journal.sqlite``, which says what is served, and a bundle
``versions/N`` for each version.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import load_bundle
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, explained
from cifnet_pl.utilities.text import printable

JOURNAL = "journal.sqlite"
SERVED_VERSION = "SELECT version FROM line JOIN model USING (place)"


def bundle_of_version(workspace: Path, number: int) -> Path:
    """Return the bundle of a version of a workspace."""
    return workspace / "versions" / f"{number:06d}"


class FollowedModel:
    """The model of the version that a workspace serves.

    Args:
        workspace: its folder.
        trust: whether versions may import heads and backbones from outside the package.
        report: gets a sentence when another version is served, or when it cannot be read.

    Raises:
        CheckpointError: the folder is no workspace, the version knows no class yet, or is damaged.
        CifnetError: the version cannot be read.
    """

    def __init__(
        self,
        workspace: Path,
        trust: bool,
        report: Callable[[str], object],
    ) -> None:
        self._journal = workspace / JOURNAL
        self._trust = trust
        self._report = report
        self._problem = ""
        if not self._journal.is_file():
            shown = printable(str(workspace))
            raise CheckpointError(
                f"{shown} is no workspace of cifnet serve: {JOURNAL} is missing"
            )
        self._number = self._served_number()
        bundle = bundle_of_version(workspace, self._number)
        self._model = load_bundle(bundle, trust=trust)

    def current(self) -> Classifier:
        """Return the model that is served now; the one before while that cannot be read."""
        try:
            number = self._served_number()
            if number != self._number:
                bundle = bundle_of_version(self._journal.parent, number)
                backbone = self._model.backbone  # it is the same
                self._model = load_bundle(bundle, trust=self._trust, backbone=backbone)
                self._number = number
                self._report(f"version {number} is served")
            self._problem = ""
        except CifnetError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._report(f"version {self._number} goes on: {error}")
        return self._model

    def _served_number(self) -> int:
        """Return the number of the version that is served now."""
        address = f"{self._journal.resolve().as_uri()}?mode=ro"
        unreadable = f"cannot read {self._journal}"
        with (
            explained(CifnetError, unreadable, sqlite3.Error, ValueError),
            closing(sqlite3.connect(address, uri=True)) as journal,
        ):
            ((number,),) = journal.execute(SERVED_VERSION).fetchall()
        return int(number)
