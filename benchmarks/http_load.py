"""Processes that serve a model, and clients that ask them over kept connections, as cheaply as a
client can.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np

BOUNDARY = "a-boundary-that-no-image-holds"


@dataclass
class Load:
    """What clients saw: seconds of each response, number of errors, seconds of all."""

    times: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.times) / self.seconds

    def percentile(self, percent: float) -> float:
        """Seconds within which so many percent of the responses came."""
        return float(np.percentile(self.times, percent))


def form(image: bytes) -> bytes:
    """The body of a multipart request with one image."""
    disposition = 'Content-Disposition: form-data; name="files"; filename="0.jpg"'
    headers = f"{disposition}\r\nContent-Type: image/jpeg"
    return (
        f"--{BOUNDARY}\r\n{headers}\r\n\r\n".encode()
        + image
        + f"\r\n--{BOUNDARY}--\r\n".encode()
    )


def ask(
    url: str,
    images: Sequence[bytes],
    requests: int,
    clients: int,
    until: Event | None = None,
) -> Load:
    """Ask for one image a request, each client the next one as soon as it has its response.

    Args:
        url: of a service on this machine.
        images: sent in turn.
        requests: number of them in all.
        clients: number of connections.
        until: stop as soon as it is set.
    """
    return asyncio.run(_ask(url, images, requests, clients, until))


async def _ask(
    url: str, images: Sequence[bytes], requests: int, clients: int, until: Event | None
) -> Load:
    host, port = url.removeprefix("http://").split(":")
    about = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
    head = f"POST /classify HTTP/1.1\r\nHost: {host}:{port}\r\n{about}\r\n"
    bodies = [form(image) for image in images]
    messages = [
        f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies
    ]
    load = Load()
    left = iter(range(requests))

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in left:
            if until is not None and until.is_set():
                break
            start = time.perf_counter()
            writer.write(messages[number % len(messages)])
            status = await reader.readuntil(b"\r\n\r\n")
            length = int(
                status.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            )
            content = await reader.readexactly(length)
            load.times.append(time.perf_counter() - start)
            load.errors += (
                not status.startswith(b"HTTP/1.1 200") or b'"classes":[{' not in content
            )
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - start
    return load


@dataclass(frozen=True)
class Process:
    """A service in a process of its own."""

    url: str
    number: int

    def post(self, path: str, **options: Any) -> Any:
        """The response to a change, with the options of httpx."""
        return httpx.post(self.url + path, timeout=300, **options).json()

    def get(self, path: str) -> Any:
        """A JSON response."""
        return httpx.get(self.url + path, timeout=300).json()

    def learn(self, images: Sequence[bytes], name: str) -> Any:
        """Start an update; return its job."""
        files = [("files", (f"{i}.jpg", content)) for i, content in enumerate(images)]
        names = dict.fromkeys(self.post("/inbox", files=files)["images"], name)
        return self.post("/inbox/learn?wait=false", json={"names": names})

    def megabytes(self) -> float:
        """Memory that the process holds now."""
        for line in Path(f"/proc/{self.number}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the process has ended")

    def cpu_seconds(self) -> float:
        """What it has computed so far, on all cores: unlike a clock, it does not count what other
        programs do.
        """
        fields = (
            Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*arguments: str) -> Iterator[Process]:
    """Run ``python -m words`` until it says its address, and end it afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if " at http://" in line:
                yield Process(line.split(" at ")[1].split()[0], process.pid)
                break
        else:
            raise RuntimeError("".join(lines))
    finally:
        process.kill()
        process.wait()
