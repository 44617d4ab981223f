"""``watch``: classify new images of a folder, into a CSV file and to a webhook."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from cifnet_pl.cli.outputs import writing
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.files import (
    csv_line,
    expanded,
    list_cell,
    read_list_cell,
    write_text,
)
from cifnet_pl.utilities.text import iso_now, number_of, print_text, printable

if TYPE_CHECKING:
    from cifnet_pl.images.new_images import NewImage
    from cifnet_pl.model.classifier import Classifier

COLUMNS = (
    "time",
    "id",
    "file",
    "class",
    "closest",
    "probability",
    "known",
    "prediction_set",
    "unreadable",
)

Row = dict[str, str]
"""The cells of a row of the table, by the names of the columns."""

LARGEST_CELL = 2**31 - 1
"""Characters of a cell at most: a prediction set may name thousands of classes."""

IMAGES_PER_WRITE = 16
"""Images whose rows are written together; a killed process loses at most so many predictions."""

TIMEOUT_SECONDS = 10.0
"""Longest time that a receiver has to acknowledge a prediction, and the pause after a failure."""


def watch(
    images: str,
    model: str | None = None,
    workspace: str | None = None,
    output: str = "predictions.csv",
    webhook: str | None = None,
    unknown: float | None = 0.05,
    coverage: float | None = 0.95,
    every: float = 2.0,
    once: bool = False,
    trust: bool = False,
    link: str | None = None,
) -> None:
    """Classify each new image of a folder until Ctrl-C.

    Each image gets a row of a CSV file, and a JSON object that is sent to a webhook. An image is
    new if no row has its content. Images that are there at the start come first. Predictions are
    sent in order, each with the id of its image, until the receiver acknowledges them with a
    status from 200 to 299. The others are sent again, also after a restart. The file ``.sent``
    beside the table has the id of the last acknowledged one. Nothing is sent anywhere else: no
    proxy is used, and no redirection is followed.

    Args:
        images: the folder, with its sub-folders.
        model: a run's folder, a checkpoint file or a bundle.
        workspace: folder of a workspace of ``serve``, in place of a model: each image is classified
            by the version that is served then.
        output: the CSV file; rows are added to an existing one.
        webhook: http or https address that gets a POST for each image; null for none. A name and
            password in it, http://name:password@host, are sent as a header.
        unknown: share of images of known classes that may be called unknown; null to call none
            unknown.
        coverage: probability that the prediction set holds the true class; null for no prediction
            sets.
        every: seconds between two scans of the folder.
        once: whether to end when all images that are there are classified and sent.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.
        link: address of the images' folder for others, which each JSON object's ``link`` begins
            with; null for this machine's own.

    Raises:
        UsageError: neither or both of a model and a workspace, an invalid address, a share outside
            (0, 1), or another process that writes the table.
        DataError: no such folder, or a table with other columns.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.images.files import require_folder
    from cifnet_pl.images.image import content_hash
    from cifnet_pl.images.new_images import NewImages

    if webhook is not None:
        is_web = webhook.startswith(("http://", "https://"))
        shown = webhook.rpartition("@")[2]  # a password stands before it
        check_that(is_web, "--webhook", shown, "an http or https address")
    check_that(every > 0, "--every", every, "more than 0")
    folder = expanded(images)
    require_folder(folder, "--images", "a folder of images")
    target = expanded(output)
    current_model = model_source(model, workspace, trust)
    with writing(target, overwrite=True), target.open("a+b") as table:
        known = rows_of(table)
        ids = {row["id"] for row in known}
        sender = None
        if webhook is not None:
            last_sent = target.with_name(f"{target.name}.sent")
            sender = Sender(webhook, last_sent, known, folder, link)
        print_text(f"watching {images}; predictions in {target}")
        found = NewImages(folder, lambda note: print_text(note, sys.stderr))
        for batch in found.batches(IMAGES_PER_WRITE, every, settled=not once):
            new = {f"{content_hash(image.content):016x}": image for image in batch}
            new = {key: image for key, image in new.items() if key not in ids}
            ids.update(new)
            rows = classified(current_model(), new, unknown, coverage)
            append(table, rows)
            if sender is not None:
                sender.waiting += rows
                sender.send()
            if once and not batch and not (sender and sender.waiting):
                break
        print_text(f"{number_of(len(ids), 'image')} classified in {target}")


def model_source(
    model: str | None,
    workspace: str | None,
    trust: bool,
) -> Callable[[], Classifier]:
    """Return a function that gives the model to classify with: one model, or a workspace's."""
    from cifnet_pl.model.store import load
    from cifnet_pl.serving.served import FollowedModel

    if model is not None and workspace is None:
        loaded = load(model, trust=trust)
        return lambda: loaded
    if workspace is not None and model is None:
        return FollowedModel(expanded(workspace), trust, print_text).current
    raise UsageError("give one of --model and --workspace")


