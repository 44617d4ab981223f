"""``watch``: name what new images of a folder show, into a CSV file and to a webhook."""

from __future__ import annotations

import csv
import io
import json
import os
import time
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import number_of, printable

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Prediction

COLUMNS = (
    "time",
    "id",
    "file",
    "class",
    "closest",
    "probability",
    "known",
    "answers",
    "unreadable",
)

AT_ONCE = 16
"""Images that are answered together: so many are answered again after a kill."""

SECONDS = 10.0
"""Longest time that a receiver has to answer."""

LONGEST_PAUSE = 60.0
"""Seconds between two attempts at most; the first pause is one second, each later one twice as
long.
"""


def watch(
    model: str,
    images: str,
    output: str = "answers.csv",
    webhook: str | None = None,
    unknown: float | None = 0.05,
    coverage: float | None = 0.95,
    every: float = 2.0,
    once: bool = False,
    trust: bool = False,
) -> None:
    """Answer each new image of a folder, until Ctrl-C: a row of a CSV file, and a JSON object for a
    webhook.

    An image is new if no row has its content; what is there at the start is answered first. Rows
    that the receiver has not acknowledged are sent again, also after a new start, each with the id
    of its image, in order, until it answers with a status from 200 to 299; the file beside the
    table, ``.sent``, lists those that it has. Nothing is sent anywhere else: no proxy is used, and
    no redirection is followed.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        images: the folder, with its sub-folders.
        output: the CSV file; rows are added to one that is there.
        webhook: http or https address that gets a POST for each image; null for none.
        unknown: share of images of known classes that may be called unknown; null never to say so.
        coverage: chance that the right class is in the set of answers; null to give no set.
        every: seconds between two looks at the folder.
        once: whether to end when all images that are there are answered and sent.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.

    Raises:
        UsageError: an address that is none, a share outside (0, 1), or another process that writes
            the table.
        DataError: no such folder, or a table with other columns.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.images.files import NewImages, require_folder
    from cifnet_pl.model.classifier import able
    from cifnet_pl.model.store import load

    if webhook is not None and (
        urlsplit(webhook).scheme not in ("http", "https") or not urlsplit(webhook).hostname
    ):
        raise UsageError(f"--webhook {printable(webhook)} is no http or https address")
    if every <= 0:
        raise UsageError(f"--every is {every:g}, expected more than 0")
    folder = Path(images).expanduser()
    target = Path(output).expanduser()
    require_folder(folder, "--images", "a folder of images")
    with exclusive(target):
        classifier = load(model, trust=trust)
        unknown, coverage = able(classifier, unknown, coverage)
        table = Answers(target)
        waiting = NewImages(folder)
        sender = (
            Sender(webhook, target.with_name(f"{target.name}.sent"), table.rows())
            if webhook
            else None
        )
        print(
            f"watching {folder}; answers in {target}" + (" and to the webhook" if webhook else ""),
            flush=True,
        )
        found = waiting.found(settled=not once)
        while True:
            new = list(islice(found, AT_ONCE))
            images_of_ids = table.unknown(new)
            contents = [content for _, content in images_of_ids.values()]
            predictions = classifier.classify(contents, 1, unknown=unknown, coverage=coverage)
            rows = table.add(
                (key, file, found)
                for (key, (file, _)), found in zip(images_of_ids.items(), predictions, strict=True)
            )
            if sender is not None:
                sender.waiting += rows
                sender.send()
            if not new and once and not (sender and sender.waiting):
                print(f"{number_of(len(table.ids), 'image')} answered in {target}")
                return
            if not new:
                time.sleep(every)
                found = waiting.found(settled=not once)


class Answers:
    """A CSV file with a row for each image; what a killed process left half-written is taken away.

    Args:
        path: of the file; it is made if it is missing.

    Attributes:
        ids: content hashes of the images that have a row.

    Raises:
        DataError: it has other columns.
    """

    def __init__(self, path: Path):
        self.path = path
        whole = path.read_bytes() if path.exists() else b""
        whole = whole[: whole.rfind(b"\n") + 1]
        self._file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115, open as long as it watches
        self._file.truncate(len(whole))
        self._file.seek(len(whole))
        if not whole:
            self._append([COLUMNS])
        elif whole.split(b"\n", 1)[0].rstrip() != ",".join(COLUMNS).encode():
            raise DataError(f"{path} is no table of watch: choose another --output")
        self.ids = {row["id"] for row in self.rows()}

    def rows(self) -> list[dict[str, str]]:
        """Read all rows."""
        with open(self.path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return list(csv.DictReader(file))

    def unknown(self, files: Iterable[Path]) -> dict[str, tuple[Path, bytes]]:
        """Read those of some images whose content has no row, by their ids; one that is gone again
        is left out.
        """
        from cifnet_pl.images.image import content_hash

        found = {}
        for file in files:
            with suppress(OSError):
                content = file.read_bytes()
                key = f"{content_hash(content):016x}"
                if key not in self.ids:
                    self.ids.add(key)
                    found[key] = file, content
        return found

    def add(self, answered: Iterable[tuple[str, Path, Prediction]]) -> list[dict[str, str]]:
        """Write rows of images, each with its id; return them once the disk has them."""
        rows = []
        for key, file, found in answered:
            cells = dict.fromkeys(COLUMNS, "") | {
                "file": str(file),
                "unreadable": found.unreadable or "",
            }
            cells["time"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
            cells["id"] = key
            if found.classes:
                cells |= {
                    "closest": found.classes[0],
                    "probability": f"{found.probabilities[0]:.6f}",
                }
                cells |= {"class": "" if found.known is False else found.classes[0]}
                cells |= {"answers": "; ".join(found.answers or ())}
                cells |= {} if found.known is None else {"known": str(found.known).lower()}
            rows.append(cells)
        self._append([tuple(row.values()) for row in rows])
        return rows

    def _append(self, rows: Iterable[tuple[str, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode("utf-8", "surrogateescape"))
        self._file.flush()
        os.fsync(self._file.fileno())


class NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would lead where the user did not send anything."""

    def redirect_request(self, *args: Any) -> None:
        """Return no request, so that the answer is an error."""


