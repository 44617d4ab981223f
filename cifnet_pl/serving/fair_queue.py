"""Share the cores between clients: whoever used them least is next."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Asker(NamedTuple):
    """Who asks: clients share the cores, and the requests of one client share what it gets.

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
        self._items: dict[Asker, deque[Item]] = {}
        self._client_seconds: dict[str, float] = {}
        self._request_seconds: dict[Asker, float] = {}

    def put(self, asker: Asker, item: Item) -> None:
        """Add an item."""
        with self._lock:
            if asker.client not in self._client_seconds:
                least = min(self._client_seconds.values(), default=0.0)
                self._client_seconds[asker.client] = least
            self._request_seconds.setdefault(asker, 0.0)
            self._items.setdefault(asker, deque()).append(item)

    def next_item(self) -> tuple[Asker, Item]:
        """Remove and return the next item; IndexError if there is none."""
        with self._lock:
            if not self._items:
                raise IndexError("the queue is empty")
            asker = min(self._items, key=self._used)
            items = self._items[asker]
            item = items.popleft()
            if not items:
                del self._items[asker]
            return asker, item

    def charge(self, asker: Asker, seconds: float) -> None:
        """Record the time that an item took; forget whoever has none left."""
        with self._lock:
            if asker.client in self._client_seconds:
                self._client_seconds[asker.client] += seconds
            if asker in self._request_seconds:
                self._request_seconds[asker] += seconds
            if asker not in self._items:
                self._request_seconds.pop(asker, None)
            if not any(other.client == asker.client for other in self._items):
                self._client_seconds.pop(asker.client, None)

    def _used(self, asker: Asker) -> tuple[float, float]:
        """Return by what is chosen who is next."""
        client_seconds = self._client_seconds.get(asker.client, 0.0)
        return client_seconds, self._request_seconds.get(asker, 0.0)
