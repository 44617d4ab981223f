"""Share the cores between clients: whoever used them least is next."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Requester(NamedTuple):
    """Client and request: clients share the cores, and its requests share what a client gets.

    Attributes:
        client: address of the client.
        request: number of its request.
    """

    client: str
    request: int


class FairQueue(Generic[Item]):
    """Items that wait, each of someone who asks.

    The next item is of the client that used the least time, and of the request among its own that
    used the least. A client that comes anew begins where the others are, so that it can neither
    save up time nor has to make up for any.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._items: dict[Requester, deque[Item]] = {}
        self._client_seconds: dict[str, float] = {}
        self._request_seconds: dict[Requester, float] = {}

    def put(self, requester: Requester, item: Item) -> None:
        """Add an item."""
        with self._lock:
            if requester.client not in self._client_seconds:
                least = min(self._client_seconds.values(), default=0.0)
                self._client_seconds[requester.client] = least
            self._request_seconds.setdefault(requester, 0.0)
            self._items.setdefault(requester, deque()).append(item)

    def next_item(self) -> tuple[Requester, Item]:
        """Remove and return the next item; IndexError if there is none."""
        with self._lock:
            if not self._items:
                raise IndexError("the queue is empty")
            requester = min(self._items, key=self._used)
            items = self._items[requester]
            item = items.popleft()
            if not items:
                del self._items[requester]
            return requester, item

    def charge(self, requester: Requester, seconds: float) -> None:
        """Record the time that an item took; forget whoever has none left."""
        with self._lock:
            if requester.client in self._client_seconds:
                self._client_seconds[requester.client] += seconds
            if requester in self._request_seconds:
                self._request_seconds[requester] += seconds
            if requester not in self._items:
                self._request_seconds.pop(requester, None)
            if not any(other.client == requester.client for other in self._items):
                self._client_seconds.pop(requester.client, None)

    def _used(self, requester: Requester) -> tuple[float, float]:
        """Return the sort key: seconds used by the client, then by the request."""
        client_seconds = self._client_seconds.get(requester.client, 0.0)
        return client_seconds, self._request_seconds.get(requester, 0.0)