class Sender:
    """Sends rows to a webhook, in order, each until it is acknowledged.

    Args:
        url: of the receiver.
        path: file that lists the ids of those that it has acknowledged.
        rows: of the table.

    Attributes:
        waiting: rows that are not acknowledged.
    """

    def __init__(self, url: str, path: Path, rows: Iterable[dict[str, str]]):
        self.url = url
        self._file = open(path, "a+b")  # noqa: SIM115, as above
        self._file.seek(0)
        sent = set(self._file.read().decode().split("\n"))
        self.waiting = [row for row in rows if row["id"] not in sent]
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirection)
        self._again = 0.0
        self._pause = 1.0

    def send(self) -> None:
        """Send what waits, up to the first that is not acknowledged; after that pause before the
        next attempt.
        """
        while self.waiting and time.monotonic() >= self._again:
            if (problem := self._refusal(self.waiting[0])) is not None:
                where = printable(urlsplit(self.url).hostname or "")
                wait = number_of(len(self.waiting), "answer")
                print(
                    f"{where}: {problem}; {wait} not sent yet, the next attempt is in"
                    f" {self._pause:.0f} s",
                    flush=True,
                )
                self._again = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
                return
            self._pause = 1.0
            self._file.write(f"{self.waiting.pop(0)['id']}\n".encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def _refusal(self, row: Mapping[str, str]) -> str | None:
        """Send a row; return why it was not acknowledged, or None."""
        content: dict[str, Any] = {name: value or None for name, value in row.items()}
        content["answers"] = row["answers"].split("; ") if row["answers"] else []
        content["probability"] = float(row["probability"]) if row["probability"] else None
        content["known"] = json.loads(row["known"]) if row["known"] else None
        headers = {"Content-Type": "application/json", "Idempotency-Key": row["id"]}
        request = urllib.request.Request(self.url, json.dumps(content).encode(), headers)
        try:
            with self._opener.open(request, timeout=SECONDS):
                return None
        except HTTPError as error:
            return f"status {error.code}"
        except (OSError, ValueError) as error:
            return printable(str(error))
