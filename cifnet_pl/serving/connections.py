"""Close connections that send no whole request head in time, and refuse what is no HTTP in one sentence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""Time for the head of a request, from the connection or the end of the request before."""

NOT_HTTP = "this is no HTTP request that can be read: its head is malformed or larger than 64 KiB"
MOST = 1000
"""Connections at a time; requests on more are refused."""

TOO_MANY = "too many connections: try again in a few seconds"
TOO_SLOW = "the head of a request did not come in time"


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that is one too many."""
    body = json.dumps({"error": TOO_MANY}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for the head of a request (a slow-loris attack)."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first head."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Read what came; a request whose head is whole is no longer waited for."""
        before = self.cycle
        self.app = self.config.loaded_app if len(self.connections) <= MOST else refuse
        super().handle_events()
        if self.cycle is not before:
            self._stop()

    def on_response_complete(self) -> None:
        """Wait for the head of the next request, in the same connection."""
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, and close."""
        self._refuse(400, "Bad Request", NOT_HTTP)

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE:
            self._refuse(408, "Request Timeout", TOO_SLOW)
        else:  # the request before was answered, and its body still comes
            self.transport.close()

    def _refuse(self, status: int, reason: str, sentence: str) -> None:
        body = json.dumps({"error": sentence}).encode()
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
