"""``python -m benchmarks.bare_service MODEL``: what one writes first, a FastAPI handler that asks
the model.

It answers each request for itself in one of FastAPI's threads: no batches, no versions, no limits.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, UploadFile

import cifnet_pl
from cifnet_pl.model.classifier import Prediction


def classes_of(one: Prediction) -> list[dict[str, Any]]:
    """The most probable classes of an image."""
    return [
        {"name": name, "probability": p}
        for name, p in zip(one.classes, one.probabilities, strict=True)
    ]


def main(bundle: str) -> None:
    """Serve until killed."""
    model = cifnet_pl.load(bundle)
    app = FastAPI()

    @app.post("/classify")
    def classify(files: list[UploadFile]) -> list[dict[str, Any]]:
        predictions = model.classify([file.file.read() for file in files])
        return [{"classes": classes_of(one)} for one in predictions]

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(f"serving at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(
            sockets=[listening]
        )


if __name__ == "__main__":
    main(sys.argv[1])