def classified(
    model: Classifier,
    images: Mapping[str, NewImage],
    unknown: float | None,
    coverage: float | None,
) -> list[Row]:
    """Return the rows of some images.

    Args:
        model: that classifies.
        images: to be classified, by their ids.
        unknown: as for :func:`watch`; ignored if the model cannot keep the promise.
        coverage: likewise.
    """
    unknown, coverage = model.available_shares(unknown, coverage)
    contents = [image.content for image in images.values()]
    predictions = model.classify(contents, 1, unknown=unknown, coverage=coverage)
    rows = []
    for (key, image), prediction in zip(images.items(), predictions, strict=True):
        closest = next(iter(prediction.classes), "")
        row = {
            "time": iso_now(),
            "id": key,
            "file": str(image.path),
            "class": closest,
            "closest": closest,
            "probability": "",
            "known": "",
            "prediction_set": list_cell(prediction.prediction_set or ()),
            "unreadable": prediction.unreadable or "",
        }
        for probability in prediction.probabilities:
            row["probability"] = f"{probability:.6f}"
        if prediction.known is not None:
            row["known"] = str(prediction.known).lower()
        if prediction.known is False:
            row["class"] = ""
        rows.append(row)
    return rows


# ---------------------------------------------------------------------- the table


def rows_of(table: IO[bytes]) -> list[Row]:
    """Return the rows of a table; a new one gets its header.

    What a killed process has written of a row is removed.

    Args:
        table: open for reading and appending.

    Raises:
        DataError: it has other columns.
    """
    table.seek(0)
    content = table.read()
    if csv_line(COLUMNS).encode().startswith(content):
        # It is new, or a killed process was writing the header.
        table.truncate(0)
        append(table, [dict(zip(COLUMNS, COLUMNS, strict=True))])
        return []
    whole = content[: content.rfind(b"\n") + 1]
    text = whole.decode("utf-8", "surrogateescape")
    csv.field_size_limit(LARGEST_CELL)
    rows = csv.DictReader(io.StringIO(text, newline=""), restval="")
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise DataError(f"{table.name} is no table of watch: choose another --output")
    table.truncate(len(whole))
    return list(rows)


def append(table: IO[bytes], rows: Sequence[Row]) -> None:
    """Add rows to a table, and return once the disk has them."""
    text = "".join(csv_line(row.values()) for row in rows)
    table.write(text.encode("utf-8", "surrogateescape"))
    table.flush()
    os.fsync(table.fileno())


# ---------------------------------------------------------------------- the webhook


class NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would lead where the user did not send anything."""

    def redirect_request(self, *args: Any) -> None:
        """Return no request, so that the redirection is an error."""


class Sender:
    """Sends rows to a webhook, in order, each until it is acknowledged.

    Args:
        url: of the receiver, with a name and password if it needs them.
        last_sent: file with the id of the last acknowledged row.
        rows: of the table.
        folder: of the images.
        link: address of that folder for others; None for this machine's own.

    Attributes:
        waiting: rows that are not acknowledged.
    """

    def __init__(
        self,
        url: str,
        last_sent: Path,
        rows: Sequence[Row],
        folder: Path,
        link: str | None,
    ):
        address = urlsplit(url)
        login, _, place = address.netloc.rpartition("@")
        self.url = address._replace(netloc=place).geturl()
        self._headers = {"Content-Type": "application/json"}
        if login:
            token = b64encode(unquote(login).encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self.folder = folder
        self.link = link
        self._last_sent = last_sent
        self.waiting = list(rows)
        if last_sent.is_file():
            last = last_sent.read_text(encoding="utf-8").split()[-1]
            ids = [row["id"] for row in rows]
            if last in ids:
                del self.waiting[: ids.index(last) + 1]
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), NoRedirection
        )
        self._next_attempt = 0.0

    def send(self) -> None:
        """Send rows up to the first that is not acknowledged, and pause before the next attempt."""
        while self.waiting and time.monotonic() >= self._next_attempt:
            row = self.waiting[0]
            body = json.dumps(self._content(row)).encode()
            headers = self._headers | {"Idempotency-Key": row["id"]}
            request = urllib.request.Request(self.url, body, headers)
            try:
                self._opener.open(request, timeout=TIMEOUT_SECONDS).close()
            except (OSError, ValueError, HTTPException) as error:
                # Whatever the receiver sends; a refusal is an HTTPError, which is an OSError.
                problem = printable(str(error) or type(error).__name__)
                count = number_of(len(self.waiting), "prediction")
                pause = f"next attempt in {TIMEOUT_SECONDS:.0f} s"
                print_text(f"{request.host}: {problem}; {count} not sent yet, {pause}")
                self._next_attempt = time.monotonic() + TIMEOUT_SECONDS
                return
            write_text(self._last_sent, f"{row['id']}\n")
            del self.waiting[0]

    def _content(self, row: Row) -> dict[str, Any]:
        """Return the JSON object of a row: empty cells are null, lists are lists."""
        content: dict[str, Any] = {name: value or None for name, value in row.items()}
        content["prediction_set"] = read_list_cell(row["prediction_set"])
        for name in ("probability", "known"):
            content[name] = json.loads(row[name] or "null")
        path = Path(row["file"])
        content["link"] = path.resolve().as_uri()
        if self.link is not None and path.is_relative_to(self.folder):
            inner = path.relative_to(self.folder).as_posix()
            name = quote(inner, errors="surrogateescape")
            content["link"] = f"{self.link.rstrip('/')}/{name}"
        return content
