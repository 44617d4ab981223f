"""``serve``: serve a learned model as a page and over HTTP."""

from __future__ import annotations

import io
import logging
import re
import secrets
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cifnet_pl.serving import LOOPBACK
from cifnet_pl.utilities.errors import CifnetError, UsageError, check_that, explained
from cifnet_pl.utilities.files import RECOMMENDED, config_files, expanded, read_yaml
from cifnet_pl.utilities.run_folders import images_of_run
from cifnet_pl.utilities.text import number_of, printable, slug

if TYPE_CHECKING:
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.serving.gate import Access, Gate
    from cifnet_pl.serving.service import Service

CONNECTIONS = 1000
"""Connections at a time; requests on more are refused."""

SHORTEST_TOKEN = 16
"""Characters of a token."""

WATCH_SECONDS = 2.0
"""Pause between two looks at a folder that is watched."""


def serve(
    model: str | None = None,
    port: int = 7860,
    host: str = "127.0.0.1",
    workspace: str | None = None,
    images: str | None = None,
    watch: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    read_only: bool = False,
    keep_images: bool = True,
    keep_versions: int = 100,
    unknown: float | None = 0.05,
    coverage: float | None = 0.95,
    name: str | None = None,
    trust: bool = False,
    share: bool = False,
    address: str | None = None,
) -> None:
    """Open a page and an HTTP service to classify, learn new classes, inspect and undo changes.

    Every change is a version in the workspace, which goes on where it was when the service is
    started again.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed. Without one the
            first classes are learned from the page.
        port: of the page and the service; 0 for any free one.
        host: address to listen on; any but this machine's own needs a token.
        workspace: folder for versions and kept images; by default beside the model, its name with
            "-workspace".
        images: folder with the images that the model learned, which a new workspace keeps as if
            they had been learned from the page; by default that of the run.
        watch: folder whose new images wait on the page to be labelled; they stay where they are,
            too.
        token: what clients must send; better in a file, as other users of a machine can see command
            lines.
        token_file: file with the token.
        read_only: whether changes are refused.
        keep_images: whether images that are learned stay in the workspace, for exact forgetting
            and as examples.
        keep_versions: number of versions to keep; the oldest are removed.
        unknown: share of images of known classes that may be called unknown; null never to say so.
        coverage: probability that the true class is in the prediction set; null to give none.
        name: of the model, for the page and for downloads; by default the folder's, of a run the
            experiment's.
        trust: whether heads and backbones from outside the package that a model names may be
            imported, code and all.
        share: whether other devices of the network may open the page: a token is made unless one is
            given, and the address is printed with a QR code for their camera.
        address: http or https address of the page behind a reverse proxy, such as
            https://shop.example/cifnet/; it needs a token.

    Raises:
        SystemExit: Ctrl-C ended it, with code 130.
        UsageError: a port or host that cannot be listened on, a host without a token, or a
            workspace of another model.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    import torch

    from cifnet_pl.images.files import require_folder
    from cifnet_pl.model.store import load

    try:
        from cifnet_pl.serving.answering import ServiceOptions
        from cifnet_pl.serving.app import make_app
        from cifnet_pl.serving.service import Service
        from cifnet_pl.serving.workspace import Workspace
    except ImportError as error:
        raise UsageError(
            f"serve needs {error.name}: pip install 'cifnet_pl[serve]'"
        ) from None
    secret = _given_token(token, token_file)
    if share:
        host = "0.0.0.0" if host in LOOPBACK else host
        secret = secret or secrets.token_urlsafe(SHORTEST_TOKEN)
    access = access_of(secret, host, address)
    expected = "at least 2: undo needs the version before"
    check_that(keep_versions >= 2, "--keep_versions", keep_versions, expected)
    for option, value in (("--unknown", unknown), ("--coverage", coverage)):
        is_share = value is None or 0 < value < 1
        check_that(is_share, option, value, "a share between 0 and 1, or null")
    if watch is not None:
        if read_only:
            raise UsageError("--watch and --read_only: leave out one of them")
        require_folder(expanded(watch), "--watch", "a folder of images")
    listening = _listen(host, port)
    torch.set_num_threads(1)  # each answer keeps to one core: see Answering
    path = expanded(model or "cifnet").resolve()
    loaded = load(model, trust=trust) if model is not None else empty_model()
    folder = path.with_name(f"{path.name}-workspace")
    if workspace:
        folder = expanded(workspace)
    opened = Workspace(
        folder, loaded, keep_versions, trust, _learned_images(images, path)
    )
    if opened.current != 1:
        loaded = opened.load(opened.current)
        print(f"workspace {folder} goes on at version {opened.current}")
    tempfile.tempdir = str(folder / "incoming")  # where large uploads wait
    shown_name = name or _plain(path if model else folder.resolve())
    options = ServiceOptions(shown_name, read_only, keep_images, unknown, coverage)
    service = Service(opened, loaded, options)
    app = make_app(service, access)
    if watch is not None:
        arguments = (service, expanded(watch))
        Thread(target=keep_watching, args=arguments, daemon=True).start()
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    bound_port = listening.getsockname()[1]
    classes = number_of(len(loaded.class_names), "class")
    shown_host = f"[{host}]" if ":" in host else host
    page = f"http://{shown_host}:{bound_port} (the API: /docs)"
    print(f"{classes} at {page}; Ctrl-C ends it", flush=True)
    if share:
        show_address(address or f"http://{network_address()}:{bound_port}/", secret)
    _run(app, listening)
    print(f"ended; {folder} holds every change")
    raise SystemExit(128 + signal.SIGINT)


def access_of(secret: str | None, host: str, address: str | None) -> Access:
    """Return who may ask; UsageError where others can reach the service without a token."""
    from cifnet_pl.serving.gate import Access

    if secret is None and (address is not None or host not in LOOPBACK):
        raise UsageError(
            "the page can be reached from other machines: give a --token or --token_file"
        )
    hosts = LOOPBACK
    proxy = None
    if address is not None:
        parts = urlsplit(address)
        is_page = parts.scheme in ("http", "https") and parts.hostname is not None
        check_that(is_page, "--address", address, "https://HOST/ or a folder of it")
        hosts = hosts | {str(parts.hostname)}
        proxy = parts.netloc
    if host not in LOOPBACK:
        return Access(secret, None, proxy)
    return Access(secret, hosts, proxy)


def _run(app: Gate, listening: socket.socket) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        limit_concurrency=CONNECTIONS,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    # Uvicorn raises it again, unless the process was started to ignore Ctrl-C.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _learned_images(images: str | None, run: Path) -> Path | None:
    """Return the folder with the images that a model learned; None where it is not known."""
    if images:
        return expanded(images)
    recorded = images_of_run(run)
    if recorded and expanded(recorded).is_dir():
        return expanded(recorded)
    return None


def keep_watching(service: Service, folder: Path) -> None:
    """Let new images of a folder wait to be labelled, until the service is closed.

    One that is refused is left out; those that cannot be stored are tried again.
    """
    from cifnet_pl.images.files import shown_path
    from cifnet_pl.images.new_images import NewImages
    from cifnet_pl.serving.messages import RequestError

    log = logging.getLogger("cifnet_pl.serving")
    images = NewImages(folder, log.warning)
    for batch in images.batches(1, WATCH_SECONDS):
        if service.closed.is_set():
            return
        for image in batch:
            name = image.path.relative_to(folder).as_posix()
            try:
                files = [(name, io.BytesIO(image.content))]
                service.inbox.receive(files, again=False)
            except CifnetError as error:
                shown = shown_path(image.path)
                log.warning("%s is left out for now: %s", shown, error)
                if not isinstance(error, RequestError):
                    images.find_again(image)
                    service.closed.wait(WATCH_SECONDS)


def empty_model() -> Classifier:
    """Build the model that ``fit`` builds by default, which knows no class."""
    from cifnet_pl.backbones import build_backbone
    from cifnet_pl.buffer import CalibrationBuffer
    from cifnet_pl.heads import RidgeHead
    from cifnet_pl.model.classifier import Classifier

    chosen = read_yaml(config_files()[RECOMMENDED])["model"]["init_args"]
    backbone = build_backbone(chosen["backbone"])
    head = RidgeHead(backbone.features, **chosen["head"]["init_args"])
    buffer = CalibrationBuffer(**chosen["buffer"]["init_args"])
    return Classifier(backbone, head, buffer, calibrated=chosen["calibrate"])


def _given_token(token: str | None, token_file: str | None) -> str | None:
    """Return the token that clients must send, None without one; UsageError for a poor one."""
    if token_file is not None:
        shown = f"cannot read --token_file {printable(token_file)}"
        with explained(UsageError, shown, OSError, UnicodeDecodeError):
            token = expanded(token_file).read_text(encoding="utf-8").strip()
    if token is not None and not re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},}}", token):
        raise UsageError(
            f"the token must have {SHORTEST_TOKEN} or more plain characters without spaces"
        )
    return token


def _listen(host: str, port: int) -> socket.socket:
    refused = f"cannot listen on {printable(host)} port {port}"
    with explained(UsageError, refused, OSError, OverflowError):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)


def _plain(path: Path) -> str:
    """Return a name for a model by its place: of a run that of its experiment."""
    name = path.name.removesuffix("-workspace")
    if re.fullmatch(r"version_\d+", path.name):
        name = path.parent.name
    return slug(name, "A-Z.-") or "model"


def network_address() -> str:
    """Return the address of this machine in its network; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that nobody has (RFC 5737)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def show_address(address: str, secret: str | None) -> None:
    """Print the address of the page, with its token, and a QR code of both."""
    import segno

    whole = f"{address}#token={secret}"
    segno.make_qr(whole).terminal(compact=True)
    print(f"{whole}\nwhoever has this address can use and change the model", flush=True)
