"""``replicas``: answer from one model that never changes in several processes, or on several GPUs, with LitServe."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cifnet_pl.serving.access import check_shares, given_token
from cifnet_pl.utilities.errors import UsageError

BATCH = 16
"""Photos that a replica takes at a time."""

WINDOW = 0.005
"""Seconds that it waits for them."""

LARGEST = 2**26
"""Bytes of a request."""


def replicas(
    model: str,
    count: int = 2,
    port: int = 8000,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    unknown: float | None = 0.05,
    coverage: float | None = 0.95,
    token: str | None = None,
    token_file: str | None = None,
    trust: bool = False,
) -> None:
    """Answer from a model in several processes, on this machine's own address: read-only, behind a proxy of yours.

    Each takes ``POST /classify`` with ``{"image": "…"}``, an image file as base64.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        count: number of processes per device.
        port: to listen on.
        device: what computes; with cuda, every GPU.
        unknown: share of photos of known classes that may be called "none of these"; null never to say so.
        coverage: chance that the right class is in the set of answers; null to give no set.
        token: what clients must send; better in a file, as other users of a machine can see command lines.
        token_file: file with the token.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

    Raises:
        UsageError: LitServe is not installed, there is no model, or an option makes no sense.
    """
    check_shares(unknown, coverage)
    secret = given_token(token, token_file)
    try:
        from litserve import LitServer

        from cifnet_pl.serving.guard import Guard, Rate
        from cifnet_pl.serving.replica_api import Replica
    except ImportError as error:
        raise UsageError(f"replicas needs {error.name}: pip install 'cifnet_pl[replicas]'") from None
    path = Path(model).expanduser()
    if not path.exists():
        raise UsageError(f"there is no model at {model}: give a run's folder, a checkpoint file or a bundle")
    if not 1 <= count <= 256 or not 0 < port < 2**16:
        raise UsageError(f"--count is {count} and --port {port}, expected 1 to 256 and 1 to {2**16 - 1}")
    asked = (unknown, coverage)
    api = Replica(str(path), asked, trust, api_path="/classify", max_batch_size=BATCH, batch_timeout=WINDOW)
    guard = (Guard, {"token": secret, "any_host": secret is not None, "rate": Rate(0), "body_bytes": LARGEST})
    server = LitServer(api, accelerator=device, workers_per_device=count, middlewares=[guard])
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
