"""``watch``: classify new images of a folder, into a CSV file and to a webhook."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from cifnet_pl.cli.commands import require_table
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.files import (
    exclusive,
    expanded,
    list_cell,
    path_cell,
    read_list_cell,
    read_text_cell,
    text_cell,
)
from cifnet_pl.utilities.text import has_controls, number_of, print_text, printable

if TYPE_CHECKING:
    from cifnet_pl.images.new_images import NewImage
    from cifnet_pl.model.classifier import Classifier, Prediction

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

IMAGES_PER_WRITE = 16
"""Images whose rows are written together; a killed process loses at most so many predictions."""

TIMEOUT_SECONDS = 10.0
"""Longest time that a receiver has to acknowledge a prediction."""

LONGEST_PAUSE_SECONDS = 60.0
"""Longest pause between two attempts; the first is one second, each later one twice as long."""


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
    beside the table lists the acknowledged ones. Nothing is sent anywhere else: no proxy is used,
    and no redirection is followed.

    Args:
        images: the folder, with its sub-folders.
        model: a run's folder, a checkpoint file or a bundle.
        workspace: folder of a workspace of ``serve``, in place of a model: each image is classified
            by the version that is served then.
        output: the CSV file; rows are added to an existing one.
        webhook: http or https address that gets a POST for each image; null for none.
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
    from cifnet_pl.images.new_images import NewImages

    check_webhook(webhook)
    check_that(every > 0, "--every", every, "more than 0")
    folder = expanded(images)
    require_folder(folder, "--images", "a folder of images")
    target = expanded(output)
    require_table(target)
    current_model = model_source(model, workspace, trust)
    with exclusive(target):
        table = WatchPredictions(target)
        sender = None
        if webhook is not None:
            acknowledged = target.with_name(f"{target.name}.sent")
            sender = Sender(webhook, acknowledged, table.rows(), Links(folder, link))
        receiver = " and to the webhook" if sender is not None else ""
        print_text(f"watching {images}; predictions in {target}{receiver}")
        found = NewImages(folder, lambda note: print_text(note, sys.stderr))
        for batch in found.batches(IMAGES_PER_WRITE, every, settled=not once):
            new = table.unseen(batch)
            rows = classified(current_model(), new, unknown, coverage)
            table.append(rows)
            if sender is not None:
                sender.waiting += rows
                sender.send()
            if once and not batch and not (sender and sender.waiting):
                break
        print_text(f"{number_of(len(table.ids), 'image')} classified in {target}")


def check_webhook(address: str | None) -> None:
    """Raise UsageError unless a webhook is an http or https address."""
    if address is None:
        return
    expected = f"--webhook {printable(address)} is no http or https address"
    if has_controls(address) or " " in address:
        raise UsageError(f"{expected}: it holds a space or a line break")
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        parts.port  # noqa: B018, it raises where it is no number
    except ValueError as error:
        raise UsageError(f"{expected}: {error}") from error
    if not valid:
        raise UsageError(expected)


def model_source(
    model: str | None, workspace: str | None, trust: bool
) -> Callable[[], Classifier]:
    """Return a function that gives the model to classify with: one model, or a workspace's."""
    from cifnet_pl.model.served import FollowedModel
    from cifnet_pl.model.store import load

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
) -> list[dict[str, str]]:
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
        rows.append(table_row(key, image.path, prediction))
    return rows


