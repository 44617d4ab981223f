"""``watch``: classify new images of a folder or camera, into a CSV file and to a webhook."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit

from cifnet_pl.cli.commands import require_table
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError
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
    from cifnet_pl.cli.camera import CameraStills
    from cifnet_pl.images.files import NewFiles
    from cifnet_pl.model.classifier import Classifier, Prediction
    from cifnet_pl.model.served import ServedVersion

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


def check_options(webhook: str | None, every: float) -> None:
    """Check the address of a webhook and the seconds between two scans."""
    if webhook is not None:
        check_address("--webhook", webhook)
    if every <= 0:
        raise UsageError(f"--every is {every:g}, expected more than 0")


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
    """Classify each new image of a folder or camera until Ctrl-C.

    Each image gets a row of a CSV file, and a JSON object that is sent to a webhook. An image is
    new if no row has its content. Images that are there at the start come first. Predictions are
    sent in order, each with the id of its image, until the receiver acknowledges them with a
    status from 200 to 299. The others are sent again, also after a restart. The file ``.sent``
    beside the table lists the acknowledged ones. Nothing is sent anywhere else: no proxy is used,
    and no redirection is followed.

    Args:
        images: the folder, with its sub-folders; or the http or https address of a network camera's
            still image, which is asked for again and again.
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
    if (model is None) == (workspace is None):
        raise UsageError("give one of --model and --workspace")
    check_options(webhook, every)
    target = expanded(output)
    require_table(target)
    waiting = image_source(images, target)
    with exclusive(target):
        source = model_source(model, workspace, trust)
        source.current()
        table = WatchPredictions(target)
        sender = None
        if webhook is not None:
            acknowledged = target.with_name(f"{target.name}.sent")
            links = Links(waiting.folder, link)
            sender = Sender(webhook, acknowledged, table.rows(), links)
        receiver = " and to the webhook" if sender is not None else ""
        print_text(f"watching {images}; predictions in {target}{receiver}")
        found = waiting.find(settled=not once)
        passed_over = 0
        while True:
            new = list(islice(found, IMAGES_PER_WRITE))
            rows = classified(source.current(), table.unseen(new), unknown, coverage)
            table.append(rows)
            if sender is not None:
                sender.waiting += rows
                sender.send()
            if not new and waiting.passed_over.count > passed_over:
                passed_over = waiting.passed_over.count
                for note in waiting.passed_over.notes():
                    print_text(note, sys.stderr)
            if not new and once and not (sender and sender.waiting):
                print_text(
                    f"{number_of(len(table.ids), 'image')} classified in {target}"
                )
                return
            if not new:
                time.sleep(every)
                found = waiting.find(settled=not once)


def image_source(images: str, output: Path) -> NewFiles | CameraStills:
    """Return the source of new images: a folder or a camera.

    Args:
        images: a folder, or the address of a camera.
        output: the table, beside which images of a camera are kept.
    """
    from cifnet_pl.images.files import NewFiles, require_folder

    if images.startswith(("http://", "https://")):
        from cifnet_pl.cli.camera import CameraStills

        check_address("--images", images)
        return CameraStills(images, output.with_name(f"{output.name}.stills").resolve())
    folder = expanded(images)
    require_folder(folder, "--images", "a folder of images")
    return NewFiles(folder)


class FixedModel:
    """A model that stays the same."""

    def __init__(self, model: Classifier):
        self.model = model

    def current(self) -> Classifier:
        """Return the model."""
        return self.model


class FollowedModel:
    """The model that a service serves; the one before while that cannot be read."""

    def __init__(self, served: ServedVersion):
        self.served = served
        self._model: Classifier | None = None
        self._problem: str | None = None

    def current(self) -> Classifier:
        """Return the model that is served now."""
        try:
            number = self.served.loaded_number
            self._model = self.served.model()
            self._problem = None
            if number != self.served.loaded_number:
                print_text(f"version {self.served.loaded_number} is served")
        except CifnetError as error:
            if self._model is None:
                raise
            if str(error) != self._problem:
                self._problem = str(error)
                print_text(f"version {self.served.loaded_number} goes on: {error}")
        return self._model


def model_source(
    model: str | None, workspace: str | None, trust: bool
) -> FixedModel | FollowedModel:
    """Return where the model comes from: a bundle or checkpoint, or a workspace."""
    from cifnet_pl.model.served import ServedVersion
    from cifnet_pl.model.store import load

    if workspace is not None:
        return FollowedModel(ServedVersion(expanded(workspace), trust))
    assert model is not None
    return FixedModel(load(model, trust=trust))


