"""The journal of a workspace: a database that alone says which versions and images are valid."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from cifnet_pl.utilities.errors import CheckpointError, CifnetError, explained
from cifnet_pl.utilities.files import rendered

FORMAT = 4

TABLES = Path(__file__).with_name("journal.sql")


class Journal:
    """A database that any thread may read, and one at a time may write.

    A transaction is on the disk when it ends.

    Args:
        path: of the file; it is made if it is missing.

    Raises:
        CheckpointError: the file is damaged, or of another format.
        CifnetError: the file cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        self.lock = RLock()
        unreachable = f"cannot open {path}"
        with (
            self.readable(),
            explained(CifnetError, unreachable, sqlite3.OperationalError),
        ):
            self._database = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False
            )
            self._database.row_factory = sqlite3.Row
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise

    def readable(self) -> AbstractContextManager[None]:
        """Return a context that explains the errors of a damaged file."""
        damaged = f"{self.path} is damaged"
        return explained(
            CheckpointError, damaged, sqlite3.DatabaseError, end="; use a copy of it"
        )

    def _prepare(self) -> None:
        """Make the tables of a new journal; refuse one of another format."""
        # A transaction ends when the truncated rollback journal is on the disk.
        self._database.executescript(
            "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL"
        )
        written = self.value("PRAGMA user_version")
        if written == 0:
            self._database.executescript(rendered(TABLES, format=FORMAT))
        elif written != FORMAT:
            found = f"{self.path} has format {written}, expected {FORMAT}"
            raise CheckpointError(f"{found}: choose another --workspace")

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        with self.lock:
            return self._database.execute(query, values).fetchall()

    def value(self, query: str) -> Any:
        """Return the value of a query with one row and one column."""
        ((value,),) = self.rows(query)
        return value

    def execute(self, statement: str, *rows: Sequence[Any]) -> int:
        """Change something for each of some rows, within a transaction; return how many changed."""
        return self._database.executemany(statement, rows).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write to the journal; at the end of the block the disk has it, or nothing was changed.

        Raises:
            CifnetError: the disk is full or not writable, or another process holds the database.
        """
        with self.lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                if not isinstance(error, sqlite3.Error):
                    raise
                failed = f"cannot write {self.path}: {error}; nothing was changed"
                raise CifnetError(failed) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()