def table_row(key: str, file: Path, prediction: Prediction) -> dict[str, str]:
    """Return the row of an image in the table.

    Args:
        key: id of the image.
        file: that holds it.
        prediction: of it.
    """
    row = dict.fromkeys(COLUMNS, "")
    row["time"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    row["id"] = key
    row["file"] = path_cell(file)
    row["unreadable"] = prediction.unreadable or ""
    if prediction.classes:
        row["closest"] = prediction.classes[0]
        row["probability"] = f"{prediction.probabilities[0]:.6f}"
        row["prediction_set"] = list_cell(prediction.prediction_set or ())
        if prediction.known is not False:
            row["class"] = prediction.classes[0]
        if prediction.known is not None:
            row["known"] = str(prediction.known).lower()
    return row


class WatchPredictions:
    """A CSV file with a row for each image; a half-written last row of a killed process is removed.

    Args:
        path: of the file; it is made if it is missing.

    Attributes:
        ids: content hashes of the images that have a row.

    Raises:
        DataError: it has other columns.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = open(path, "a+b")  # noqa: SIM115, open until the program ends
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        if not whole:
            self.append([dict(zip(COLUMNS, COLUMNS, strict=True))])
        elif whole.split(b"\n", 1)[0].rstrip() != ",".join(COLUMNS).encode():
            raise DataError(f"{path} is no table of watch: choose another --output")
        self.ids = {row["id"] for row in self.rows()}

    def rows(self) -> list[dict[str, str]]:
        """Read all rows."""
        text = self.path.read_bytes().decode("utf-8", "surrogateescape")
        rows = csv.DictReader(io.StringIO(text, newline=""), restval="")
        return [{name: read_text_cell(row[name]) for name in COLUMNS} for row in rows]

    def unseen(self, images: Iterable[NewImage]) -> dict[str, NewImage]:
        """Return those of some images whose content has no row, by their ids."""
        from cifnet_pl.images.image import content_hash

        found = {}
        for image in images:
            key = f"{content_hash(image.content):016x}"
            if key not in self.ids:
                self.ids.add(key)
                found[key] = image
        return found

    def append(self, rows: Iterable[Mapping[str, str]]) -> None:
        """Write rows, and return once the disk has them."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in rows:
            writer.writerow([text_cell(cell) for cell in row.values()])
        self._file.write(text.getvalue().encode("utf-8", "surrogateescape"))
        self._file.flush()
        os.fsync(self._file.fileno())


class Links:
    """Addresses of images.

    Args:
        folder: that holds them.
        base: address of the folder for others; None for files of this machine.
    """

    def __init__(self, folder: Path, base: str | None):
        self.folder = folder
        self.base = base

    def link(self, file: str) -> str:
        """Return the address of an image."""
        path = Path(file)
        if self.base is None or not path.is_relative_to(self.folder):
            return path.resolve().as_uri()
        inner = path.relative_to(self.folder).as_posix()
        name = quote(inner.encode("utf-8", "surrogateescape"))
        return f"{self.base.rstrip('/')}/{name}"


class NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would lead where the user did not send anything."""

    def redirect_request(self, *args: Any) -> None:
        """Return no request, so that the redirection is an error."""


class Sender:
    """Sends rows to a webhook, in order, each until it is acknowledged.

    Args:
        url: of the receiver.
        path: file that lists the ids of the acknowledged rows.
        rows: of the table.
        links: gives the address of an image.

    Attributes:
        waiting: rows that are not acknowledged.
    """

    def __init__(
        self, url: str, path: Path, rows: Iterable[dict[str, str]], links: Links
    ):
        self.url = url
        self.links = links
        self._file = open(path, "a+b")  # noqa: SIM115, open until the program ends
        self._file.seek(0)
        acknowledged = set(self._file.read().decode().split("\n"))
        self.waiting = [row for row in rows if row["id"] not in acknowledged]
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), NoRedirection
        )
        self._next_attempt = 0.0
        self._pause = 1.0

    def send(self) -> None:
        """Send rows up to the first that is not acknowledged, and pause before the next attempt."""
        while self.waiting and time.monotonic() >= self._next_attempt:
            try:
                self._send(self.waiting[0])
            except (OSError, ValueError, HTTPException) as error:
                # Whatever the receiver sends; a refusal is an HTTPError, which is an OSError.
                self._wait(printable(str(error) or type(error).__name__))
                return
            self._pause = 1.0
            self._file.write(f"{self.waiting.pop(0)['id']}\n".encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def _send(self, row: Mapping[str, str]) -> None:
        """Send a row, as a JSON object: empty cells are null, lists are lists."""
        content: dict[str, Any] = {name: value or None for name, value in row.items()}
        content["prediction_set"] = read_list_cell(row["prediction_set"])
        for name in ("probability", "known"):
            if row[name]:
                content[name] = json.loads(row[name])
        content["link"] = self.links.link(row["file"])
        headers = {"Content-Type": "application/json", "Idempotency-Key": row["id"]}
        body = json.dumps(content).encode()
        request = urllib.request.Request(self.url, body, headers)
        with self._opener.open(request, timeout=TIMEOUT_SECONDS):
            return

    def _wait(self, problem: str) -> None:
        """Pause, for longer after each attempt that failed."""
        host = printable(urlsplit(self.url).hostname or "")
        count = number_of(len(self.waiting), "prediction")
        pause = f"next attempt in {self._pause:.0f} s"
        print_text(f"{host}: {problem}; {count} not sent yet, {pause}")
        self._next_attempt = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