def classified(
    model: Classifier,
    images: Sequence[NewImage],
    unknown: float | None,
    coverage: float | None,
) -> list[dict[str, str]]:
    """Return the rows of some images.

    Args:
        model: that classifies.
        images: to be classified.
        unknown: as for :func:`watch`; ignored if the model cannot keep the promise.
        coverage: likewise.
    """
    unknown, coverage = model.available_shares(unknown, coverage)
    contents = [image.content for image in images]
    predictions = model.classify(contents, 1, unknown=unknown, coverage=coverage)
    rows = []
    for image, prediction in zip(images, predictions, strict=True):
        rows.append(table_row(image, prediction))
    return rows


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
        if self.base is None:
            return path.resolve().as_uri()
        try:
            inner = path.relative_to(self.folder).as_posix()
        except ValueError:
            inner = path.name
        name = quote(inner.encode("utf-8", "surrogateescape"))
        return f"{self.base.rstrip('/')}/{name}"


def check_address(option: str, value: str) -> None:
    """Check the address that an option got; UsageError unless it is one of http or https."""
    expected = f"{option} {printable(value)} is no http or https address"
    if has_controls(value) or " " in value:
        raise UsageError(
            f"{expected}: it holds a space, a line break or a control character"
        )
    try:
        address = urlsplit(value)
        valid = address.scheme in ("http", "https") and bool(address.hostname)
        address.port  # noqa: B018, it raises where it is no number
    except ValueError as error:
        raise UsageError(f"{expected}: {error}") from error
    if not valid:
        raise UsageError(expected)


class NewImage(NamedTuple):
    """An image whose content has no row yet."""

    id: str
    file: Path
    content: bytes


def table_row(image: NewImage, prediction: Prediction) -> dict[str, str]:
    """Return the row of an image in the table.

    Args:
        image: the image.
        prediction: of it.
    """
    row = dict.fromkeys(COLUMNS, "")
    row["time"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
    row["id"] = image.id
    row["file"] = path_cell(image.file)
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


def json_content(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object that a webhook gets for a row; empty cells are null, lists lists."""
    content: dict[str, Any] = {name: value or None for name, value in row.items()}
    content["prediction_set"] = read_list_cell(row["prediction_set"])
    for name in ("probability", "known"):
        if row[name]:
            content[name] = json.loads(row[name])
    return content


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
        whole = path.read_bytes() if path.exists() else b""
        whole = whole[: whole.rfind(b"\n") + 1]
        mode = "r+b" if path.exists() else "w+b"
        self._file = open(path, mode)  # noqa: SIM115, open until the program ends
        self._file.truncate(len(whole))
        self._file.seek(len(whole))
        if not whole:
            self.append([dict(zip(COLUMNS, COLUMNS, strict=True))])
        elif whole.split(b"\n", 1)[0].rstrip() != ",".join(COLUMNS).encode():
            raise DataError(f"{path} is no table of watch: choose another --output")
        self.ids = {row["id"] for row in self.rows()}

    def rows(self) -> list[dict[str, str]]:
        """Read all rows."""
        with open(
            self.path, encoding="utf-8", errors="surrogateescape", newline=""
        ) as file:
            rows = list(csv.DictReader(file, restval=""))
        return [{name: read_text_cell(row[name]) for name in COLUMNS} for row in rows]

    def unseen(self, files: Iterable[Path]) -> list[NewImage]:
        """Read those of some images whose content has no row.

        Files that are gone are left out. Pipes, devices, dangling links and files that cannot be
        read are named on the screen.
        """
        from cifnet_pl.images.files import read_bytes
        from cifnet_pl.images.image import content_hash

        found = []
        for file in files:
            try:
                content = read_bytes(file)
            except (OSError, DataError) as error:
                if os.path.lexists(file):
                    reason = getattr(error, "strerror", None) or str(error)
                    print_text(f"skipped {printable(str(file))}: {reason}", sys.stderr)
                continue
            key = f"{content_hash(content):016x}"
            if key not in self.ids:
                self.ids.add(key)
                found.append(NewImage(key, file, content))
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
        links: gives the address of an image; None to send none.

    Attributes:
        waiting: rows that are not acknowledged.
    """

    def __init__(
        self,
        url: str,
        path: Path,
        rows: Iterable[dict[str, str]],
        links: Links | None = None,
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
            problem = self._problem_of_sending(self.waiting[0])
            if problem is not None:
                host = printable(urlsplit(self.url).hostname or "")
                count = number_of(len(self.waiting), "prediction")
                pause = f"next attempt in {self._pause:.0f} s"
                print_text(f"{host}: {problem}; {count} not sent yet, {pause}")
                self._next_attempt = time.monotonic() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
                return
            self._pause = 1.0
            self._file.write(f"{self.waiting.pop(0)['id']}\n".encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def _problem_of_sending(self, row: Mapping[str, str]) -> str | None:
        """Send a row; return why it was not acknowledged, or None."""
        content = json_content(row)
        if self.links is not None:
            content["link"] = self.links.link(row["file"])
        body = json.dumps(content).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": row["id"]}
        request = urllib.request.Request(self.url, body, headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS):
                return None
        except HTTPError as error:
            return f"status {error.code}"
        except (
            OSError,
            ValueError,
            HTTPException,
        ) as error:
            # Whatever the receiver sends.
            return printable(str(error) or type(error).__name__)
